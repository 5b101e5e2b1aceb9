"""``lightspec doctor --draft``: what a draft folder is, which targets it fits, and what serving it takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lightspec_lightllm.adapters.lightllm.doctor import Finding
from lightspec_lightllm.adapters.lightllm.drafters.checkpoints import (
    SHARED,
    TARGET_FAMILIES,
    DraftCheckpoint,
    open_checkpoint,
)
from lightspec_lightllm.adapters.lightllm.drafters.layouts import BlockSettings, Layout
from lightspec_lightllm.errors import ModelError

ELEMENT_BYTES = 2
"""Of bfloat16 and float16, in which such models are served."""


def examine_draft(folder: Path) -> Iterator[Finding]:
    """Everything there is to say; a ``problem`` keeps the checkpoint from being served with any target."""
    try:
        checkpoint = open_checkpoint(folder)
    except ModelError as error:
        yield Finding("problem", str(error))
        return
    layout = checkpoint.layout
    yield Finding("ok", f"{folder}: {_kind(layout)} in the layout of {layout.name}, all tensors are there")
    yield Finding("ok", f"fits {_targets(layout)}")
    yield Finding("ok", _steps(layout))
    yield Finding("ok", _memory(checkpoint))
    yield Finding("ok", f"confidence of a draft: {_confidence(layout)}")
    if lent := [name for name in SHARED if name not in checkpoint.tensors]:
        yield Finding("note", f"{' and '.join(lent)}: the target's serve, the checkpoint has none of its own")


def _kind(layout: Layout) -> str:
    decoder = layout.decoder
    layers = f"{decoder.num_layers} layer{'s' if decoder.num_layers > 1 else ''}"
    return (
        f"{layout.kind}, {layers} of width {decoder.hidden_size}, {decoder.num_heads} heads and "
        f"{decoder.num_kv_heads} KV heads of {decoder.head_dim}, draft vocabulary {layout.draft_vocab_size}"
    )


def _targets(layout: Layout) -> str:
    points = layout.capture_points
    if layout.num_target_layers is not None:
        depth = f"of {layout.num_target_layers} layers"
    elif points is not None:
        depth = f"of {max(points) + 1} layers or more"
    else:
        depth = "of any depth"
    read = "2, the middle one and the last but two" if points is None else ", ".join(map(str, points))
    return (
        f"targets {depth}, hidden size {layout.target_hidden_size}, vocabulary {layout.decoder.vocab_size} "
        f"({', '.join(TARGET_FAMILIES)}); reads what enters layers {read}"
    )


def _steps(layout: Layout) -> str:
    if isinstance(layout.settings, BlockSettings):
        return f"K = {layout.max_draft_steps}, the drafts of one block: all of them or none are drafted in a round"
    return f"K = 1 to {layout.max_draft_steps}, as --mtp_step says: any number of drafts up to it per round"


def _memory(checkpoint: DraftCheckpoint) -> str:
    weights = checkpoint.weight_elements() * ELEMENT_BYTES
    per_token = checkpoint.kv_elements() * ELEMENT_BYTES
    return (
        f"{weights / 2**20:.1f} MiB of weights and {per_token} bytes of KV per token in 16 bits on one rank; the pool "
        "of the target's KV is that much smaller"
    )


def _confidence(layout: Layout) -> str:
    if isinstance(layout.settings, BlockSettings) and layout.settings.has_confidence:
        return "its confidence head"
    return "its own probability of the drafted token"
