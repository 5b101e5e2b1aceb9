"""Choosing tokens. A draw depends on (seed, position, logits) alone, so batching and speculation cannot change it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightspec_lightllm.engine.options import SamplingParams

_OWN_SEED, _REQUEST_SEED = 0, 1  # second key word: a seed of 3 is another stream than request 3 without a seed
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the target held a token: natural logarithms of the softmax of its logits, before any temperature.

    token    the token
    logprob  its own
    rank     1 + how many tokens are likelier
    top      the likeliest tokens with theirs, likeliest first
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


def token_logprob(logits: npt.NDArray[np.float32], token: int, num_top: int) -> TokenLogprob:
    """Of a row's logits [vocab], with the ``num_top`` likeliest tokens."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    likeliest = np.argpartition(-scores, min(num_top, scores.size - 1))[:num_top] if num_top else np.zeros(0, int)
    ranked = sorted(likeliest.tolist(), key=lambda other: (-scores[other], other))
    top = tuple((other, float(scores[other])) for other in ranked)
    return TokenLogprob(token, float(scores[token]), 1 + int(np.count_nonzero(scores > scores[token])), top)


def noise(params: SamplingParams, request_id: int, position: int, size: int) -> npt.NDArray[np.float64]:
    """Uniform draws in (0, 1) that decide the token at `position`, one for each of `size` tokens."""
    key = [request_id & _WORD, _REQUEST_SEED] if params.seed is None else [params.seed & _WORD, _OWN_SEED]
    # The position is the counter's second word: the first one counts the draws of this position.
    counter = np.array([0, position, 0, 0], dtype=np.uint64)
    words = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=counter).random_raw(size)
    draws: npt.NDArray[np.float64] = (np.right_shift(words, np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return draws


def distribution(logits: npt.NDArray[np.float32], params: SamplingParams) -> npt.NDArray[np.float64]:
    """Probabilities [vocab] after temperature, top-k and top-p."""
    scores = logits.astype(np.float64) / params.temperature
    if 0 < params.top_k < scores.size:
        scores[scores < np.partition(scores, -params.top_k)[-params.top_k]] = -np.inf
    weights: npt.NDArray[np.float64] = np.exp(scores - scores.max())
    weights /= weights.sum()
    if params.top_p < 1.0:
        # The smallest set of likeliest tokens that reaches top_p; tokens as likely as its last one stay.
        ranked = np.sort(weights[weights > 0.0])[::-1]
        last = min(int(np.searchsorted(np.cumsum(ranked), params.top_p)), ranked.size - 1)
        weights[weights < ranked[last]] = 0.0
        weights /= weights.sum()
    return weights


def choose(logits: npt.NDArray[np.float32], params: SamplingParams, draws: npt.NDArray[np.float64]) -> int:
    """The winner of an exponential race: token i arrives after -log(draws[i]) / p_i, the first one with chance p_i.

    A small change of the logits changes the winner only where two tokens arrive at almost the same time. Against that,
    a single draw on a cumulative distribution lies, in a large vocabulary, among many unlikely tokens that any change
    of the sums before them swaps.
    """
    weights = distribution(logits, params)
    tokens = np.flatnonzero(weights)
    return int(tokens[np.argmin(-np.log(draws[tokens]) / weights[tokens])])


def sample_rows(
    logits: npt.NDArray[np.float32],
    params: Sequence[SamplingParams],
    request_ids: Sequence[int],
    positions: Sequence[int],
    rows: Sequence[int],
) -> npt.NDArray[np.int64]:
    """Tokens of all rows, request-major: request i has rows[i] rows, its first decides the token at positions[i]."""
    tokens: npt.NDArray[np.int64] = logits.argmax(axis=1).astype(np.int64)
    row = 0
    for own, request_id, position, count in zip(params, request_ids, positions, rows, strict=True):
        if not own.greedy:
            for step in range(count):
                draws = noise(own, request_id, position + step, logits.shape[1])
                tokens[row + step] = choose(logits[row + step], own, draws)
        row += count
    return tokens
