"""A draft folder: its layout, its tensors, and whether it fits a target. Nothing is loaded, torch is not needed.

Tensors have the names of `expected_tensors`, whatever their file calls them: ``midlayer.`` is ``layers.0.``, and a
leading ``model.`` falls away.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightspec_lightllm.adapters.lightllm.drafters.layouts import (
    BlockSettings,
    Eagle3Settings,
    Layout,
    default_eagle3_points,
    read_layout,
)
from lightspec_lightllm.adapters.lightllm.drafters.tensor_files import StoredTensor, list_tensors
from lightspec_lightllm.errors import ModelError

TARGET_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
"""``model_type`` of the targets whose hidden states can be captured as drafters expect them."""

IGNORED = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight")
"""Tensors that only training needs."""

SHARED = ("embed_tokens.weight", "lm_head.weight")
"""Tensors that may be left out; the target's serve then."""

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Target:
    """The served model, as far as a drafter must fit it."""

    folder: Path
    model_type: str
    hidden_size: int
    vocab_size: int
    num_layers: int

    @classmethod
    def read(cls, folder: Path) -> Target:
        """From its ``config.json``. Raises ModelError."""
        content = _read_json(folder / "config.json")
        text = content.get("text_config") or content
        keys = ("hidden_size", "vocab_size", "num_hidden_layers")
        missing = [key for key in keys if not isinstance(text.get(key), int)]
        if missing:
            raise ModelError(f"{folder / 'config.json'}: expected the key {missing[0]}, which is missing")
        return cls(folder, str(content.get("model_type")), *(text[key] for key in keys))


