import numpy as np
import pytest

from lightspec_lightllm.engine import SamplingParams
from lightspec_lightllm.engine.sampling import choose, distribution, sample_rows, uniform

LOGITS = np.random.default_rng(0).normal(size=(6, 50)).astype(np.float32) * 2


def test_temperature_shapes_the_distribution() -> None:
    expected = np.exp(LOGITS[0].astype(np.float64) / 0.7)
    np.testing.assert_allclose(distribution(LOGITS[0], SamplingParams(temperature=0.7)), expected / expected.sum())


def test_top_k_keeps_the_k_likeliest_tokens() -> None:
    kept = distribution(LOGITS[0], SamplingParams(temperature=1.0, top_k=5))
    assert set(np.flatnonzero(kept)) == set(np.argsort(LOGITS[0])[-5:])
    assert kept.sum() == pytest.approx(1.0)
    assert np.count_nonzero(distribution(LOGITS[0], SamplingParams(temperature=1.0, top_k=500))) == 50


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    full = distribution(LOGITS[0], SamplingParams(temperature=1.0))
    kept = np.flatnonzero(distribution(LOGITS[0], SamplingParams(temperature=1.0, top_p=0.8)))
    assert full[kept].sum() >= 0.8
    assert full[kept].sum() - full[kept].min() < 0.8
    assert full[kept].min() > np.delete(full, kept).max()


def test_a_draw_selects_by_the_distribution_in_token_order() -> None:
    params = SamplingParams(temperature=1.0, top_k=8)
    expected = distribution(LOGITS[0], params)
    draws = (np.arange(20000) + 0.5) / 20000
    chosen = np.bincount([choose(LOGITS[0], params, float(draw)) for draw in draws[::10]], minlength=50) / 2000
    np.testing.assert_allclose(chosen, expected, atol=1.1e-3)
    for draw in (0.0, 1.0 - 2.0**-53):
        assert expected[choose(LOGITS[0], params, draw)] > 0.0


def test_draws_are_uniform_and_depend_on_seed_and_position_alone() -> None:
    params = SamplingParams(temperature=1.0, seed=3)
    draws = np.array([uniform(params, 0, position) for position in range(4000)])
    assert len(set(draws)) == 4000
    counts = np.histogram(draws, bins=20, range=(0.0, 1.0))[0]
    assert ((counts - 200) ** 2 / 200).sum() < 45.0  # chi-square, 19 degrees of freedom, p < 0.001
    assert uniform(params, 99, 17) == draws[17]
    unseeded = SamplingParams(temperature=1.0)
    assert uniform(unseeded, 3, 17) != draws[17]
    assert uniform(unseeded, 3, 17) == uniform(unseeded, 3, 17)
    assert uniform(unseeded, 4, 17) != uniform(unseeded, 3, 17)
    assert 0.0 <= uniform(SamplingParams(temperature=1.0, seed=-1), 0, 0) < 1.0


def test_rows_follow_their_own_requests_parameters() -> None:
    greedy, hot = SamplingParams(), SamplingParams(temperature=1.5, seed=4)
    tokens = sample_rows(LOGITS, [greedy, hot, greedy], [0, 1, 2], [10, 20, 30], [2, 3, 1])
    np.testing.assert_array_equal(tokens[[0, 1, 5]], LOGITS.argmax(axis=1)[[0, 1, 5]])
    for step in range(3):
        alone = sample_rows(LOGITS[2 + step : 3 + step], [hot], [1], [20 + step], [1])
        assert tokens[2 + step] == alone[0]
