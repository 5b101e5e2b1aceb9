"""The scales of what is known of acceptances: information, and levels of requests."""

from __future__ import annotations

import math

import numpy as np

from lightspec_lightllm.planner.types import FloatArray

INFO_PER_TRIAL = 0.2
"""Fisher information on the log-odds of a trial at an acceptance of 0.28 or 0.72."""

LEVELS = 17
"""Request offsets are read at this many levels, so that tables replace per-request arithmetic."""

LEVEL_STEP = 0.25
NEUTRAL_LEVEL = LEVELS // 2
LEVEL_OFFSETS: FloatArray = LEVEL_STEP * (np.arange(LEVELS) - NEUTRAL_LEVEL).astype(np.float64)

LEVEL_AGAINST: FloatArray = np.array([math.exp(-offset) for offset in LEVEL_OFFSETS.tolist()])
"""The factor of odds against an acceptance, by level."""

LEAST_SPREAD = 0.02
"""A trial at acceptance q informs by q (1 - q), taken as q times at least this: certainty must stay corrigible."""

STALE = 0.5
"""How fast what is known of a request or a bin that is not tried is forgotten, relative to one with as many trials as
most have: a run of bad luck must not end its trials for good."""

MOST_LOG_ODDS = 8.0
"""A term that is learned stays between this and its negative."""

SHIFT_PRIOR = 20.0
"""Information behind a confidence that needs no shift."""

SCALE_PRIOR = 150.0
"""Information, times squared log-odds, behind a confidence that needs no scaling."""

SPREAD_MEMORY = 64.0
"""Information, or requests, after which what was seen of the spread of requests counts half."""


def information_of(acceptance: FloatArray) -> FloatArray:
    """Fisher information of one trial at each acceptance."""
    return acceptance * np.maximum(1.0 - acceptance, LEAST_SPREAD)
