"""DSpark: a block whose tokens are drafted one after the other, and a head that says how sure each of them is.

The backbone runs once per block. Then the *Markov head* adds to the logits of a row what the token before it says of
the next one, a bias of low rank; that token is a draft itself, so the rows of a block take turns. The *confidence
head* reads a row's last hidden state, and possibly that token, and gives the log-odds that the target accepts the
row's draft if it accepts all before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightllm.common.basemodel.batch_objs import ModelOutput
from torch.nn.functional import linear, logsigmoid

from lightspec_lightllm import ops
from lightspec_lightllm.adapters.lightllm.drafters.block import BlockDrafter, BlockModel, BlockWeights
from lightspec_lightllm.adapters.lightllm.drafters.interface import LightLLMDrafter, Proposal
from lightspec_lightllm.adapters.lightllm.drafters.layouts import BlockSettings

HEADS = ("markov_head.", "confidence_head.")
"""How the names of the heads' tensors begin. Every rank has them whole."""


def load(kvargs: dict[str, Any], max_draft_steps: int) -> tuple[list[Any], LightLLMDrafter]:
    """The model, as LightLLM keeps it, and the drafter. ``kvargs``: of `DraftModel`."""
    model = DSparkModel({**kvargs, "max_draft_steps": max_draft_steps})
    return [model], BlockDrafter(model, max_draft_steps)


class DSparkWeights(BlockWeights):
    """With the tensors of the heads, by their names."""

    def load_hf_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """As LightLLM's, and the heads."""
        super().load_hf_weights(weights)
        self.heads = {
            name: value.to(self.data_type_).cuda() for name, value in weights.items() if name.startswith(HEADS)
        }


class MarkovHead:
    """What the token before says of the next, of rank r over V tokens.

    * ``vanilla``: a function of that token alone.
    * ``gated``: the row's hidden state decides how much of each dimension counts.
    * ``rnn``: a recurrent state carries on what came before that token, too.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], settings: BlockSettings) -> None:
        self._tensors = {name.removeprefix("markov_head."): value for name, value in tensors.items()}
        self._kind = settings.markov_head
        self._rank = settings.markov_rank

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """float[..., r] of int64[...] tokens of the target's vocabulary."""
        return self._tensors["markov_w1.weight"][tokens]

    def first_state(self, num_blocks: int) -> torch.Tensor:
        """float[N, r], before the first row."""
        return self._tensors["markov_w1.weight"].new_zeros(num_blocks, self._rank)

    def step(
        self, state: torch.Tensor, embedded: torch.Tensor, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The next state and the bias float[N, V] of a row, from the token before it and the row's normed state."""
        if self._kind == "gated":
            embedded = embedded * torch.sigmoid(self._linear("gate_proj", hidden, embedded))
        elif self._kind == "rnn":
            gate, candidate, output = self._linear("joint_proj", state, embedded, hidden).chunk(3, dim=1)
            gate = torch.sigmoid(gate)
            state = gate * state + (1 - gate) * torch.tanh(candidate)
            embedded = torch.tanh(output)
        return state, linear(embedded, self._tensors["markov_w2.weight"])

    def _linear(self, name: str, *inputs: torch.Tensor) -> torch.Tensor:
        return linear(torch.cat(inputs, dim=1), self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"])


class DSparkModel(BlockModel):
    """A draft's confidence is what the confidence head says, or without one its own probability."""

    def make_weights(self) -> DSparkWeights:
        """See `DraftModel`."""
        return DSparkWeights(self.data_type, self.layout, self.checkpoint, self.main_model)

    def load_weights(self, weight_dict: dict[str, torch.Tensor] | None) -> None:
        """See `DraftModel`."""
        super().load_weights(weight_dict)
        self._heads: dict[str, torch.Tensor] = self.pre_post_weight.heads
        self._markov = MarkovHead(self._heads, self.settings) if self.settings.markov_rank else None

    def read(self, output: ModelOutput, anchors: torch.Tensor) -> Proposal:
        """See `BlockModel`."""
        num_blocks, rows = len(anchors), self.block_rows
        logits = output.logits.view(num_blocks, rows, -1)
        hidden = self.normed(output.mtp_main_output_hiddens).view(num_blocks, rows, -1)
        before, drafts, log_probs = self._take_turns(logits, hidden, anchors)
        if self.settings.has_confidence:
            log_probs = self._confidence(hidden[:, self.skipped :], before)
        return Proposal(drafts, log_probs)

    def _take_turns(
        self, logits: torch.Tensor, hidden: torch.Tensor, anchors: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[N, K] each: the token before every draft, the drafts, and their log-probabilities.

        A row that drafts nothing has the anchor before it, and so has the next one.
        """
        markov, skipped = self._markov, self.skipped
        state = markov.first_state(len(anchors)) if markov is not None else None
        before, drafts, log_probs = [], [], []
        token = anchors
        for row in range(logits.shape[1]):
            row_logits = logits[:, row]
            if markov is not None and state is not None:
                state, bias = markov.step(state, markov.embed(token), hidden[:, row])
                row_logits = row_logits + bias
            if row < skipped:
                continue
            before.append(token)
            token, log_prob = ops.draft_scores(row_logits)
            token = self.pre_post_weight.in_target(token)
            drafts.append(token)
            log_probs.append(log_prob)
        return torch.stack(before, dim=1), torch.stack(drafts, dim=1), torch.stack(log_probs, dim=1)

    def _confidence(self, hidden: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """float32[N, K]: log-probabilities of being accepted, from normed states and the tokens before."""
        if self.settings.confidence_reads_markov:
            assert self._markov is not None  # noqa: S101 - checked with the checkpoint
            hidden = torch.cat((hidden, self._markov.embed(before)), dim=2)
        log_odds = linear(hidden, self._heads["confidence_head.proj.weight"], self._heads["confidence_head.proj.bias"])
        return logsigmoid(log_odds.squeeze(2).float())
