"""A sequence's deltas, put together again."""

from __future__ import annotations

from lightspec_lightllm.server.engine_client import Generation
from lightspec_lightllm.server.messages import Delta


async def collect(generation: Generation) -> list[Delta]:
    """The whole answers, each as one delta, in the order of the prompts. Raises ApiError as the generation does."""
    parts: list[list[Delta]] = [[] for _ in generation.prompts]
    async for index, delta in generation:
        parts[index].append(delta)
    return [_joined(deltas) for deltas in parts]


def _joined(deltas: list[Delta]) -> Delta:
    last = deltas[-1]
    return Delta(
        last.request_id,
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        text="".join(delta.text for delta in deltas),
        logprobs=tuple(logprob for delta in deltas for logprob in delta.logprobs),
        finish_reason=last.finish_reason,
        num_rounds=last.num_rounds,
        detail=last.detail,
    )
