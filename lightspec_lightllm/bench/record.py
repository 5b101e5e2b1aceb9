"""What a run's texts were drafted like, at every position: ``lightspec bench --record``."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from lightspec_lightllm.adapters.cost_tables import CostTables
from lightspec_lightllm.adapters.recording import FORMAT, RecordedDrafter, RecordedRequest, RecordedSource, Recording
from lightspec_lightllm.bench.cells import BASELINE, Cell
from lightspec_lightllm.bench.experiment import Experiment
from lightspec_lightllm.bench.results import Subject
from lightspec_lightllm.engine.fetch import ProgressListener
from lightspec_lightllm.errors import DatasetError
from lightspec_lightllm.planner import CostModel, DrafterKind

if TYPE_CHECKING:
    from lightspec_lightllm.adapters.recorder import Found


class Recorder(Protocol):
    """What a recording needs of an engine that has just answered."""

    @property
    def costs(self) -> CostModel:
        """What planners were told of its costs."""
        ...

    @property
    def drafter_kind(self) -> DrafterKind:
        """What planners were told of its drafter."""
        ...

    def chat(self, text: str) -> list[int]: ...

    def find_drafts(
        self, texts: Sequence[tuple[list[int], tuple[int, ...]]], max_tokens: int, progress: ProgressListener, /
    ) -> "list[Found]":
        """The drafts at every position of each (prompt, answer)."""
        ...


def record(
    host: Recorder, experiment: Experiment, subject: Subject, progress: ProgressListener
) -> tuple[Recording, int]:
    """The drafts of each set's texts, and how many answers of one token were left out.

    Of each set the cell with the most requests is taken, of it the first run without speculation or else the first run:
    smaller cells answer some of the same prompts, and all runs with the same text. A prompt that was asked again with
    the same answer is recorded once.

    Raises:
        DatasetError: no answer has a second token.
    """
    options = experiment.options
    names: list[tuple[str, str]] = []
    texts: list[tuple[list[int], tuple[int, ...]]] = []
    left_out = 0
    for cell in _fullest(experiment.cells):
        run = (cell.of(BASELINE) or cell.runs)[0]
        seen = set[tuple[str, tuple[int, ...]]]()
        for prompt, request in zip(cell.prompts, run.result.requests, strict=True):
            if (prompt.text, request.tokens) in seen:
                continue
            seen.add((prompt.text, request.tokens))
            if len(request.tokens) < 2:
                left_out += 1
                continue
            names.append((cell.dataset.name, prompt.key))
            texts.append((host.chat(prompt.text), request.tokens))
    if not texts:
        raise DatasetError(f"--record: expected answers of at least 2 tokens, all {left_out} have one; give others")
    found = host.find_drafts(texts, options.max_tokens, progress)
    recording = Recording(
        format=FORMAT,
        date=subject.date.strftime("%Y%m%d-%H%M%S"),
        source=RecordedSource(
            backend=subject.backend,
            model_id=subject.model_id,
            model_sha256=subject.model_sha256,
            weights=subject.weights,
            threads=subject.threads,
            concurrency=options.concurrency,
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            seed=options.seed,
            machine=dataclasses.asdict(subject.machine),
        ),
        drafter=RecordedDrafter(subject.drafter, host.drafter_kind, subject.max_draft_steps),
        costs=CostTables.of(host.costs),
        requests=tuple(
            RecordedRequest(
                dataset=dataset,
                key=key,
                prompt_tokens=len(prompt),
                answer_tokens=len(answer),
                drafts=drafted.drafts,
                right=drafted.right,
                confidence=drafted.confidence,
            )
            for (dataset, key), (prompt, answer), drafted in zip(names, texts, found, strict=True)
        ),
    )
    return recording, left_out


def _fullest(cells: list[Cell]) -> list[Cell]:
    """Of each set, the cell with the most requests."""
    best: dict[str, Cell] = {}
    for cell in cells:
        held = best.get(cell.dataset.name)
        if held is None or len(cell.prompts) > len(held.prompts):
            best[cell.dataset.name] = cell
    return list(best.values())
