"""The results of one cell (a dataset at a concurrency): medians, paired ratios, and whether the texts are identical."""

import statistics
from dataclasses import dataclass, field

from lightspec_lightllm.bench.datasets import Dataset, Prompt
from lightspec_lightllm.bench.metrics import Metrics
from lightspec_lightllm.bench.runner import UNFINISHED, RequestResult, RunResult

BASELINE = "off"


@dataclass(frozen=True)
class Run:
    """One arm, once, in one cell."""

    arm: str
    repetition: int
    result: RunResult
    metrics: Metrics


@dataclass(frozen=True)
class Spread:
    """A median with the smallest and the largest value it was taken over."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Difference:
    """A text that is not the baseline's: where it first differs, and how close the target's two best logits were there.

    ``gap`` is None when it was not or could not be measured.
    """

    prompt: str
    prompt_index: int
    """Of the request, counted from 0; past the number of prompts where they began anew."""
    arm: str
    repetition: int
    position: int
    gap: float | None


@dataclass
class Cell:
    """Every run of one dataset at one concurrency."""

    dataset: Dataset
    concurrency: int
    prompts: tuple[Prompt, ...]
    runs: list[Run] = field(default_factory=list)
    gaps: dict[tuple[int, int], float | None] = field(default_factory=dict)
    """By prompt and position of a differing text: how far apart the target's two best logits are there."""

    def of(self, arm: str) -> list[Run]:
        return [run for run in self.runs if run.arm == arm]

    def arms(self) -> list[str]:
        return list(dict.fromkeys(run.arm for run in self.runs))

    def throughput(self, arm: str) -> Spread:
        return Spread.of([run.metrics.output_throughput for run in self.of(arm)])

    def ratio(self, arm: str, base: str) -> Spread | None:
        """``arm`` over ``base``, paired by repetition; None when they share none."""
        bases = {run.repetition: run.metrics.output_throughput for run in self.of(base)}
        pairs = [
            run.metrics.output_throughput / bases[run.repetition] for run in self.of(arm) if run.repetition in bases
        ]
        return Spread.of(pairs) if pairs else None

    def best_static(self) -> str | None:
        """The fastest arm among off and the fixed ones, by median; None when there is none."""
        static = [arm for arm in self.arms() if is_static(arm)]
        return max(static, key=lambda arm: self.throughput(arm).median) if static else None

    def compared_texts(self) -> int:
        """How many texts of other arms have a baseline text to be compared with."""
        return sum(len(self._pairs(run)) for run in self.runs if run.arm != BASELINE)

    def baseline(self) -> tuple[RequestResult, ...]:
        """The requests of the first baseline run, in the order of the prompts; empty when there is none."""
        runs = self.of(BASELINE)
        return runs[0].result.requests if runs else ()

    def _pairs(self, run: Run) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        """(request, its tokens, those of the baseline); where one was not waited for, the other's as far as it came."""
        found = []
        for index, (expected, request) in enumerate(zip(self.baseline(), run.result.requests, strict=False)):
            left, right = request.tokens, expected.tokens
            if expected.finish_reason == UNFINISHED:
                left = left[: len(right)]
            if request.finish_reason == UNFINISHED:
                right = right[: len(left)]
            if left or right:
                found.append((index, left, right))
        return found

    def differences(self) -> list[Difference]:
        """Texts that are not token for token those of the first baseline run."""
        found = []
        for run in self.runs:
            for index, tokens, expected in self._pairs(run):
                if tokens != expected:
                    at = first_difference(tokens, expected)
                    key, gap = self.prompts[index % len(self.prompts)].key, self.gaps.get((index, at))
                    found.append(Difference(key, index, run.arm, run.repetition, at, gap))
        return found


def is_static(arm: str) -> bool:
    return arm == BASELINE or arm.startswith("fixed")


def first_difference(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """The first index at which two token sequences differ; the shorter length when one is a prefix of the other."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
