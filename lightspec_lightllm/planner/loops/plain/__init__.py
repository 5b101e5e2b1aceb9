"""The inner loops in numpy: what `compiled` must equal bit for bit (shapes and meaning: `interface`).

Sums are from first to last (`in_order`), not numpy's own, whose order is its own affair; exponentials and logarithms
are the C library's (`exponential`), as compiled code calls them, not numpy's, which round otherwise.
"""

from __future__ import annotations

from lightspec_lightllm.planner.loops.plain.learning import (
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
from lightspec_lightllm.planner.loops.plain.reading import (
    are_probabilities,
    cells,
    lay_codes,
    proposal_counts,
    read_drafts,
    round_counts,
    score_trials,
    whole_terms,
)
from lightspec_lightllm.planner.loops.plain.search import (
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
    "round_counts",
    "score_trials",
    "waiting_curve",
    "whole_terms",
]
