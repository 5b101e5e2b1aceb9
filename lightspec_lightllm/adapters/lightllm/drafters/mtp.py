"""LightLLM's MTP modes: layers of their own (``vanilla_*``) or one layer that is run again and again (``eagle_*``).

A draft is chained from each request's last accepted row alone. Layers with attention also run over all verified rows
of the round, once per layer, since the KV of accepted tokens must be there for later drafts; nothing else writes to
the token slots of accepted rows, so their KV is always that of accepted tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightllm.common.basemodel.batch_objs import ModelInput, ModelOutput
from lightllm.server.router.model_infer.mode_backend.mtp_pre_process import prepare_mtp_prefill_inputs

from lightspec_lightllm import ops
from lightspec_lightllm.adapters.lightllm.drafters.interface import LightLLMDrafter, Proposal, VerifiedRows
from lightspec_lightllm.errors import HostError
from lightspec_lightllm.planner import DrafterKind


def make_mtp_drafter(mode: str, models: Sequence[Any], max_draft_steps: int) -> LightLLMDrafter:
    """The drafter of an ``--mtp_mode``, with its models in the order of the steps."""
    makers: dict[str, Callable[[Sequence[Any], int], LightLLMDrafter]] = {
        "vanilla_with_att": ChainedLayers,
        "vanilla_no_att": StatelessLayers,
        "eagle_with_att": SerialLayer,
        "eagle_no_att": StatelessLayers,
    }
    if mode not in makers:
        raise HostError(f"mtp_mode: expected one of {', '.join(makers)}, got {mode!r}")
    return makers[mode](models, max_draft_steps)


class _MtpLayers:
    kind: DrafterKind
    has_kv = True

    def __init__(self, models: Sequence[Any], max_draft_steps: int) -> None:
        self.models = list(models)
        self.max_draft_steps = max_draft_steps

    def num_chain_slots(self, num_requests: int, steps: int) -> int:  # noqa: ARG002 - the interface's
        return 0

    def prefill(
        self,
        model_input: ModelInput,
        model_output: ModelOutput,
        next_tokens: torch.Tensor,
        known: torch.Tensor,
        chain_slots: torch.Tensor | None,  # noqa: ARG002 - the first draft needs none
    ) -> Proposal | None:
        """See `LightLLMDrafter`. Layer i reads, at every position, the token i places further on."""
        drafts = []
        for layer, model in enumerate(self.models):
            follows = known[:, layer]
            model_input = prepare_mtp_prefill_inputs(
                model_input=model_input,
                b_next_token_ids=torch.where(follows >= 0, follows, next_tokens),
                mtp_draft_input_hiddens=model_output.mtp_main_output_hiddens,
            )
            model_output = model.forward(model_input)
            next_tokens, log_probs = ops.draft_scores(model_output.logits)
            drafts.append((next_tokens, log_probs))
        return Proposal.stack(drafts)


class SerialLayer(_MtpLayers):
    """``eagle_with_att``: one layer with attention. Step 1 runs over all verified rows, the others over one per
    request, on token slots of their own."""

    kind: DrafterKind = "serial"

    def num_chain_slots(self, num_requests: int, steps: int) -> int:
        """See `LightLLMDrafter`."""
        return num_requests * max(steps - 1, 0)

    def propose(self, verified: VerifiedRows, steps: int) -> Proposal | None:
        """See `LightLLMDrafter`."""
        model, last, count = self.models[0], verified.last_row, verified.num_requests
        out = model.forward(verified.all_rows(verified.token_ids, verified.hidden))
        if steps == 0:
            return None
        drafts = [ops.draft_scores(out.logits[last])]
        hidden = out.mtp_main_output_hiddens[last]
        for step in range(1, steps):
            slots = verified.chain_slots[(step - 1) * count : step * count]  # type: ignore[index] # there are some
            out = model.forward(verified.last_rows(drafts[-1][0], hidden, step=step, slots=slots))
            drafts.append(ops.draft_scores(out.logits))
            hidden = out.mtp_main_output_hiddens
        return Proposal.stack(drafts)


class StatelessLayers(_MtpLayers):
    """``vanilla_no_att`` and ``eagle_no_att``: layers that look at nothing but their input. One row per request and
    step; the position means nothing to them."""

    kind: DrafterKind = "serial_no_kv"
    has_kv = False

    def propose(self, verified: VerifiedRows, steps: int) -> Proposal | None:
        """See `LightLLMDrafter`."""
        token, hidden = verified.token_ids[verified.last_row], verified.hidden[verified.last_row]
        drafts = []
        for step in range(steps):
            out = self.models[step % len(self.models)].forward(verified.last_rows(token, hidden))
            token, log_probs = ops.draft_scores(out.logits)
            drafts.append((token, log_probs))
            hidden = out.mtp_main_output_hiddens
        return Proposal.stack(drafts)


class ChainedLayers(_MtpLayers):
    """``vanilla_with_att``: one layer per step, each with KV of its own, so that all of them run over all rows.

    Layer i reads at row j the token i places after the row's: as far as tokens are accepted, the target's own, beyond
    them the drafts of the last accepted row.
    """

    kind: DrafterKind = "chained"

    def propose(self, verified: VerifiedRows, steps: int) -> Proposal | None:
        """See `LightLLMDrafter`. Layers take all steps or none; to fill their KV all of them must run."""
        request = verified.request.long()
        last = verified.last_row[request]
        row = torch.arange(len(request), device=request.device)
        # Rows past the last accepted one are given back; what they read does not matter.
        row = torch.minimum(row, last)
        hidden = verified.hidden
        drafts: list[tuple[torch.Tensor, torch.Tensor]] = []
        for layer, model in enumerate(self.models):
            ahead = row + layer
            read = verified.token_ids[torch.minimum(ahead, last)]
            if drafts:
                drafted = torch.stack([draft for draft, _ in drafts], dim=1)
                beyond = (ahead - last - 1).clamp_(min=0)
                read = torch.where(ahead > last, drafted[request, beyond], read)
            out = model.forward(verified.all_rows(read, hidden))
            drafts.append(ops.draft_scores(out.logits[verified.last_row]))
            hidden = out.mtp_main_output_hiddens
        return Proposal.stack(drafts) if steps else None
