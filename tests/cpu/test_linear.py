"""Products of the CPU kernels against plain ones."""

import pytest
import torch

from lightspec_lightllm.cpu import linear
from lightspec_lightllm.cpu.linear import LinearWeights, has_bfloat16_tiles, make_linear

KINDS: tuple[LinearWeights, ...] = ("float16", "float32", "bfloat16")
ROUNDING = {"float16": 2**-11, "float32": 2**-20, "bfloat16": 2**-7}
"""Relative, of a product with weights, activations and result in that format; sums are in float32."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 3, 16, 40])
def test_a_product_is_right_to_the_rounding_of_its_format(kind: LinearWeights, rows: int) -> None:
    torch.manual_seed(rows)
    weight, x = torch.randn(48, 32), torch.randn(rows, 32)
    found = make_linear(weight, kind)(x)
    exact = x.double() @ weight.double().T
    allowed = ROUNDING[kind] * (x.double().abs() @ weight.double().abs().T)
    assert found.dtype == torch.float32
    assert bool(((found - exact).abs() <= allowed).all())


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_packed_kernel_the_plain_product_of_the_same_weights_serves(
    kind: LinearWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(48, 32), torch.randn(3, 32)
    expected = make_linear(weight, kind)(x)
    for packer in ("_pack_half", "_pack_onednn"):
        monkeypatch.setattr(linear, packer, lambda _: None)
    found = make_linear(weight, kind)(x)
    torch.testing.assert_close(found, expected, rtol=2 * ROUNDING[kind], atol=0.05 if kind == "bfloat16" else 1e-4)


def test_a_torch_that_cannot_say_has_no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_bfloat16_tiles() in {True, False}
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
    assert has_bfloat16_tiles() is False
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert has_bfloat16_tiles() is False
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert has_bfloat16_tiles() is True


def test_a_bfloat16_product_depends_on_its_row_alone() -> None:
    """Bit for bit, whatever other rows there are and however many: sums that are rounded to 8 bits would tell."""
    torch.manual_seed(0)
    product = linear._pack_bfloat(torch.randn(72, 40))
    if product is None:
        pytest.skip("this torch has no oneDNN")
    x = torch.randn(100, 40)
    whole = product(x)
    for rows in (1, 2, 15, 16, 17, 33, 64):
        chosen = torch.randperm(100)[:rows]
        assert torch.equal(product(x[chosen]), whole[chosen])
