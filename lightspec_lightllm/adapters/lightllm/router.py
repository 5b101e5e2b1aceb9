"""What LightLLM's router knows of dynamic rounds.

The router counts what the running requests will need in their next round against the tokens that it may send to
prefill (`ChunkedPrefillQueue._can_add_new_req`). For MTP it takes 2 (1 + K) tokens per request, which no round exceeds:
1 + K rows and K - 1 slots of the drafter's chain. At K = 15 a thousand requests use up the default of 2 * 16384, and
new ones would wait for slots that dynamic rounds do not touch. Here the estimate is what the rounds of the last second
took. It only throttles prefill: whether a round has its slots is decided by the ranks, which keep to the upper bound.

The model ranks and the router are different processes; two numbers in shared memory are all that passes between them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from lightspec_lightllm.adapters.lightllm import options


class RoundState:
    """What a request takes in a round: the mean over the last second that had rounds. One writer, any readers."""

    def __init__(self, cells: Any, owner: Any = None) -> None:
        """``cells``: float64[2] that all processes see, 0 before the first round; ``owner`` keeps them alive."""
        self._cells = cells
        self._owner = owner

    @classmethod
    def open(cls) -> RoundState:
        """The state of this process's server, made by whichever process comes first."""
        import numpy as np
        from lightllm.server.router.dynamic_prompt.shared_arr import SharedArray
        from lightllm.utils.envs_utils import get_unique_server_name

        shared = SharedArray(f"{get_unique_server_name()}_lightspec_rounds", (2,), np.float64)
        return cls(shared.arr, shared)

    def publish(self, rows_per_request: float, draft_steps: float) -> None:
        """Set both."""
        self._cells[0], self._cells[1] = rows_per_request, draft_steps

    @property
    def rows_per_request(self) -> float:
        """Verify rows; 0 before the first round."""
        return float(self._cells[0])

    @property
    def draft_steps(self) -> float:
        """Steps drafted."""
        return float(self._cells[1])

    def need(self, upper: int) -> int:
        """Tokens that a request's next round takes, rows and chain, at most ``upper``; that before the first round."""
        if self.rows_per_request == 0.0:
            return upper
        return min(upper, math.ceil(self.rows_per_request + self.draft_steps))

    def __str__(self) -> str:
        if self.rows_per_request == 0.0:
            return "lightspec: no rounds yet"
        return f"lightspec: {self.rows_per_request:.1f} rows per request, {self.draft_steps:.1f} draft steps"


@functools.lru_cache(maxsize=1)
def state() -> RoundState | None:
    """This process's view of the rounds; None: dynamic mode is off."""
    return RoundState.open() if options.current() is not None else None


def wrap_decode_need(original: Callable[[Any], int]) -> Callable[[Any], int]:
    """For `ChunkedPrefillReq.get_decode_need_tokens`. A request that still prefills needs what it did."""

    @functools.wraps(original)
    def get_decode_need_tokens(req: Any) -> int:
        need = original(req)
        rounds = state()
        decodes = req.input_len + req.shm_cur_output_len - req.shm_cur_kv_len == 1
        return need if rounds is None or not decodes else rounds.need(need)

    return get_decode_need_tokens


def wrap_log_str(original: Callable[[Any], str]) -> Callable[[Any], str]:
    """For `RouterStatics.log_str`, the router's status line."""

    @functools.wraps(original)
    def log_str(statics: Any) -> str:
        rounds = state()
        return original(statics) if rounds is None else f"{original(statics)} {rounds}"

    return log_str
