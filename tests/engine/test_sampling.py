import numpy as np
import pytest

from lightspec_lightllm.engine import SamplingParams
from lightspec_lightllm.engine.sampling import choose, distribution, noise, sample_rows

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


def test_a_token_is_chosen_as_often_as_it_is_likely() -> None:
    params = SamplingParams(temperature=1.0, top_k=8, seed=1)
    expected = distribution(LOGITS[0], params)
    chosen = np.bincount([choose(LOGITS[0], params, noise(params, 0, at, 50)) for at in range(20000)], minlength=50)
    likely = expected > 0
    assert chosen[~likely].sum() == 0
    statistic = ((chosen - 20000 * expected)[likely] ** 2 / (20000 * expected[likely])).sum()
    assert statistic < 24.4  # chi-square, 7 degrees of freedom, p < 0.001


def test_rounding_of_logits_hardly_ever_changes_a_choice() -> None:
    """A vocabulary with a long tail, and logits that differ by as much as kernels of different batches do."""
    rng = np.random.default_rng(1)
    params = SamplingParams(temperature=1.0, seed=2)
    changed = 0
    for position in range(300):
        logits = (3.0 * rng.normal(size=20_000)).astype(np.float32)
        other = logits + rng.normal(scale=3e-5, size=20_000).astype(np.float32)
        draws = noise(params, 0, position, 20_000)
        changed += choose(logits, params, draws) != choose(other, params, draws)
    assert changed <= 1


def test_draws_are_uniform_and_depend_on_seed_and_position_alone() -> None:
    params = SamplingParams(temperature=1.0, seed=3)
    draws = np.array([noise(params, 0, position, 40) for position in range(100)])
    assert len(set(draws.ravel())) == 4000
    counts = np.histogram(draws, bins=20, range=(0.0, 1.0))[0]
    assert ((counts - 200) ** 2 / 200).sum() < 45.0  # chi-square, 19 degrees of freedom, p < 0.001
    assert draws.min() > 0.0
    assert draws.max() < 1.0
    np.testing.assert_array_equal(noise(params, 99, 17, 40), draws[17])
    unseeded = SamplingParams(temperature=1.0)
    of_request = [noise(unseeded, number, 17, 40)[0] for number in (3, 3, 4)]
    assert of_request[0] == of_request[1] != of_request[2]
    assert draws[17, 0] not in of_request
    assert noise(SamplingParams(temperature=1.0, seed=-1), 0, 0, 1).shape == (1,)


def test_rows_follow_their_own_requests_parameters() -> None:
    greedy, hot = SamplingParams(), SamplingParams(temperature=1.5, seed=4)
    tokens = sample_rows(LOGITS, [greedy, hot, greedy], [0, 1, 2], [10, 20, 30], [2, 3, 1])
    np.testing.assert_array_equal(tokens[[0, 1, 5]], LOGITS.argmax(axis=1)[[0, 1, 5]])
    for step in range(3):
        alone = sample_rows(LOGITS[2 + step : 3 + step], [hot], [1], [20 + step], [1])
        assert tokens[2 + step] == alone[0]
