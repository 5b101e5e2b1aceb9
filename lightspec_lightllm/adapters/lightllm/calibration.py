"""What drafters are sure of, calibrated by what became of their drafts, where rows are selected: on the device."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import logsigmoid

from lightspec_lightllm.planner.dspark import TemperatureScale
from lightspec_lightllm.planner.intake import Outcome
from lightspec_lightllm.planner.types import FloatArray, IntArray

LEAST = 1e-6
"""Confidences are taken as at least this far from 0 and 1."""


class Calibration:
    """One temperature per depth, learned as `TemperatureScale` does: a confidence c of draft j means
    ``sigmoid(logit(c) / t_j)``.

    Without it a drafter that is too sure of its later drafts would have them verified in place of others' first ones.
    Ranks learn from the same rounds, so their temperatures are the same.
    """

    def __init__(self, max_draft_steps: int, device: str = "cuda") -> None:
        self._scale = TemperatureScale(max_draft_steps)
        self._temperature = torch.ones(max_draft_steps, dtype=torch.float32, device=device)
        self._on_device = np.ones(max_draft_steps)

    def scores(self, log_probs: torch.Tensor) -> torch.Tensor:
        """float32[N, d]: log-probability that a draft and all before it are accepted, of the drafter's own
        log-probabilities float32[N, d]."""
        sure = log_probs.exp().clamp(LEAST, 1 - LEAST)
        log_odds = torch.logit(sure) / self._temperature[: log_probs.shape[1]]
        return logsigmoid(log_odds).cumsum(dim=1)

    def learn(self, confidence: FloatArray, proposed: IntArray, verified: IntArray, accepted: IntArray) -> None:
        """Take in a round, on the stream of the rounds.

        Args:
            confidence: float64[N, K], the drafter's probabilities of the drafts that waited.
            proposed, verified, accepted: int64[N], drafts that waited, those that had a row, and accept lengths.
        """
        self._scale.learn(Outcome(verified, accepted, proposed, confidence, None), confidence)
        for depth in np.flatnonzero(self._scale.temperature != self._on_device).tolist():
            self._temperature[depth].fill_(float(self._scale.temperature[depth]))
        self._on_device = self._scale.temperature
