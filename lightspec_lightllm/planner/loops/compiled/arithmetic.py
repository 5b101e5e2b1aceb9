"""Arithmetic of several loops."""

from __future__ import annotations

import math

from numba import njit


@njit(cache=True)
def sigmoid(log_odds):
    """Probability of log-odds."""
    return 1.0 / (1.0 + math.exp(-log_odds))
