"""Arithmetic that compiled code repeats bit for bit."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from lightspec_lightllm.planner.types import FloatArray, IntArray


def in_order(values: FloatArray) -> float:
    """The sum from first to last."""
    return float(np.add.accumulate(values)[-1]) if len(values) else 0.0


def exponential(values: FloatArray) -> FloatArray:
    """The C library's exponential."""
    return np.array(list(map(math.exp, values.tolist())))


def sums(keys: IntArray, values: FloatArray, size: int) -> FloatArray:
    """float[size], the sum of the values of each key."""
    if not len(keys):  # numpy then counts in whole numbers
        return np.zeros(size)
    return cast(FloatArray, np.bincount(keys, weights=values, minlength=size))


def summed(keys: IntArray, residual: FloatArray, information: FloatArray, size: int) -> FloatArray:
    """float[2, size]: residuals and information, by key."""
    return np.stack((sums(keys, residual, size), sums(keys, information, size)))


def sigmoid(log_odds: FloatArray) -> FloatArray:
    """Probability of log-odds."""
    return 1.0 / (1.0 + exponential(-log_odds))


def curve_of(count: FloatArray | IntArray, value: FloatArray) -> FloatArray:
    """float[2, M + 1]: rows and gains of ``count`` rows of each survival, highest survival first."""
    curve = np.zeros((2, len(count) + 1))
    curve[0, 1:] = count  # first: to change type while accumulating is slow
    np.multiply(curve[0, 1:], value, out=curve[1, 1:])
    return np.add.accumulate(curve, axis=1, out=curve)
