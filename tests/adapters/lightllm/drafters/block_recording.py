"""A set-up function that writes down the blocks of a DFlash or DSpark drafter, with the logits that it chose from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.adapters.lightllm.harness.job import IDS_PER_REQUEST

if TYPE_CHECKING:
    import torch

    from tests.adapters.lightllm.harness.rank import Rank


def record(rank: Rank) -> None:
    """Notes "proposals": for each block, the request's index in the job, the position of its anchor, rows that the
    request had in the round (0 for a prefill), K tokens and their log-probabilities, and logits [K, draft
    vocabulary]. Blocks that nobody verifies are left out."""
    from lightllm.server.router.model_infer.infer_batch import g_infer_context

    from lightspec_lightllm import ops
    from lightspec_lightllm.adapters.lightllm.drafters.block import BlockDrafter

    proposals: list[dict[str, Any]] = []
    rank.notes["proposals"] = proposals
    logits: list[torch.Tensor] = []
    scores, draft = ops.draft_scores, BlockDrafter._draft

    def recorded_scores(given: torch.Tensor) -> Any:
        logits.append(given.clone())
        return scores(given)

    def recorded_draft(
        drafter: Any, target: Any, anchors: torch.Tensor, context: torch.Tensor, req_idx: torch.Tensor, *given: Any
    ) -> Any:
        logits.clear()
        proposal = draft(drafter, target, anchors, context, req_idx, *given)
        # One call for all rows of all blocks, or one for each row of all of them.
        shape = (len(anchors), drafter.model.block_rows, -1)
        whole = logits[0].view(shape)[:, drafter.model.skipped :] if len(logits) == 1 else stacked(logits)
        running = g_infer_context.requests_mapping.values()
        holders = {req.req_idx: req.req_id // IDS_PER_REQUEST - 1 for req in running}
        complete = target.b_prefill_has_output_cpu or [True] * len(anchors)
        for place, request in enumerate(req_idx.tolist()):
            # Behind a chunk stands a token of the prompt; blocks of requests that must be prefilled again are not used.
            if complete[place] and (target.is_prefill or rank.backend.requests.cold_from[request] < 0):
                proposals.append(
                    {
                        "request": holders[request],
                        "position": int(context[place]),
                        "rows": 0 if target.is_prefill else int((target.b_req_idx == request).sum()),
                        "tokens": proposal.tokens[place].tolist(),
                        "log_probs": proposal.log_probs[place].tolist(),
                        "logits": whole[place].tolist(),
                    }
                )
        return proposal

    ops.draft_scores = recorded_scores  # type: ignore[assignment]
    BlockDrafter._draft = recorded_draft  # type: ignore[method-assign,assignment]


def stacked(logits: list[torch.Tensor]) -> torch.Tensor:
    import torch

    return torch.stack(logits, dim=1)
