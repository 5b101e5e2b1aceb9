"""The file the head ships in."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from lightspec_lightllm.drafters.checkpoint import ARRAYS, SHIPPED, load_weights
from lightspec_lightllm.errors import ModelError
from tests.drafters.requests import tiny_head


def test_a_checkpoint_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    weights = tiny_head().weights
    weights.save(tmp_path / "head.npz")
    again = load_weights(tmp_path / "head.npz")
    assert again.geometry == weights.geometry
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(again, name), getattr(weights, name))


def test_shapes_that_do_not_fit_are_refused() -> None:
    weights = tiny_head().weights
    with pytest.raises(ModelError, match=r"expected down of shape \(24, 39\)|expected gate_up of shape \(78, 24\)"):
        dataclasses.replace(weights, down=weights.down[:, :-1])


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "head.npz"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="cannot be read"):
        load_weights(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="found no file"):
        load_weights(tmp_path / "none.npz")


def test_the_shipped_head_is_complete_and_small() -> None:
    weights = load_weights()
    assert weights.hidden_size == 576
    assert weights.geometry.num_heads * weights.head_dim == 576
    assert (np.diff(weights.draft_vocab) > 0).all()
    assert SHIPPED.stat().st_size < 25e6
    for name in ARRAYS:
        assert np.isfinite(getattr(weights, name)).all()
