"""How a backend comes to create a state of ours instead of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from lightspec_lightllm.adapters.lightllm import options

CreateState = Callable[[Any, Any], Any]


@functools.cache
def rows_per_request() -> int | None:
    """1 + K, the rows of one request at most; None: dynamic mode is off. Start arguments do not change, so kept."""
    config = options.current()
    return None if config is None else 1 + config.planner.max_draft_steps


def creates(original: CreateState, state: type) -> CreateState:
    """For a backend's ``create_att_decode_state``: in dynamic mode it creates states with the methods of ``state``.

    They carry 1 + K as ``rows_per_request``.
    """

    @functools.wraps(original)
    def create_att_decode_state(backend: Any, infer_state: Any) -> Any:
        stock = original(backend, infer_state)
        rows = rows_per_request()
        if rows is None:
            return stock
        return _extended(stock.__class__, state, rows)(backend=backend, infer_state=infer_state)

    return create_att_decode_state


@functools.cache
def _extended(stock: Any, state: Any, rows: int) -> type:
    return type(f"Dynamic{stock.__name__}", (state, stock), {"rows_per_request": rows})
