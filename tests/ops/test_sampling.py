"""Seeded noise is Philox and nothing else; masks hit what they name."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch

from lightspec_lightllm.ops import reference


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # The known answers that the authors' Random123 library ships for philox4x32-10.
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    k0, k1 = (torch.tensor([word]) for word in key)
    assert tuple(int(word) for word in reference.philox((c0, c1, c2, c3), (k0, k1))) == expected


def noise(operations: ModuleType, device: str, seeds: list[int], positions: list[int], vocab: int) -> torch.Tensor:
    out = torch.full((len(seeds), vocab), -1.0, device=device)
    operations.exponential_noise(torch.tensor(seeds, device=device), torch.tensor(positions, device=device), vocab, out)
    return out.cpu()


def test_the_noise_is_the_words_of_seed_position_and_token(operations: ModuleType, device: str) -> None:
    seeds, positions, vocab = [0, 5, (1 << 62) + 7, 5], [0, 3, (1 << 35) + 1, 4], 2053
    drawn = noise(operations, device, seeds, positions, vocab)
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        for token in (0, 1, 2, 3, 4, 1021, 2051, 2052):
            counter = [torch.tensor([word]) for word in (token // 4, position & 0xFFFFFFFF, position >> 32, 0)]
            key = (torch.tensor([seed & 0xFFFFFFFF]), torch.tensor([seed >> 32]))
            word = int(reference.philox((counter[0], counter[1], counter[2], counter[3]), key)[token % 4])
            assert drawn[row, token].item() == pytest.approx(-math.log(((word >> 9) + 0.5) / 2**23), rel=1e-6)


def test_a_draw_depends_on_neither_batch_nor_row(operations: ModuleType, device: str) -> None:
    together = noise(operations, device, [11, 12, 11], [40, 40, 41], 301)
    alone = torch.cat([noise(operations, device, [s], [p], 301) for s, p in ((11, 40), (12, 40), (11, 41))])
    assert torch.equal(together, alone)


def test_rows_without_a_seed_are_left_alone(operations: ModuleType, device: str) -> None:
    drawn = noise(operations, device, [-1, 3, -9], [5, 5, 5], 10)
    assert (drawn[[0, 2]] == -1.0).all()
    assert (drawn[1] > 0.0).all()


def test_no_draw_is_zero_or_infinite_even_at_the_extreme_words() -> None:
    u = torch.tensor([(0.5 + word) * 2.0**-23 for word in (0, 1, 2**23 - 2, 2**23 - 1)])
    draws = -u.log()
    assert (draws > 0).all()
    assert draws.isfinite().all()
    assert len(set(u.tolist())) == 4


def test_argmax_of_probabilities_over_noise_samples_the_distribution(operations: ModuleType, device: str) -> None:
    probs = torch.tensor([0.5, 0.25, 0.125, 0.1, 0.02, 0.005, 0.0])
    rows, groups = 20, 300
    draws = rows * groups
    drawn = noise(operations, device, [77] * rows, list(range(rows)), groups * len(probs)).view(draws, len(probs))
    counts = torch.bincount((probs / drawn).argmax(dim=1), minlength=len(probs))
    assert counts[-1] == 0
    chi_square = float(((counts[:-1] - draws * probs[:-1]) ** 2 / (draws * probs[:-1])).sum())
    assert chi_square < 20.5  # 5 degrees of freedom: 99.9 %
    assert drawn.mean().item() == pytest.approx(1.0, abs=0.02)
    assert drawn.var().item() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_invalid_tokens_of_each_rows_request_are_masked(
    operations: ModuleType, device: str, dtype: torch.dtype
) -> None:
    table = torch.full((3, 200), -1, dtype=torch.int32)
    table[0, :2] = torch.tensor([1, 5])
    table[2, :150] = torch.arange(150)
    table[2, 199] = 700  # of another vocabulary
    logits = torch.randn(4, 300, dtype=dtype, generator=torch.Generator().manual_seed(1))
    requests = torch.tensor([2, 0, 1, 2], dtype=torch.int32)
    masked = logits.to(device)
    operations.mask_invalid_tokens(masked, requests.to(device), table.to(device))
    for row, request in enumerate(requests.tolist()):
        invalid = [token for token in table[request].tolist() if 0 <= token < 300]
        expected = logits[row].clone()
        expected[invalid] = -math.inf
        assert torch.equal(masked[row].cpu(), expected)
