"""The seam between the round on LightLLM and what proposes tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from lightllm.common.basemodel.batch_objs import ModelInput, ModelOutput

from lightspec_lightllm.planner import DrafterKind


@dataclass(frozen=True, slots=True)
class VerifiedRows:
    """A round's target batch once its rows are verified; everything is on the device, nothing is waited for.

    Attributes:
        model_input: the target's, B rows, request-major.
        hidden: float[B, H], the target's last hidden states.
        token_ids: int64[B], what the target sampled at each row.
        accept_len: int32[N], tokens each request commits, at least 1.
        start_loc: int32[N], first row of each request.
        request: int32[B], the request of each row.
        req_idx: int32[N].
        last_row: int64[N], each request's last accepted row.
        position_delta: int32[N].
        num_requests: N.
        chain_slots: int32[C], token slots for KV of drafted tokens, `LightLLMDrafter.num_chain_slots` of them.
    """

    model_input: ModelInput
    hidden: torch.Tensor
    token_ids: torch.Tensor
    accept_len: torch.Tensor
    start_loc: torch.Tensor
    request: torch.Tensor
    req_idx: torch.Tensor
    last_row: torch.Tensor
    position_delta: torch.Tensor
    num_requests: int
    chain_slots: torch.Tensor | None

    def all_rows(self, input_ids: torch.Tensor, hidden: torch.Tensor) -> ModelInput:
        """A drafter's input over the same rows, positions and token slots as the target's."""
        return dataclasses.replace(self.model_input, input_ids=input_ids, mtp_draft_input_hiddens=hidden)

    def last_rows(
        self, input_ids: torch.Tensor, hidden: torch.Tensor, *, step: int = 0, slots: torch.Tensor | None = None
    ) -> ModelInput:
        """A drafter's input of one row per request, ``step`` positions after its last accepted row.

        Args:
            slots: int32[N], token slots for the rows' KV; None: those of the last accepted rows.
        """
        target = self.model_input
        num_requests = self.num_requests
        return ModelInput(
            batch_size=num_requests,
            total_token_num=num_requests * (target.max_kv_seq_len + step),
            max_q_seq_len=1,
            max_kv_seq_len=target.max_kv_seq_len + step,
            input_ids=input_ids,
            b_req_idx=self.req_idx,
            b_mtp_index=torch.zeros_like(self.req_idx),
            b_seq_len=target.b_seq_len[self.last_row] + step,
            b_position_delta=self.position_delta,
            mem_indexes=target.mem_indexes[self.last_row] if slots is None else slots,
            is_prefill=False,
            multimodal_params=target.multimodal_params[:num_requests],
            mtp_draft_input_hiddens=hidden,
        )


@dataclass(frozen=True, slots=True)
class Proposal:
    """``d`` drafts per request: ``tokens`` int64[N, d] and, of each, the drafter's log-probability ``log_probs``
    float32[N, d] given the drafts before it."""

    tokens: torch.Tensor
    log_probs: torch.Tensor

    @classmethod
    def stack(cls, drafts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Proposal | None:
        """Of the tokens and log-probabilities, [N] each, of one step after the other; None if there is no step."""
        if not drafts:
            return None
        tokens, log_probs = zip(*drafts, strict=True)
        return cls(torch.stack(tokens, dim=1), torch.stack(log_probs, dim=1))


class LightLLMDrafter(Protocol):
    """A drafter. All its work is launched, never waited for."""

    kind: DrafterKind
    max_draft_steps: int
    has_kv: bool
    """Whether it keeps KV of its own in the target's token slots; if so, a round in which it does not run leaves a
    hole behind."""

    def num_chain_slots(self, num_requests: int, steps: int) -> int:
        """Token slots that ``steps`` need beside the rows' own; they go back when the round is over."""

    def propose(self, verified: VerifiedRows, steps: int) -> Proposal | None:
        """Draft after each request's last accepted row. With 0 steps only the KV of the verified rows is filled."""

    def prefill(
        self,
        model_input: ModelInput,
        model_output: ModelOutput,
        next_tokens: torch.Tensor,
        known: torch.Tensor,
        chain_slots: torch.Tensor | None,
    ) -> Proposal | None:
        """Fill the KV of a prefill, and draft from its last rows.

        Args:
            model_input, model_output: the target's, of P requests.
            next_tokens: int64[P], what the target sampled.
            known: int64[P, K], tokens of the prompt that follow what was prefilled; -1 past its end.
            chain_slots: int32[C], token slots for KV of drafted tokens, `num_chain_slots` for one step; None: there are
                no free ones, so only what needs none can be drafted.

        Returns:
            One proposal per request, worth something where the prompt is complete.
        """
