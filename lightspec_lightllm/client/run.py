"""One run: a dataset under a load, with all that was measured of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

from lightspec_lightllm.bench.datasets import Dataset, Prompt
from lightspec_lightllm.client.answers import AnswerCheck
from lightspec_lightllm.client.load import LoadResult
from lightspec_lightllm.client.metrics import LoadMetrics
from lightspec_lightllm.client.options import Load
from lightspec_lightllm.client.speculation import Speculation


@dataclass(frozen=True)
class Run:
    """Everything about one run. ``prompts`` holds the prompt of every request, answered or not."""

    dataset: Dataset
    load: Load
    prompts: tuple[Prompt, ...]
    num_warmups: int
    result: LoadResult
    metrics: LoadMetrics
    speculation: Speculation | None
    answers: AnswerCheck | None

    def with_answers(self, answers: AnswerCheck) -> "Run":
        return replace(self, answers=answers)

    @property
    def errors(self) -> Counter[str]:
        """How often each failure happened."""
        return Counter(output.error for output in self.result.outputs if output.error)

    @property
    def counted_by(self) -> Counter[str]:
        """Who counted the output tokens, over the requests that succeeded."""
        return Counter(str(output.counted_by) for output in self.result.outputs if output.succeeded)

    @property
    def retries(self) -> int:
        return sum(output.retries for output in self.result.outputs)

    @property
    def truncated(self) -> int:
        """Answers that ended because they may be no longer."""
        return sum(output.finish_reason == "length" for output in self.result.outputs)

    @property
    def all_failed(self) -> bool:
        return bool(self.result.outputs) and not self.metrics.completed


def choose_prompts(dataset: Dataset, count: int, num_warmups: int, seed: int) -> tuple[list[Prompt], list[Prompt]]:
    """The prompts of a run and of its warm-up: the first and the last of an order drawn from the seed.

    A set that has fewer is gone through again; the warm-up then takes prompts that are measured, too.
    """
    order = dataset.shuffled(seed)
    return list(islice(cycle(order), count)), list(islice(cycle(order[::-1]), num_warmups))


def worded(prompts: Sequence[Prompt], template: str | None) -> list[str]:
    """The texts to send; ``template`` has ``{prompt}`` where a prompt goes."""
    if template is None:
        return [prompt.text for prompt in prompts]
    return [template.replace("{prompt}", prompt.text) for prompt in prompts]
