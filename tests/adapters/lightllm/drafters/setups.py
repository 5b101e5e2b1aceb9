"""Set-up functions of jobs: what an Eagle3 drafter proposed is written down, costs are given, drafts are spoilt."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.adapters.lightllm.harness.job import IDS_PER_REQUEST

if TYPE_CHECKING:
    import torch

    from tests.adapters.lightllm.harness.rank import Rank


WRONG_ROUNDS = 60
"""Rounds for which `wrong_at_first` spoils drafts."""


def replace(owner: Any, **functions: Any) -> None:
    """Put functions in the place of an object's own, for the life of this process."""
    for name, function in functions.items():
        setattr(owner, name, function)


def record_eagle3(rank: Rank) -> None:
    """Notes "proposals": for each, the request's index in the job, the position of the row that it drafted from, tokens
    and logits [steps, draft vocabulary] of the drafts, and rows that the request had in the round, 0 for a prefill."""
    from lightllm.server.router.model_infer.infer_batch import g_infer_context

    from lightspec_lightllm import ops
    from lightspec_lightllm.adapters.lightllm.drafters.eagle3 import Eagle3Drafter
    from lightspec_lightllm.adapters.lightllm.drafters.interface import Proposal, VerifiedRows

    proposals: list[dict[str, Any]] = []
    rank.notes["proposals"] = proposals
    logits: list[torch.Tensor] = []
    scores, propose, prefill = ops.draft_scores, Eagle3Drafter.propose, Eagle3Drafter.prefill

    def recorded_scores(given: torch.Tensor) -> Any:
        logits.append(given.clone())
        return scores(given)

    def note(requests: torch.Tensor, positions: torch.Tensor, proposal: Proposal, rows: Sequence[int]) -> None:
        running = g_infer_context.requests_mapping.values()
        holders = {req.req_idx: req.req_id // IDS_PER_REQUEST - 1 for req in running}
        for place, request in enumerate(requests.tolist()):
            if rows[place] < 0:
                continue
            proposals.append(
                {
                    "request": holders[request],
                    "position": int(positions[place]),
                    "tokens": proposal.tokens[place].tolist(),
                    "logits": [step[place].tolist() for step in logits],
                    "rows": rows[place],
                }
            )

    def recorded_propose(drafter: Any, verified: VerifiedRows, steps: int) -> Proposal | None:
        logits.clear()
        proposal = propose(drafter, verified, steps)
        if proposal is not None:
            lengths = verified.model_input.b_seq_len[verified.last_row]
            rows = verified.request.bincount(minlength=verified.num_requests)
            note(verified.req_idx, lengths - 1, proposal, rows.tolist())
        return proposal

    def recorded_prefill(drafter: Any, model_input: Any, *given: Any) -> Proposal | None:
        logits.clear()
        proposal = prefill(drafter, model_input, *given)
        if proposal is not None:
            # Behind a chunk stands a token of the prompt, and nobody reads the draft.
            rows = [0 if last else -1 for last in model_input.b_prefill_has_output_cpu]
            note(model_input.b_req_idx, model_input.b_seq_len - 1, proposal, rows)
        return proposal

    replace(ops, draft_scores=recorded_scores)
    replace(Eagle3Drafter, propose=recorded_propose, prefill=recorded_prefill)


def priced(rank: Rank) -> None:
    """Rounds cost what a GPU would take for a large target: a few rows as much as one, a draft a tenth. No clock."""
    from lightspec_lightllm.adapters.lightllm.backend import DynamicMtpMixin
    from lightspec_lightllm.adapters.lightllm.planning import RoundPlanner
    from lightspec_lightllm.planner import CostModel

    del rank
    table = CostModel.from_tables({1: 10.0, 64: 12.0}, {1: 1.0, 64: 1.2}, interpolate=True)

    def open_planner(backend: Any) -> RoundPlanner:
        return RoundPlanner(backend.make_planner(table), None, timed=False)

    replace(DynamicMtpMixin, _open_planner=open_planner)


def note_costs(rank: Rank) -> None:
    """Notes "costs": the tables that were measured, rows of "target", "draft" and "fill" each."""
    from lightspec_lightllm.adapters.lightllm import costs

    measure = costs.load_or_measure

    def noting(*given: Any) -> Any:
        table = measure(*given)
        parts = {"target": table.target, "draft": table.draft, "fill": table.fill}
        rank.notes["costs"] = {name: part and part.rows.tolist() for name, part in parts.items()}
        return table

    replace(costs, load_or_measure=noting)


def note_lengths(rank: Rank) -> None:
    """Notes "blocks": how many batches of blocks there were, and "beyond": the most that a row's context, its block
    included, was longer than its batch was said to be."""
    from lightspec_lightllm.adapters.lightllm.drafters.block import BlockInferState

    os.environ["LIGHTSPEC_CACHE"] = os.devnull  # so that rounds are measured
    prepare = BlockInferState.init_some_extra_state
    rank.notes |= {"blocks": 0, "beyond": -(1 << 30)}

    def noting(state: Any, model: Any) -> None:
        prepare(state, model)
        beyond = int(state.b_seq_len.max()) - state.max_kv_seq_len
        rank.notes |= {"blocks": rank.notes["blocks"] + 1, "beyond": max(rank.notes["beyond"], beyond)}

    replace(BlockInferState, init_some_extra_state=noting)


def note_memory(rank: Rank) -> None:
    """The target tries out its memory. Notes "tried": tokens of its prefill, "held": for how many of them hidden states
    are still there when the drafter takes memory, and "numbers": whether the drafter's KV holds numbers then, where
    memory that nobody has written holds none."""
    import torch

    from lightspec_lightllm.adapters.lightllm.drafters.capture import HiddenCapture
    from lightspec_lightllm.adapters.lightllm.drafters.draft_model import DraftModel

    del os.environ["DISABLE_CHECK_MAX_LEN_INFER"]  # which the harness sets to save time
    buffer, take = HiddenCapture._prefill_buffer, DraftModel._init_mem_manager

    def noting_buffer(capture: HiddenCapture, num_tokens: int, place: int) -> torch.Tensor:
        rank.notes.setdefault("tried", num_tokens)
        return buffer(capture, num_tokens, place)

    def noting_take(model: Any) -> None:
        torch.use_deterministic_algorithms(True)  # new memory is then full of NaN
        take(model)
        torch.use_deterministic_algorithms(False)
        rank.notes["held"] = len(model.capture._prefilled)
        rank.notes["numbers"] = bool(model.mem_manager.kv_buffer.isfinite().all())

    replace(HiddenCapture, _prefill_buffer=noting_buffer)
    replace(DraftModel, _init_mem_manager=noting_take)


def wrong_at_first(rank: Rank) -> None:
    """Drafts of the first `WRONG_ROUNDS` rounds are other tokens than those proposed."""
    from lightspec_lightllm.adapters.lightllm.backend import DynamicMtpMixin

    del rank
    launch, keep, rounds = DynamicMtpMixin._launch, DynamicMtpMixin._keep, 0

    def counted_launch(backend: Any, batch: Any) -> Any:
        nonlocal rounds
        rounds += 1
        return launch(backend, batch)

    def spoiling_keep(backend: Any, proposal: Any, req_idx: torch.Tensor) -> None:
        if rounds <= WRONG_ROUNDS:
            proposal = dataclasses.replace(proposal, tokens=proposal.tokens ^ 1)
        keep(backend, proposal, req_idx)

    replace(DynamicMtpMixin, _launch=counted_launch, _keep=spoiling_keep)


def small_gpu(rank: Rank) -> None:
    """Memory of a device of 8 MiB: LightLLM sizes its pool to it."""
    from lightllm.common.kv_cache_mem_manager import mem_manager

    del rank
    replace(mem_manager, get_available_gpu_memory=lambda _world_size: 8 / 1024, get_total_gpu_memory=lambda: 8 / 1024)
