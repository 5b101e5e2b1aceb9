"""Saying which loops plans are made with: the planner itself writes no log."""

from __future__ import annotations

import logging

from lightspec_lightllm.planner.loops import INNER


def log_loops(logger: logging.Logger) -> None:
    """A line on the loops of this process, once its planner is made; a warning if numba is there and not used.

    Nothing where the strategy has no such loops.
    """
    if INNER.prepared:
        logger.log(logging.WARNING if INNER.unexpected else logging.INFO, "the planner's loops: %s", INNER.described)
