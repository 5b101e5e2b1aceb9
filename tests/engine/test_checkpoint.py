import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lightspec_lightllm.engine import checkpoint, load_model
from lightspec_lightllm.engine.checkpoint import open_checkpoint
from lightspec_lightllm.errors import ModelError
from tests.engine.tiny_llama import CONFIG, engine_tensors, random_weights, write_tiny_gguf


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTSPEC_CACHE", str(tmp_path / "cache"))


def test_converted_tensors_are_the_files_exactly(tmp_path: Path) -> None:
    converted = open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf"))
    for name, expected in engine_tensors(CONFIG, random_weights(CONFIG)).items():
        np.testing.assert_array_equal(converted.tensor(name), expected.numpy())


def test_a_second_start_does_not_read_the_gguf_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    steps: list[tuple[int, int]] = []
    first = open_checkpoint(path, lambda _, done, total: steps.append((done, total)))
    assert steps[0] == (0, 0)
    assert steps[-1][0] == steps[-1][1] > 0
    monkeypatch.setattr(checkpoint, "convert", None)
    second = open_checkpoint(path)
    assert second.config == first.config
    assert second.tokenizer == first.tokenizer


def test_a_changed_file_is_converted_anew(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    before = open_checkpoint(write_tiny_gguf(path, seed=0)).tensor("embedding")
    after = open_checkpoint(write_tiny_gguf(path, seed=1)).tensor("embedding")
    assert not np.array_equal(before, after)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model file at .*none\.gguf"):
        load_model(tmp_path / "none.gguf")


@pytest.mark.parametrize("kept", [0, 3, 40, 3000, -100])
def test_a_truncated_file_is_one_clear_line(tmp_path: Path, kept: int) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(ModelError, match="not a GGUF file"):
        load_model(path)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "other.gguf", architecture="qwen2")
    with pytest.raises(ModelError, match="architecture 'qwen2'"):
        load_model(path)


def test_a_tensor_this_engine_would_ignore_is_refused(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "scaled.gguf", extra_tensor="rope_freqs.weight")
    with pytest.raises(ModelError, match=r"rope_freqs\.weight"):
        load_model(path)


def test_a_tensor_of_the_wrong_shape_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.engine.tiny_llama.pair_rows", lambda weight, _: weight[:8])
    with pytest.raises(ModelError, match=r"layers\.0\.qkv of shape"):
        load_model(write_tiny_gguf(tmp_path / "narrow.gguf", replace(CONFIG, num_kv_heads=1)))


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 3), (2, 4), (4, 0), (0, 0)])
def test_heads_that_are_no_multiple_of_key_heads_are_refused(heads: int, key_heads: int) -> None:
    metadata = {
        "general.architecture": "llama",
        "llama.embedding_length": 32,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": key_heads,
    }
    with pytest.raises(ModelError, match=rf"m\.gguf: {heads} attention heads cannot share {key_heads} key heads"):
        checkpoint._config_of(Path("m.gguf"), metadata, {}, "")


@pytest.mark.parametrize(("hidden", "heads", "dim"), [(36, 4, 9), (4, 4, 1), (3, 4, 0)])
def test_heads_without_rotary_pairs_are_refused(hidden: int, heads: int, dim: int) -> None:
    metadata = {
        "general.architecture": "llama",
        "llama.embedding_length": hidden,
        "llama.attention.head_count": heads,
    }
    with pytest.raises(ModelError, match=rf"m\.gguf: heads of {dim} numbers have no rotary pairs"):
        checkpoint._config_of(Path("m.gguf"), metadata, {}, "")


def test_a_file_with_uneven_heads_is_refused_even_where_it_was_converted_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_gguf(tmp_path / "uneven.gguf", replace(CONFIG, num_kv_heads=3))
    with pytest.raises(ModelError, match=r"uneven\.gguf: 4 attention heads cannot share 3 key heads"):
        load_model(path)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_check_heads", lambda *_: None)
        open_checkpoint(path)
    with pytest.raises(ModelError, match="4 attention heads cannot share 3 key heads"):
        load_model(path)


def test_damage_to_the_converted_form_is_found(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    open_checkpoint(path)
    (folder,) = (tmp_path / "cache" / "models").iterdir()
    data = folder / "tensors.bin"
    data.write_bytes(data.read_bytes()[:-4])
    with pytest.raises(ModelError, match="truncated"):
        load_model(path)
    stored = json.loads((folder / "metadata.json").read_text())
    del stored["config"]
    (folder / "metadata.json").write_text(json.dumps(stored))
    with pytest.raises(ModelError, match="damaged"):
        load_model(path)
