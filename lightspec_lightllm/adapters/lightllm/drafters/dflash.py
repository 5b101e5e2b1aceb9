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
    model = DFlashModel({**kvargs, "max_draft_steps": max_draft_steps})
    return [model], BlockDrafter(model, max_draft_steps)


class DFlashModel(BlockModel):
    """A draft's confidence is its own probability."""

    def read(self, output: ModelOutput, anchors: torch.Tensor) -> Proposal:
        """See `BlockModel`."""
        tokens, log_probs = ops.draft_scores(output.logits)
        shape = (len(anchors), self.block_rows)
        tokens = self.pre_post_weight.in_target(tokens)
        return Proposal(tokens.view(shape)[:, self.skipped :], log_probs.view(shape)[:, self.skipped :])
