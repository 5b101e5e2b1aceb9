"""Arithmetic of several loops."""

from __future__ import annotations

import math

from lightspec_lightllm.planner.loops.compiled.types import helper


@helper
def sigmoid(log_odds):
    """Probability of log-odds."""
    return 1.0 / (1.0 + math.exp(-log_odds))
