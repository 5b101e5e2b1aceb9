"""The likeliest token as torch.argmax has it, and the log probability as log_softmax does."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch

# A lane without a logit computes inf - inf and drops it; only the interpreter says so.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("num_rows", "vocab"), [(1, 1), (3, 7), (2, 4096), (2, 12345)])
def test_token_and_log_probability(
    operations: ModuleType, device: str, dtype: torch.dtype, num_rows: int, vocab: int
) -> None:
    # Half-precision logits tie often, within a lane and across lanes.
    logits = (4 * torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(vocab))).to(dtype)
    token, log_prob = operations.draft_scores(logits.to(device))
    assert token.dtype == torch.int64
    assert log_prob.dtype == torch.float32
    assert token.cpu().tolist() == logits.argmax(dim=1).tolist()
    expected = logits.double().log_softmax(dim=1).max(dim=1).values
    torch.testing.assert_close(log_prob.cpu().double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tied", [[3, 9000], [4096, 4097], [0, 4096, 8192], [5000, 5001, 904]])
def test_of_equal_logits_the_lowest_token_wins(operations: ModuleType, device: str, tied: list[int]) -> None:
    logits = torch.randn(1, 9001, generator=torch.Generator().manual_seed(5))
    logits[0, tied] = 50.0
    token, log_prob = operations.draft_scores(logits.to(device))
    assert token.tolist() == [min(tied)]
    assert log_prob.item() == pytest.approx(-math.log(len(tied)), abs=1e-5)


def test_what_is_not_a_number_counts_as_impossible(operations: ModuleType, device: str) -> None:
    logits = torch.full((4, 5000), -math.inf)
    logits[1, 4500] = -3.0
    logits[2] = math.nan
    logits[3, 10:12] = torch.tensor([math.nan, 2.0])
    token, log_prob = operations.draft_scores(logits.to(device))
    assert token.tolist() == [0, 4500, 0, 11]
    assert log_prob.tolist() == [-math.inf, 0.0, -math.inf, 0.0]


def test_transposed_logits_are_read_by_their_strides(operations: ModuleType, device: str) -> None:
    logits = torch.randn(33, 2, generator=torch.Generator().manual_seed(6)).to(device)
    token, _ = operations.draft_scores(logits.T)
    assert token.tolist() == logits.argmax(dim=0).tolist()
