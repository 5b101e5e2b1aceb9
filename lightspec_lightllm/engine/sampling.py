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


def uniform(params: SamplingParams, request_id: int, position: int) -> float:
    """The uniform draw in [0, 1) that decides the token at `position`."""
    key = [request_id & _WORD, _REQUEST_SEED] if params.seed is None else [params.seed & _WORD, _OWN_SEED]
    word = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=position).random_raw()
    return float((int(word) >> 11) * 2.0**-53)


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


def choose(logits: npt.NDArray[np.float32], params: SamplingParams, draw: float) -> int:
    """The token a draw selects: inverse CDF in token order, which small changes of logits move only a little."""
    cumulative = np.cumsum(distribution(logits, params))
    token = int(np.searchsorted(cumulative, draw * cumulative[-1], side="right"))
    return min(token, int(np.searchsorted(cumulative, cumulative[-1])))


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
                draw = uniform(own, request_id, position + step)
                tokens[row + step] = choose(logits[row + step], own, draw)
        row += count
    return tokens