@dataclass(frozen=True, slots=True)
class DraftCheckpoint:
    """A drafter on disk.

    Attributes:
        layout: what its configuration says.
        tensors: by the names of `expected_tensors`.
    """

    folder: Path
    layout: Layout
    tensors: Mapping[str, StoredTensor]

    def capture_points(self, target: Target) -> tuple[int, ...]:
        """Layers of the target whose input the drafter reads, in the order of its projection."""
        points = self.layout.capture_points
        return default_eagle3_points(target.num_layers) if points is None else points

    def kv_elements(self, tp: int = 1) -> int:
        """Numbers of KV that a rank keeps per token."""
        decoder = self.layout.decoder
        return 2 * decoder.num_layers * max(decoder.num_kv_heads // tp, 1) * decoder.head_dim

    def weight_elements(self, tp: int = 1) -> int:
        """Numbers of weights that a rank keeps, those that repeat the target's included: matrices of layers and of
        the vocabulary are split, all others are not."""
        split = ("layers.", *SHARED)
        return sum(
            -(-tensor.num_elements // (tp if name.startswith(split) and len(tensor.shape) > 1 else 1))
            for name, tensor in self.tensors.items()
        )


def open_checkpoint(folder: Path, target: Target | None = None) -> DraftCheckpoint:
    """What a draft folder holds.

    Args:
        target: the model that it is to draft for; None: whichever it fits.

    Raises:
        ModelError: it is no drafter that can be served, or not this target's; in one line, everything against it.
    """
    layout = read_layout(_read_json(folder / "config.json"), str(folder / "config.json"))
    if target is not None and (misfits := list(_misfits(layout, target))):
        raise ModelError(f"the drafter in {folder} is not one of {target.folder}: {'; '.join(misfits)}")
    checkpoint = DraftCheckpoint(folder, layout, _named(list_tensors(folder)))
    if wrong := list(_wrong_tensors(checkpoint)):
        raise ModelError(f"{folder}: {'; '.join(wrong)}; fetch the checkpoint again, or convert it")
    if target is not None and layout.decoder.hidden_size != target.hidden_size:
        lacking = [name for name in SHARED if name not in checkpoint.tensors]
        if lacking:
            raise ModelError(f"{folder}: tensor {lacking[0]} is missing, and the target's has another width")
    return checkpoint


def expected_tensors(layout: Layout) -> Shapes:
    """Name and shape of every tensor of a layout, `SHARED` ones included."""
    decoder, settings = layout.decoder, layout.settings
    hidden, wide = decoder.hidden_size, layout.target_hidden_size
    num_points = 3 if layout.capture_points is None else len(layout.capture_points)
    shapes: Shapes = {
        "embed_tokens.weight": (decoder.vocab_size, hidden),
        "lm_head.weight": (layout.draft_vocab_size, hidden),
        "norm.weight": (hidden,),
        "fc.weight": (hidden, num_points * wide),
    }
    if layout.draft_vocab_size != decoder.vocab_size:
        shapes["d2t"] = (layout.draft_vocab_size,)
    for index in range(decoder.num_layers):
        shapes |= _layer(layout, f"layers.{index}.")
    if isinstance(settings, Eagle3Settings):
        shapes["layers.0.hidden_norm.weight"] = (hidden,)
        if settings.norm_before_fc:
            shapes["input_norm.weight"] = (num_points * wide,)
        if settings.fc_norm:
            shapes |= {f"fc_norm.{point}.weight": (wide,) for point in range(num_points)}
    else:
        shapes["hidden_norm.weight"] = (hidden,)
        shapes |= _heads(layout, settings)
    return shapes


def _layer(layout: Layout, prefix: str) -> Shapes:
    decoder = layout.decoder
    hidden, inner = decoder.hidden_size, decoder.intermediate_size
    queries, keys = decoder.num_heads * decoder.head_dim, decoder.num_kv_heads * decoder.head_dim
    read = 2 * hidden if layout.kind == "eagle3" else hidden
    shapes: Shapes = {
        "self_attn.q_proj.weight": (queries, read),
        "self_attn.k_proj.weight": (keys, read),
        "self_attn.v_proj.weight": (keys, read),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if decoder.has_qk_norm:
        shapes |= {f"self_attn.{one}_norm.weight": (decoder.head_dim,) for one in "qk"}
    if decoder.has_bias:
        shapes |= {f"self_attn.{one}_proj.bias": shapes[f"self_attn.{one}_proj.weight"][:1] for one in "qkvo"}
    return {prefix + name: shape for name, shape in shapes.items()}


def _heads(layout: Layout, settings: BlockSettings) -> Shapes:
    """Of the Markov head and of the confidence head."""
    hidden, rank = layout.decoder.hidden_size, settings.markov_rank
    shapes: Shapes = {}
    if rank:
        shapes["markov_head.markov_w1.weight"] = (layout.decoder.vocab_size, rank)
        shapes["markov_head.markov_w2.weight"] = (layout.draft_vocab_size, rank)
        joint = {"gated": ("gate_proj", rank, hidden + rank), "rnn": ("joint_proj", 3 * rank, hidden + 2 * rank)}
        if settings.markov_head in joint:
            name, outputs, inputs = joint[settings.markov_head]
            shapes[f"markov_head.{name}.weight"] = (outputs, inputs)
            shapes[f"markov_head.{name}.bias"] = (outputs,)
    if settings.has_confidence:
        shapes["confidence_head.proj.weight"] = (1, hidden + (rank if settings.confidence_reads_markov else 0))
        shapes["confidence_head.proj.bias"] = (1,)
    return shapes


def _named(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    named = {}
    for name, tensor in stored.items():
        ours = name.removeprefix("model.")
        ours = f"layers.0.{ours.removeprefix('midlayer.')}" if ours.startswith("midlayer.") else ours
        if ours not in IGNORED and not ours.endswith("rotary_emb.inv_freq"):
            named[ours] = tensor
    return named


def _wrong_tensors(checkpoint: DraftCheckpoint) -> Iterator[str]:
    layout, found, expected = checkpoint.layout, checkpoint.tensors, expected_tensors(checkpoint.layout)
    same_vocabulary = layout.draft_vocab_size == layout.decoder.vocab_size
    optional = SHARED if same_vocabulary else SHARED[:1]
    optional = (*optional, "d2t") if same_vocabulary else optional
    for name, shape in expected.items():
        tensor = found.get(name)
        if tensor is None and name not in optional:
            yield f"tensor {name} is missing, expected of shape {list(shape)}"
        elif tensor is not None and tensor.shape != shape:
            yield f"tensor {tensor.name} in {tensor.file.name}: expected {list(shape)}, got {list(tensor.shape)}"
    for name in sorted(found.keys() - expected.keys() - {*optional}):
        tensor = found[name]
        yield f"tensor {tensor.name} in {tensor.file.name} is not part of a {layout.name} {layout.kind} drafter"


def _misfits(layout: Layout, target: Target) -> Iterator[str]:
    if target.model_type not in TARGET_FAMILIES:
        yield f"targets are {', '.join(TARGET_FAMILIES)}, this one is {target.model_type}"
    if layout.target_hidden_size != target.hidden_size:
        yield f"it reads hidden states of size {layout.target_hidden_size}, the target's are {target.hidden_size}"
    if layout.decoder.vocab_size != target.vocab_size:
        yield f"its vocabulary has {layout.decoder.vocab_size} tokens, the target's {target.vocab_size}"
    if layout.num_target_layers not in (None, target.num_layers):
        yield f"it is for {layout.num_target_layers} layers, the target has {target.num_layers}"
    points = layout.capture_points or default_eagle3_points(target.num_layers)
    # After the last layer some layouts mean the normed state and some do not, so there is no such point here.
    if outside := [point for point in points if not 0 <= point < target.num_layers]:
        yield f"it reads what enters layer {outside[0]}, the target's are 0 to {target.num_layers - 1}"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: expected a model's configuration: {error}") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path}: expected keys and values, got {type(content).__name__}")
    return content
