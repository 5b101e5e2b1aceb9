"""What a drafter is: the protocol, the proposals it returns, and the little it sees of a request.

A drafter guesses the next tokens of running requests. It never touches the target and never changes the text: a guess
is committed only where the target samples the same token. So everything here is about speed.

One round, as a drafter sees it (``T`` = ``len(seq.tokens)``, ``C * D`` = captured layers times hidden size)::

    prefill(seq, start, hidden)               once per prompt chunk: hidden states of positions start..start+n-1
    observe(seqs, hidden, rows, accepted)     the target has verified; of each request's rows the first `accepted` stay
    propose(seqs, steps) -> Proposals         after the commit, for requests still running
    release(request_id)                       finished, cancelled or paused: forget it

Hidden states run one position behind the tokens: when ``propose`` is called, positions ``0..T-2`` are known, and the
row of position ``p`` is read together with token ``p + 1``. The token at ``T - 1`` is the newest one; its own hidden
state exists only after the next target forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

DrafterKind = Literal["free", "serial"]
"""free: proposing costs no forward (n-gram). serial: one small forward per step."""

Hidden = Any
"""Captured hidden states, float32 ``[rows, C * D]``: a torch tensor or a numpy array. Torch is not imported here."""


class SequenceView(Protocol):
    """The part of a request that drafters read."""

    @property
    def request_id(self) -> int:
        """Unique among the requests that are not released."""

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and committed tokens. Only ever grows at the end while the request is not released."""

    @property
    def prompt_length(self) -> int:
        """How many of the tokens are the prompt."""


@dataclass(frozen=True)
class Proposals:
    """Drafts of one round for N requests, in the order of the requests asked for.

    tokens      int64   [N, K]  draft j of request i, -1 from ``lengths[i]`` on
    lengths     int64   [N]     drafts proposed, 0..K; 0 = abstained
    confidence  float64 [N, K]  estimated P(draft j is right | drafts before j are), in 0..1; 0 from ``lengths[i]`` on
    computed    draft steps that took a forward; None: as many as the longest proposal has drafts
    """

    tokens: IntArray
    lengths: IntArray
    confidence: FloatArray
    computed: int | None = None

    @property
    def steps(self) -> int:
        """Draft steps made: what was looked up beside computed drafts took none."""
        return int(self.lengths.max(initial=0)) if self.computed is None else self.computed

    @classmethod
    def empty(cls, num_requests: int, steps: int) -> "Proposals":
        """No draft for anyone; arrays are writable, so that a drafter can fill them in before it hands them out."""
        return cls(
            tokens=np.full((num_requests, steps), -1, dtype=np.int64),
            lengths=np.zeros(num_requests, dtype=np.int64),
            confidence=np.zeros((num_requests, steps), dtype=np.float64),
        )

    def put(self, row: int, tokens: Sequence[int], confidence: Sequence[float]) -> None:
        """Fill in the drafts of one request; both sequences have the same length, at most K."""
        length = len(tokens)
        self.tokens[row, :length] = tokens
        self.confidence[row, :length] = confidence
        self.lengths[row] = length


class StepRule(Protocol):
    """Decides, while drafting, whether one more step is worth its time."""

    def worth_another_step(self, confidence: FloatArray, request_ids: IntArray) -> bool:
        """After j steps: ``confidence`` float64 [n, j] and ids int64 [n] of the requests that are drafted for."""


class Drafter(Protocol):
    """See the module's docstring for the order of the calls."""

    @property
    def name(self) -> str:
        """As configured: ``ngram``, ``head``, ``hybrid``."""

    @property
    def kind(self) -> DrafterKind:
        """What a step costs."""

    @property
    def max_draft_steps(self) -> int:
        """The most steps that ``propose`` can be asked for."""

    @property
    def capture_layers(self) -> tuple[int, ...]:
        """Residual streams the target must hand over, concatenated in this order; empty: the drafter needs none.

        ``i`` below the target's number of layers is the stream that enters layer ``i``; the number of layers itself
        is the stream that leaves the last layer, before the output norm.
        """

    def prefill(self, seq: SequenceView, start: int, hidden: Hidden) -> None:
        """Take the hidden states ``[n, C * D]`` of prompt positions ``start..start+n-1``; ``start`` 0 begins anew."""

    def observe(self, seqs: Sequence[SequenceView], hidden: Hidden, rows: IntArray, accepted: IntArray) -> None:
        """Take a verified round: ``hidden [rows.sum(), C * D]`` request-major, ``1 <= accepted[i] <= rows[i]``."""

    def propose(self, seqs: Sequence[SequenceView], steps: int, rule: "StepRule | None" = None) -> Proposals:
        """Draft up to ``steps`` (1..max_draft_steps) tokens after the last token of each request.

        With a rule a serial drafter asks it after every step whether to make another; drafts that are there already
        are handed out all the same.
        """

    def backlog(self, seqs: Sequence[SequenceView]) -> int:
        """Rows the next ``propose`` must process before its first step, over all of ``seqs``."""

    def release(self, request_id: int) -> None:
        """Forget a request. Unknown and already released requests are ignored."""
