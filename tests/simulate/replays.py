"""Recordings of the tiny model's texts, and scenarios that replay them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from lightspec_lightllm.adapters.cost_tables import CostTables
from lightspec_lightllm.adapters.recorder import Written, find_drafts
from lightspec_lightllm.adapters.recording import (
    FORMAT,
    RecordedDrafter,
    RecordedRequest,
    RecordedSource,
    Recording,
    to_bytes,
)
from lightspec_lightllm.drafters import Drafter, NgramDrafter, Proposals, SequenceView
from lightspec_lightllm.drafters.base import StepRule
from lightspec_lightllm.drafters.hybrid import HybridDrafter
from lightspec_lightllm.engine import Engine, SamplingParams
from tests.adapters.adversaries import BlankDrafter
from tests.adapters.test_embedded_lossless import COSTS, requests, tiny_head_drafter
from tests.engine.tiny_llama import tiny_engine

PARAMS = SamplingParams(max_tokens=24)
STEPS = 5
COUNT = 8


class Reader(BlankDrafter):
    """Has read the texts, and gets some tokens wrong and makes fewer drafts here and there, by position alone."""

    name = "reader"

    def __init__(self, max_draft_steps: int, texts: list[list[int]]) -> None:
        super().__init__(max_draft_steps)
        self._texts = texts

    def propose(self, seqs: Sequence[SequenceView], steps: int, rule: StepRule | None = None) -> Proposals:
        proposals = Proposals.empty(len(seqs), steps)
        for row, seq in enumerate(seqs):
            total = len(seq.tokens)
            prompt = list(seq.tokens)[: seq.prompt_length]
            text = next(text for text in self._texts if text[: seq.prompt_length] == prompt)
            known = (text[total:] + [1] * steps)[: min(steps, total % (self.max_draft_steps + 1))]
            drafts = [token if (total * 7 + j * j) % 5 else (token + 1) % 64 for j, token in enumerate(known)]
            proposals.put(row, drafts, [0.9 - 0.1 * j for j in range(len(drafts))])
        return proposals


def drafter_of(name: str, engine: Engine, texts: list[list[int]]) -> Drafter:
    if name == "reader":
        return Reader(STEPS, texts)
    if name == "ngram":
        return NgramDrafter(max_draft_steps=STEPS)
    head = tiny_head_drafter(engine, STEPS)
    return head if name == "head" else HybridDrafter(NgramDrafter(max_draft_steps=STEPS), head)


MADE: dict[str, Recording] = {}


def recorded(name: str, texts: list[list[int]]) -> Recording:
    """What a drafter would have proposed at every position of the tiny model's texts; made once."""
    if name in MADE:
        return MADE[name]
    engine = tiny_engine()
    drafter = drafter_of(name, engine, texts)
    prompts = [prompt for prompt, _ in requests(PARAMS, COUNT)]
    written = [
        Written(tuple(prompt), tuple(text[len(prompt) :]), PARAMS.max_tokens)
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    found = find_drafts(engine, drafter, written, STEPS)
    assert engine.slots.num_free == engine.options.num_slots
    MADE[name] = Recording(
        format=FORMAT,
        date="20260102-030405",
        source=RecordedSource("tiny", "tiny", "0" * 64, "float32", 1, (4,), PARAMS.max_tokens, 0.0, 0, {"cpu": "any"}),
        drafter=RecordedDrafter(name, "free" if drafter.kind == "free" else "serial_no_kv", STEPS),
        costs=CostTables.of(COSTS),
        requests=tuple(
            RecordedRequest(
                dataset="even" if at % 2 == 0 else "odd",
                key=f"p{at}",
                prompt_tokens=len(text.prompt),
                answer_tokens=len(text.answer),
                drafts=drafts.drafts,
                right=drafts.right,
                confidence=drafts.confidence,
            )
            for at, (text, drafts) in enumerate(zip(written, found, strict=True))
        ),
    )
    return MADE[name]


def scenario_file(folder: Path, recording: Recording, **changes: Any) -> Path:
    ending, content = to_bytes(recording)
    (folder / f"run{ending}").write_bytes(content)
    path = folder / "replayed.yaml"
    given = {"name": "replayed", "trace_file": f"run{ending}", "requests": {"count": 4}, "segments": [{"rounds": 60}]}
    merged = {key: value for key, value in (given | changes).items() if value is not None}
    path.write_text(yaml.safe_dump(merged), encoding="utf-8")
    return path
