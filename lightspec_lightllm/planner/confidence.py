"""Confidences as small whole numbers, so that tables replace arithmetic per draft.

A *code* is a confidence in steps of 1/1024. Codes from `NUM_CODES` on, one per depth, are drafts whose confidence is
not known. Arrays of codes are depth by request: what is done along depths is then done for all requests at once.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from lightspec_lightllm.planner.types import FloatArray, IntArray

_RESOLUTION = 1024
NUM_CODES = _RESOLUTION + 1

BIN_CENTRES = np.arange(-3.5, 4.51, 0.5)
"""Log-odds in the middle of each bin of confidences; bins are half a unit wide."""

NUM_BINS = len(BIN_CENTRES)

_GRID = np.minimum(np.arange(NUM_CODES) + 0.5, _RESOLUTION - 0.25) / _RESOLUTION
_LOG_ODDS = np.array(list(map(math.log, (_GRID / (1 - _GRID)).tolist())))  # the C library's: numpy's differ by CPU
BIN_OF_CODE = np.clip(np.rint((_LOG_ODDS - BIN_CENTRES[0]) / 0.5), 0, NUM_BINS - 1).astype(np.int64)


def codes_of(confidence: FloatArray, num_depths: int, *, some_unknown: bool) -> IntArray:
    """int[D, N]: codes of the first D depths of float[N, K] confidences in 0..1, or NaN where ``some_unknown``.

    Codes are within their table whatever is given: the host may write into its buffer after it was checked.
    """
    sure = confidence[:, :num_depths]
    scaled = np.fmin(np.fmax(sure, 0.0), 1.0) * _RESOLUTION
    if some_unknown:
        np.copyto(scaled, NUM_CODES + np.arange(num_depths), where=np.isnan(sure))
    return cast(IntArray, scaled.T.astype(np.int64, order="C"))
