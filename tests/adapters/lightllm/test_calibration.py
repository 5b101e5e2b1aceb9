"""What a drafter is sure of, and what it means, where rows are selected."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lightspec_lightllm.adapters.lightllm.calibration import Calibration

SURE, STEPS, REQUESTS = 0.9, 3, 32


def after_rounds(accepted: list[int], rounds: int = 40) -> Calibration:
    """Drafts that are always equally sure, of requests that accept so many tokens by turns."""
    calibration = Calibration(STEPS, device="cpu")
    lengths = np.resize(np.array(accepted), REQUESTS)
    drafts = np.full(REQUESTS, STEPS)
    for _ in range(rounds):
        calibration.learn(np.full((REQUESTS, STEPS), SURE), drafts, drafts, lengths)
    return calibration


def probabilities(calibration: Calibration, sure: float = SURE) -> list[float]:
    scores = calibration.scores(torch.full((1, STEPS), sure).log())
    return scores[0].exp().tolist()


def test_confidences_are_taken_as_told_before_anything_is_known() -> None:
    assert probabilities(after_rounds([1], rounds=0)) == pytest.approx([0.9, 0.81, 0.729], rel=1e-4)


def test_a_depth_that_is_too_sure_is_believed_less_and_others_are_not() -> None:
    first, second, third = probabilities(after_rounds([2] * 6 + [4] * 4))
    assert first > 0.97, "a first draft that was always accepted"
    assert second / first == pytest.approx(0.4, abs=0.15)
    assert third / second > 0.97


def test_scores_fall_along_a_draft_and_order_equally_deep_drafts_as_the_drafter_does() -> None:
    calibration = after_rounds([2] * 6 + [4] * 4)
    told = torch.tensor([[0.99, 0.5, 0.9], [0.7, 0.4, 0.2]]).log()
    scores = calibration.scores(told)
    assert (scores[:, 1:] <= scores[:, :-1]).all()
    assert (scores[0] > scores[1]).all()


@pytest.mark.parametrize("told", [0.0, 1.0])
def test_certainty_has_a_finite_score(told: float) -> None:
    assert torch.isfinite(after_rounds([4]).scores(torch.full((1, STEPS), told).log())).all()
