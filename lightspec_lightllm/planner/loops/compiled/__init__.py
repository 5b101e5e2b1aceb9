"""The inner loops compiled by numba: what `plain` says, in one pass each (shapes and meaning: `interface`).

Compiled for fixed types when this module is imported, and kept on disk; nothing is compiled while serving. No fast
arithmetic: every sum and product is rounded as numpy rounds it. `check` compares the two whenever they are loaded.
"""

from __future__ import annotations

import importlib
import sys

from numba import extending

from lightspec_lightllm.planner.loops.compiled import arithmetic, learning, reading, search
from lightspec_lightllm.planner.loops.compiled.learning import (
    acceptances,
    depth_scores,
    find_entries,
    learn_bins,
    learn_depths,
    learn_offsets,
    level_curve,
    level_scores,
    level_table,
    read_bins,
)
from lightspec_lightllm.planner.loops.compiled.reading import (
    are_probabilities,
    cells,
    lay_codes,
    proposal_counts,
    read_drafts,
    round_counts,
    score_trials,
    whole_terms,
)
from lightspec_lightllm.planner.loops.compiled.search import (
    best_extra,
    best_values,
    expected_drafts,
    gain_at,
    ladder_values,
    net_values,
    waiting_curve,
)

__all__ = [
    "acceptances",
    "are_probabilities",
    "best_extra",
    "best_values",
    "cells",
    "depth_scores",
    "expected_drafts",
    "find_entries",
    "gain_at",
    "ladder_values",
    "lay_codes",
    "learn_bins",
    "learn_depths",
    "learn_offsets",
    "level_curve",
    "level_scores",
    "level_table",
    "net_values",
    "proposal_counts",
    "read_bins",
    "read_drafts",
    "recompile",
    "round_counts",
    "score_trials",
    "waiting_curve",
    "whole_terms",
]


def recompile() -> None:
    """Compile everything anew, whatever is kept on disk, and keep that instead. Takes some seconds."""
    modules = arithmetic, learning, reading, search
    for part in (part for module in modules for part in vars(module).values()):
        if extending.is_jitted(part):
            # `Dispatcher.recompile` would keep it under a signature that is not looked for.
            vars(part)["_cache"].flush()
    for module in (*modules, sys.modules[__name__]):
        importlib.reload(module)
