"""DFlash: the tokens of a block are drafted independently of each other, each the likeliest at its row."""

from __future__ import annotations

from typing import Any

import torch
from lightllm.common.basemodel.batch_objs import ModelOutput

from lightspec_lightllm import ops
from lightspec_lightllm.adapters.lightllm.drafters.block import BlockDrafter, BlockModel
from lightspec_lightllm.adapters.lightllm.drafters.interface import LightLLMDrafter, Proposal


def load(kvargs: dict[str, Any], max_draft_steps: int) -> tuple[list[Any], LightLLMDrafter]:
    """The model, as LightLLM keeps it, and the drafter. ``kvargs``: of `DraftModel`."""
    model = BlockModel({**kvargs, "max_draft_steps": max_draft_steps})
    return [model], DFlashDrafter(model, max_draft_steps)


class DFlashDrafter(BlockDrafter):
    """A draft's confidence is its own probability."""

    def read(self, output: ModelOutput, anchors: torch.Tensor) -> Proposal:
        """See `BlockDrafter`."""
        tokens, log_probs = ops.draft_scores(output.logits)
        shape, skipped = (len(anchors), self.model.block_rows), self.model.skipped
        tokens = self.in_target_vocabulary(tokens)
        return Proposal(tokens.view(shape)[:, skipped:], log_probs.view(shape)[:, skipped:])
