"""Set-ups that a job may name: they break something on purpose, so that a test that passes could have failed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from tests.adapters.lightllm.harness.recorder import VERIFY_KERNEL
from tests.adapters.lightllm.harness.virtual_cuda import interpreter

if TYPE_CHECKING:
    from tests.adapters.lightllm.harness.rank import Rank


def accept_all(rank: Rank) -> None:
    """Verification that accepts every draft: the text must then differ wherever a drafter is wrong.

    Works on whatever calls LightLLM's verification kernel, so on LightLLM's own rounds and on the plugin's.
    """

    def overrule(arguments: dict[str, Any]) -> None:
        starts = arguments["b_req_mtp_start_loc"]
        ends = starts.roll(-1)
        ends[-1] = arguments["req_mtp_all_num"]
        rank.notes["overruled"] = rank.notes.get("overruled", 0) + int((arguments["accepted_index"] == 0).sum())
        arguments["mtp_accept_len"].copy_(ends - starts)
        arguments["accepted_index"].fill_(1)

    interpreter.watchers.setdefault(VERIFY_KERNEL, []).insert(0, overrule)


def measuring_fails(rank: Rank) -> None:
    """The last rank runs out of memory while it measures what rounds cost. No table is there to be read instead."""
    from lightspec_lightllm.adapters.lightllm.measuring import Measurement

    def run(*_: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory while rounds are measured")

    os.environ["LIGHTSPEC_CACHE"] = os.devnull
    if rank.index == rank.job.tp - 1:
        setattr(Measurement, "run", run)  # noqa: B010 - a method replaced for one process


def note_outgrown(rank: Rank) -> None:
    """Notes "outgrown": shapes of tensors whose memory is kept until the stream that reads them has caught up."""
    outgrown: list[list[int]] = []
    rank.notes["outgrown"] = outgrown

    def record_stream(tensor: torch.Tensor, _stream: object) -> None:
        outgrown.append(list(tensor.shape))

    setattr(torch.Tensor, "record_stream", record_stream)  # noqa: B010
