"""What a benchmark measures, checked before anything is loaded."""

from dataclasses import dataclass
from pathlib import Path

from lightspec_lightllm.bench.datasets import FORMATS
from lightspec_lightllm.engine.options import SamplingParams
from lightspec_lightllm.errors import ConfigError


@dataclass(frozen=True)
class BenchOptions:
    """What to measure. Raises ConfigError or RequestError for a value that cannot be measured."""

    datasets: tuple[str, ...] = ("humaneval", "gsm8k", "sharegpt")
    dataset_path: Path | None = None
    concurrency: tuple[int, ...] = (1, 4, 16)
    arms: tuple[str, ...] = ("off", "fixed:3", "fixed:7", "fixed:11", "lightspec")
    num_prompts: int | None = None
    """Per run; None: as many as requests in flight, so that a run is one full batch, and at least 2; where runs end by
    their tokens, as many more as answers of full length would give those."""
    output_tokens: int | None = None
    """Generated tokens at which a run ends; until then it stays full. None: it ends with its last answer."""
    max_tokens: int = 24
    repetitions: int = 1
    seed: int = 0
    temperature: float = 0.0
    interleave: bool = False
    """Whether the arms take turns of half a second, each on an engine of its own, instead of run after run."""
    record: bool = False
    """Whether to write the drafts at every position of the texts, for `lightspec simulate` to replay."""

    def __post_init__(self) -> None:
        for name in self.datasets:
            if name not in FORMATS:
                raise ConfigError(f"--dataset: {name!r} is unknown; expected one of {', '.join(FORMATS)}")
        if self.dataset_path is not None and len(self.datasets) != 1:
            raise ConfigError("--dataset-path: say which kind of file it is with exactly one --dataset")
        for label, values in (
            ("--concurrency", self.concurrency),
            ("--max-tokens", (self.max_tokens,)),
            ("--repetitions", (self.repetitions,)),
            ("--num-prompts", () if self.num_prompts is None else (self.num_prompts,)),
            ("--output-tokens", () if self.output_tokens is None else (self.output_tokens,)),
        ):
            for value in values:
                if value < 1:
                    raise ConfigError(f"{label}: expected at least 1, got {value}")
        if self.record and self.output_tokens is not None:
            raise ConfigError(
                "--record: expected whole answers, but --output-tokens cuts them; leave one of the two out"
            )
        SamplingParams(max_tokens=self.max_tokens, temperature=self.temperature)  # raises RequestError
        for label, given in (("--dataset", self.datasets), ("--concurrency", self.concurrency), ("--arms", self.arms)):
            if not given:
                raise ConfigError(f"{label}: expected at least one value")
            if len(set(given)) != len(given):
                raise ConfigError(f"{label}: a value is given twice in {' '.join(map(str, given))}")

    def prompts_in(self, concurrency: int) -> int:
        if self.num_prompts is not None:
            return self.num_prompts
        more = 0 if self.output_tokens is None else -(-self.output_tokens // self.max_tokens)
        return max(concurrency, 2) + more
