"""The embedded runtime as an experiment's host."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lightspec_lightllm.bench.runner import Request, Stepper
from lightspec_lightllm.config import Config
from lightspec_lightllm.engine.fetch import MODEL_MEMBER, ProgressListener
from lightspec_lightllm.engine.options import SamplingParams
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.machine import version_of
from lightspec_lightllm.planner import CostModel, DrafterKind

if TYPE_CHECKING:
    from lightspec_lightllm.adapters.embedded import EmbeddedRuntime
    from lightspec_lightllm.adapters.recorder import Found


def check_installed() -> None:
    """Raises ConfigError when this installation has no engine."""
    missing = [package for package in ("torch", "tokenizers", "gguf", "jinja2", "numba") if version_of(package) is None]
    if missing:
        raise ConfigError(f"the embedded engine needs {', '.join(missing)}; install lightspec_lightllm[embedded]")


def open_host(config: Config, progress: ProgressListener | None = None) -> "EmbeddedHost":
    """Loads the model and the drafter and measures the cost table, or reads the one of an earlier start."""
    from lightspec_lightllm.adapters.embedded import EmbeddedRuntime

    return EmbeddedHost(EmbeddedRuntime.open(config, config.drafter.name, progress=progress), config)


class EmbeddedHost:
    """Implements `experiment.Host`."""

    def __init__(self, runtime: "EmbeddedRuntime", config: Config) -> None:
        self.runtime = runtime
        self.engine = runtime.engine
        self.config = config

    @property
    def model_id(self) -> str:
        """The name of the model's file, without its ending."""
        return Path(self.config.model.path or MODEL_MEMBER).stem

    @property
    def model_sha256(self) -> str:
        return self.engine.model.config.sha256

    @property
    def threads(self) -> int:
        return self.engine.num_threads

    @property
    def max_context(self) -> int:
        return self.engine.max_context

    def chat(self, text: str) -> list[int]:
        return self.engine.tokenizer.chat(text)

    def submit(self, prompt: list[int], params: SamplingParams, /) -> Request:
        return self.runtime.submit(prompt, params)

    def cancel(self, request_id: int, /) -> None:
        self.engine.cancel(request_id)

    def rounds(self, arm: str, /) -> Stepper:
        choice = self.config.planner.resolve(arm)
        return self.runtime.round(choice.strategy, **choice.options)

    def beside(self) -> "EmbeddedHost":
        return EmbeddedHost(self.runtime.beside(self.config.drafter.name), self.config)

    @property
    def costs(self) -> CostModel:
        """See `record.Recorder`."""
        return self.runtime.costs

    @property
    def drafter_kind(self) -> DrafterKind:
        """See `record.Recorder`."""
        return self.runtime.drafter_kind

    def find_drafts(
        self, texts: Sequence[tuple[list[int], tuple[int, ...]]], max_tokens: int, progress: ProgressListener, /
    ) -> "list[Found]":
        """See `record.Recorder`."""
        from lightspec_lightllm.adapters.recorder import Written, find_drafts

        written = [Written(tuple(prompt), answer, max_tokens) for prompt, answer in texts]
        return find_drafts(
            self.engine,
            self.runtime.drafter,
            written,
            self.runtime.max_draft_steps,
            progress=lambda done: progress("recording drafts", done, len(written)),
        )

    def top_two_gap(self, tokens: list[int], /) -> float | None:
        """Prefills all but the last token and runs that one as a row of its own."""
        sequence = self.engine.submit(tokens[:-1], SamplingParams(max_tokens=2, ignore_eos=True))
        while sequence.status != "running":
            self.engine.schedule(rows=1)
        row = np.array([tokens[-1:]], dtype=np.int64)
        logits = self.engine.forward([sequence], row, np.ones(1, dtype=np.int64)).logits[0]
        self.engine.cancel(sequence.request_id)
        self.engine.schedule(rows=1)
        best = logits.topk(2).values
        return float(best[0] - best[1])
