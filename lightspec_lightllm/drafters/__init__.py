"""Drafters of the embedded engine: prompt lookup, a trained draft head, and both together.

``base`` says what a drafter is. Importing this package does not import torch; making a head does.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from lightspec_lightllm.drafters.base import Drafter, Proposals, SequenceView
from lightspec_lightllm.drafters.names import DRAFTER_NAMES
from lightspec_lightllm.drafters.ngram import NgramDrafter
from lightspec_lightllm.errors import ConfigError

if TYPE_CHECKING:
    import torch

__all__ = ["DRAFTER_NAMES", "Drafter", "NgramDrafter", "Proposals", "SequenceView", "make_drafter"]


def make_drafter(
    name: str,
    *,
    embedding: "torch.Tensor | None" = None,
    weights: Path | None = None,
    max_draft_steps: int = 8,
) -> Drafter:
    """A drafter by name.

    ``embedding`` is the target's, float32 ``[V, D]``, and needed by all but ``ngram``; ``weights`` is a checkpoint of
    the head, None for the one in this package. ConfigError for another name or a missing embedding, ModelError for
    weights that are missing or belong to another target.
    """
    if name not in DRAFTER_NAMES:
        msg = f"expected a drafter out of {', '.join(DRAFTER_NAMES)}, got {name!r}"
        raise ConfigError(msg)
    ngram = NgramDrafter(max_draft_steps=max_draft_steps)
    if name == "ngram":
        return ngram
    if embedding is None:
        msg = f"drafter {name!r} reads the target's embedding: expected a [V, D] tensor, got none"
        raise ConfigError(msg)
    from lightspec_lightllm.drafters.checkpoint import SHIPPED
    from lightspec_lightllm.drafters.head import HeadDrafter
    from lightspec_lightllm.drafters.hybrid import HybridDrafter

    head = HeadDrafter(embedding, weights or SHIPPED, max_draft_steps=max_draft_steps)
    return head if name == "head" else HybridDrafter(ngram, head)
