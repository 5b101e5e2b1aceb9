"""The vocabulary, and the cycle that ``cycle`` targets go through."""

import math

import torch

VOCAB_SIZE = 128
NUM_SPECIAL = 3
"""Ids 0, 1 and 2 (unknown, begin, end of text) come in no cycle, so no text of a ``cycle`` target ends by itself."""


def successors(seed: int = 11) -> torch.Tensor:
    """int64[VOCAB_SIZE]: the token after each; one cycle through all but the special ones, which lead into it."""
    order = torch.randperm(VOCAB_SIZE - NUM_SPECIAL, generator=torch.Generator().manual_seed(seed)) + NUM_SPECIAL
    after = torch.empty(VOCAB_SIZE, dtype=torch.int64)
    after[order] = order.roll(-1)
    after[:NUM_SPECIAL] = order[0]
    return after


def cycle_text(last: int, length: int) -> list[int]:
    """The ``length`` tokens that follow ``last``."""
    after, text = successors(), [last]
    for _ in range(length):
        text.append(int(after[text[-1]]))
    return text[1:]


def embeddings(hidden_size: int, seed: int = 3) -> torch.Tensor:
    """float32[VOCAB_SIZE, hidden_size]: nearly orthogonal rows of norm ``sqrt(hidden_size)``."""
    rows = torch.randn(VOCAB_SIZE, hidden_size, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(rows, dim=1) * math.sqrt(hidden_size)


def cycle_head(embedded: torch.Tensor) -> torch.Tensor:
    """float32[VOCAB_SIZE, hidden_size]: an output layer whose largest logit is the successor's.

    A special token has the same successor as another one; its row there would clash and is left out.
    """
    head = torch.zeros_like(embedded)
    after = successors()
    head[after[NUM_SPECIAL:]] = embedded[NUM_SPECIAL:]
    head[after[0]] += embedded[:NUM_SPECIAL].sum(0)
    return head / math.sqrt(embedded.shape[1])
