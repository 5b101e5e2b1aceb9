"""The text of simulated requests: how hard each token is to draft, and whether a draft of it is right.

Everything is a function of the seed, the request and the position of the token, never of what was drafted or verified:
all arms of a comparison are served the same text.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from lightspec_lightllm.planner.types import FloatArray, IntArray
from lightspec_lightllm.simulate.scenario import RequestClass

CHUNK = 256
"""Positions that are drawn at a time."""

RING = 2 * CHUNK
"""Positions that are held per request."""

AHEAD = 64
"""Positions past a request's own that can always be read."""

_GOLDEN = (5**0.5 - 1) / 2
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)


class Text:
    """Streams of tokens, one per slot; a slot holds one request at a time.

    Attributes:
        ease: float[slots], z_request: standard normal, the same for all tokens of a request.
        kind: float[slots] in (0, 1), picks the request's class from a segment's mix.
    """

    def __init__(self, seed: int, correlation: float, slots: int) -> None:
        self._seed = seed
        self._filter, self._carry = _ar1(correlation)
        self._shift = np.random.default_rng((seed, 1)).random()
        self.ease = np.zeros(slots)
        self.kind = np.zeros(slots)
        self._end = np.zeros(slots, dtype=np.int64)
        self._noise = np.zeros((slots, RING))
        self._luck = np.zeros((slots, RING))
        self._view = np.zeros((slots, RING))
        self._rng: list[np.random.Generator | None] = [None] * slots

    def open(self, slot: int, request: int) -> np.random.Generator:
        """Start the text of a request in a slot. Returns the generator of what else the request is made of."""
        self._rng[slot] = rng = np.random.default_rng((self._seed, 2, request))
        self.ease[slot] = rng.standard_normal()
        # Evenly spread over requests: every batch has each class in its share.
        self.kind[slot] = (self._shift + request * _GOLDEN) % 1.0
        self._end[slot] = 0
        self._noise[slot, -1] = rng.standard_normal()
        others = np.random.default_rng((self._seed, 3, request))
        self._write(slot)
        return others

    def _write(self, slot: int) -> None:
        rng = self._rng[slot]
        if rng is None:
            raise IndexError(f"slot {slot} holds no request")
        start = int(self._end[slot]) % RING
        place = slice(start, start + CHUNK)
        last = self._noise[slot, start - 1]
        self._noise[slot, place] = self._filter @ rng.standard_normal(CHUNK) + self._carry * last
        self._luck[slot, place] = rng.random(CHUNK)
        self._view[slot, place] = rng.standard_normal(CHUNK)
        self._end[slot] += CHUNK

    def read(self, slots: IntArray, start: IntArray, length: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The tokens from a position of each request on; positions never go back by more than a chunk.

        Returns:
            float[N, length] each: z_token, luck uniform in (0, 1) (a draft is right if this is below its acceptance),
            and the standard normal error of what the drafter tells of it.
        """
        for slot in slots[start + (length + AHEAD) > self._end[slots]].tolist():
            self._write(slot)
        at = (slots * RING)[:, None] + (start[:, None] + np.arange(length)) % RING
        return self._noise.ravel()[at], self._luck.ravel()[at], self._view.ravel()[at]


@lru_cache(maxsize=8)
def _ar1(correlation: float) -> tuple[FloatArray, FloatArray]:
    """Matrix that makes a chunk of unit-variance AR(1) noise from white noise, and what the value before it adds."""
    lag = np.arange(CHUNK)[:, None] - np.arange(CHUNK)
    powers = np.where(lag >= 0, correlation ** np.maximum(lag, 0), 0.0)
    return np.asarray(np.sqrt(1 - correlation**2) * powers), np.asarray(correlation ** (1.0 + np.arange(CHUNK)))


def levels(kind: RequestClass, depths: int) -> FloatArray:
    """float[K], log-odds of the middle request's middle token at which the mean acceptance is the class's."""
    wanted = np.array([kind.at(depth) for depth in range(depths)])
    deviation = float(np.hypot(kind.spread, kind.noise))
    low, high = np.full(depths, -60.0), np.full(depths, 60.0)
    for _ in range(60):
        middle = 0.5 * (low + high)
        mean = sigmoid(middle[:, None] + deviation * _NODES) @ _WEIGHTS / _WEIGHTS.sum()
        low, high = np.where(mean < wanted, middle, low), np.where(mean < wanted, high, middle)
    return np.asarray(0.5 * (low + high))


def sigmoid(log_odds: FloatArray) -> FloatArray:
    """Probability of log-odds."""
    return np.asarray(1.0 / (1.0 + np.exp(-log_odds)))
