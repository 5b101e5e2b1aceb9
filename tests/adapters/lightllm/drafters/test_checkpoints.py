"""Draft folders: every published layout is known, and what is wrong with one is said before anything is loaded."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lightspec_lightllm.adapters.lightllm.drafters.checkpoints import (
    TARGET_FAMILIES,
    Target,
    expected_tensors,
    open_checkpoint,
)
from lightspec_lightllm.adapters.lightllm.drafters.layouts import default_eagle3_points, read_layout
from lightspec_lightllm.cli import main
from lightspec_lightllm.errors import ModelError
from tests.adapters.lightllm.drafters.folders import CONFIGS, DECODER, TARGET, write

FACTS: dict[str, tuple[str, tuple[int, ...], int]] = {
    "common": ("eagle3", (2, 6, 9), 15),
    "common with layers": ("eagle3", (2, 6, 9), 15),
    "deepspec eagle3": ("eagle3", (2, 4, 6, 8, 10), 15),
    "deepspec dspark": ("dspark", (0, 5, 9), 7),
    "deepspec dflash": ("dflash", (2, 5, 9), 7),
    "dflash": ("dflash", (2, 10), 15),
    "speculators eagle3": ("eagle3", (2, 6, 9), 15),
    "speculators dflash": ("dflash", (2, 10), 7),
}


def refusal(folder: Path, target: Target | None = TARGET) -> str:
    with pytest.raises(ModelError) as caught:
        open_checkpoint(folder, target)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_published_layout_is_known_with_its_kind_its_layers_and_its_k(name: str, tmp_path: Path) -> None:
    kind, points, steps = FACTS[name]
    checkpoint = open_checkpoint(write(tmp_path, CONFIGS[name]), TARGET)
    assert checkpoint.layout.kind == kind
    assert checkpoint.capture_points(TARGET) == points
    assert checkpoint.layout.max_draft_steps == steps


def test_eagle3_looks_at_three_layers_unless_told_otherwise() -> None:
    assert default_eagle3_points(32) == (2, 16, 29)
    assert default_eagle3_points(36) == (2, 18, 33)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_tensor_that_is_missing_is_named_unless_the_target_has_it(name: str, tmp_path: Path) -> None:
    layout = read_layout(CONFIGS[name], "config.json")
    shapes = expected_tensors(layout)
    shared = {"embed_tokens.weight"}
    if layout.draft_vocab_size == layout.decoder.vocab_size:
        shared |= {"lm_head.weight"}
    for tensor in shapes:
        write(tmp_path, CONFIGS[name], {other: shapes[other] for other in shapes if other != tensor})
        if tensor in shared:
            open_checkpoint(tmp_path, TARGET)
        else:
            assert f"tensor {tensor} is missing, expected of shape {list(shapes[tensor])}" in refusal(tmp_path)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_tensor_of_another_shape_is_named_with_its_file_and_both_shapes(name: str, tmp_path: Path) -> None:
    shapes = expected_tensors(read_layout(CONFIGS[name], "config.json"))
    for tensor, shape in shapes.items():
        write(tmp_path, CONFIGS[name], {**shapes, tensor: (shape[0] + 1, *shape[1:])})
        problem = refusal(tmp_path)
        assert f"tensor {tensor} in model.safetensors: expected {list(shape)}, got [{shape[0] + 1}" in problem


def test_an_unknown_tensor_is_named_with_its_file_and_what_training_needs_is_not(tmp_path: Path) -> None:
    shapes = expected_tensors(read_layout(CONFIGS["common"], "config.json"))
    training = {"t2d": (128,), "verifier_norm.weight": (64,), "midlayer.self_attn.rotary_emb.inv_freq": (8,)}
    open_checkpoint(write(tmp_path, CONFIGS["common"], {**shapes, **training}), TARGET)
    write(tmp_path, CONFIGS["common"], {**shapes, "midlayer.mlp.extra.weight": (3,)})
    assert "tensor midlayer.mlp.extra.weight in model.safetensors is not part of a Eagle3 eagle3" in refusal(tmp_path)


def test_names_of_the_common_layout_are_understood(tmp_path: Path) -> None:
    shapes = expected_tensors(read_layout(CONFIGS["common"], "config.json"))
    theirs = {f"model.{name.replace('layers.0.', 'midlayer.')}": shape for name, shape in shapes.items()}
    checkpoint = open_checkpoint(write(tmp_path, CONFIGS["common"], theirs), TARGET)
    assert checkpoint.tensors.keys() == shapes.keys()
    assert checkpoint.tensors["layers.0.mlp.up_proj.weight"].name == "model.midlayer.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_size": 32}, "hidden states of size 64, the target's are 32"),
        ({"vocab_size": 96}, "its vocabulary has 128 tokens, the target's 96"),
        ({"num_layers": 16}, "it is for 12 layers, the target has 16"),
        ({"num_layers": 9}, "it reads what enters layer 10, the target's are 0 to 8"),
        ({"model_type": "gemma2"}, "this one is gemma2"),
    ],
)
def test_a_drafter_of_another_target_is_refused_before_its_weights_are_looked_at(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    write(tmp_path, CONFIGS["deepspec eagle3"])
    (tmp_path / "model.safetensors").unlink()
    assert reason in refusal(tmp_path, dataclasses.replace(TARGET, **changes))


def test_a_narrower_drafter_needs_an_embedding_of_its_own(tmp_path: Path) -> None:
    config = {**CONFIGS["common"], "hidden_size": 32, "target_hidden_size": 64}
    shapes = expected_tensors(read_layout(config, "config.json"))
    open_checkpoint(write(tmp_path, config), TARGET)
    del shapes["embed_tokens.weight"]
    assert "embed_tokens.weight is missing, and the target's has another width" in refusal(
        write(tmp_path, config, shapes)
    )


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "got architecture Qwen3ForCausalLM"),
        ({}, "got architecture none"),
        ({"speculators_model_type": "mtp"}, "speculators_model_type 'mtp' is not supported"),
        ({**CONFIGS["common"], "num_hidden_layers": 2}, "expected an Eagle3 drafter of one layer"),
        ({**CONFIGS["common"], "hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({**CONFIGS["common"], "hidden_size": "wide"}, "hidden_size: expected int, got 'wide'"),
        ({**CONFIGS["common"], "intermediate_size": 0}, "intermediate_size: expected at least 1, got 0"),
        (
            {**CONFIGS["common"], "rope_scaling": {"type": "linear", "factor": 2.0}},
            "scaled by 'linear' are not supported",
        ),
        ({**CONFIGS["common"], "norm_output": False}, "expected a norm before the output layer"),
        ({**CONFIGS["dflash"], "dflash_config": {}}, "expected the key mask_token_id"),
        ({**CONFIGS["deepspec dspark"], "markov_head_type": "lstm"}, "expected vanilla, gated or rnn"),
        ({**CONFIGS["deepspec eagle3"], "layer_types": ["sliding_attention"]}, "expected full attention"),
    ],
)
def test_a_configuration_that_cannot_be_served_says_why(config: dict[str, Any], reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    problem = refusal(tmp_path)
    assert reason in problem
    assert str(tmp_path / "config.json") in problem


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, b"\x10\x00\x00\x00\x00\x00\x00\x00not json at all."])
def test_a_damaged_tensor_file_is_named(content: bytes, tmp_path: Path) -> None:
    write(tmp_path, CONFIGS["common"])
    (tmp_path / "model.safetensors").write_bytes(content)
    assert "model.safetensors: not a whole safetensors file" in refusal(tmp_path)


def test_a_folder_without_weights_or_without_a_configuration_is_named(tmp_path: Path) -> None:
    assert "expected a model's configuration" in refusal(tmp_path)
    write(tmp_path, CONFIGS["common"])
    (tmp_path / "model.safetensors").unlink()
    assert "expected *.safetensors or pytorch_model*.bin, found none" in refusal(tmp_path)


def test_two_files_with_one_tensor_are_refused(tmp_path: Path) -> None:
    write(tmp_path, CONFIGS["common"])
    (tmp_path / "other.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes())
    assert "is in model.safetensors and in other.safetensors" in refusal(tmp_path)


def test_pickled_weights_are_read_too_and_nothing_in_them_is_run(tmp_path: Path) -> None:
    write(tmp_path, CONFIGS["common"])
    (tmp_path / "model.safetensors").unlink()
    shapes = expected_tensors(read_layout(CONFIGS["common"], "config.json"))
    values = {name: torch.full(shape, float(place)) for place, (name, shape) in enumerate(shapes.items())}
    values["norm.weight"] = torch.nn.Parameter(values["norm.weight"])
    values["d2t"] = values["d2t"].long()
    torch.save(values, tmp_path / "pytorch_model.bin")
    checkpoint = open_checkpoint(tmp_path, TARGET)
    assert {name: tensor.shape for name, tensor in checkpoint.tensors.items()} == shapes
    torch.save({**values, "norm.weight": tmp_path}, tmp_path / "pytorch_model.bin")
    assert "is no part of a tensor" in refusal(tmp_path)
    torch.save({**values, "norm.weight": 3}, tmp_path / "pytorch_model.bin")
    assert "it holds more than tensors by their names" in refusal(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"nothing of the kind")
    assert "pytorch_model.bin: cannot be read as tensors" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({"rope_theta": 5e5}, (5e5, None)),
        ({"rope_parameters": {"rope_theta": 2e6, "rope_type": "default"}}, (2e6, None)),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            (5e5, {"rope_type": "llama3", "factor": 8.0}),
        ),
    ],
)
def test_rotary_positions_are_those_of_either_way_to_write_them(
    rope: dict[str, Any], expected: tuple[float, dict[str, Any] | None]
) -> None:
    config = {key: value for key, value in CONFIGS["common"].items() if key != "rope_theta"}
    decoder = read_layout({**config, **rope}, "config.json").decoder
    assert (decoder.rope_theta, decoder.rope_scaling) == expected


def test_keys_that_transformers_leaves_out_have_its_defaults() -> None:
    config = {
        **CONFIGS["speculators eagle3"],
        "transformer_layer_config": {"model_type": "qwen3", "num_hidden_layers": 1},
    }
    decoder = read_layout(config, "config.json").decoder
    assert (decoder.hidden_size, decoder.vocab_size, decoder.num_kv_heads, decoder.head_dim) == (4096, 151936, 32, 128)


def test_a_target_is_what_its_configuration_says(tmp_path: Path) -> None:
    text = {"hidden_size": 64, "vocab_size": 128, "num_hidden_layers": 12}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", **text}), encoding="utf-8")
    assert Target.read(tmp_path) == dataclasses.replace(TARGET, folder=tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}), encoding="utf-8")
    with pytest.raises(ModelError, match="expected the key hidden_size"):
        Target.read(tmp_path)


def test_the_doctor_says_what_a_drafter_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--draft", str(write(tmp_path / "one", CONFIGS["deepspec dspark"]))]) == 0
    told = capsys.readouterr().out
    assert "dspark, 2 layers of width 64" in told
    assert "targets of 12 layers, hidden size 64, vocabulary 128" in told
    assert all(family in told for family in TARGET_FAMILIES)
    assert "reads what enters layers 0, 5, 9" in told
    assert "K = 7, the drafts of one block" in told
    assert "512 bytes of KV per token" in told  # 2 layers, keys and values of 4 heads of 16 in 16 bits
    assert "its confidence head" in told
    assert main(["doctor", "--draft", str(write(tmp_path / "two", CONFIGS["common"]))]) == 0
    told = capsys.readouterr().out
    assert "K = 1 to 15" in told
    assert "its own probability of the drafted token" in told
    assert main(["doctor", "--draft", str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith("problem")


def test_drafters_are_examined_without_torch(tmp_path: Path) -> None:
    folder = write(tmp_path, CONFIGS["common"])
    code = (
        "import sys; sys.modules['torch'] = None; from pathlib import Path; "
        "from lightspec_lightllm.adapters.lightllm.drafters.checkpoints import open_checkpoint; "
        f"print(open_checkpoint(Path({str(folder)!r})).weight_elements())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    inner, hidden, heads = DECODER["intermediate_size"], DECODER["hidden_size"], 8 * 16 + 4 * 16
    layer = 2 * hidden * (heads + 4 * 16) + hidden * 128 + 3 * hidden * inner + 3 * hidden
    around = hidden + 3 * hidden * hidden + hidden * (128 + 96) + 96
    assert int(found.stdout) == layer + around
