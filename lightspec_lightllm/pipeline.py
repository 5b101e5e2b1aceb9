"""The Python API: a model with dynamic speculation in three lines.

::

    pipeline = MTPPipeline.from_pretrained()
    print(pipeline.generate("Write a haiku about rivers.").text)
    for piece in pipeline.stream("Count to ten.", max_tokens=64):
        print(piece, end="")
    pipeline.serve(port=8000)
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from lightspec_lightllm.config import Config, check_strategy, load_config
from lightspec_lightllm.engine.options import SamplingParams
from lightspec_lightllm.errors import RequestError

if TYPE_CHECKING:
    from lightspec_lightllm.adapters.embedded import EmbeddedRuntime
    from lightspec_lightllm.engine import Sequence as EngineSequence

Messages: TypeAlias = Sequence[Mapping[str, str]]
"""A conversation: mappings with ``role`` and ``content``."""


@dataclass(frozen=True, slots=True)
class Generated:
    """One answer.

    Attributes:
        text: without a stop string that ended it.
        tokens: its token ids, an end-of-text token included.
        finish_reason: ``stop`` or ``length``.
        prompt_tokens: tokens of the prompt.
        accept_lengths: tokens committed in each round; with the first token they sum up to ``len(tokens)``.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    prompt_tokens: int
    accept_lengths: tuple[int, ...]


class MTPPipeline:
    """A loaded model. One thread at a time, a second one waits; within a thread a stream may stay open meanwhile."""

    def __init__(self, runtime: EmbeddedRuntime, config: Config) -> None:
        self.runtime = runtime
        self.config = config
        choice = config.planner.resolve(config.planner.strategy)
        self._rounds = runtime.round(choice.strategy, **choice.options)
        self._lock = threading.RLock()

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path | None = None,
        *,
        config: Config | str | Path | None = None,
        drafter: str | None = None,
        strategy: str | None = None,
        max_draft_steps: int | None = None,
    ) -> MTPPipeline:
        """Load a model; the first time its costs are measured, which takes a minute.

        Args:
            model: a GGUF file; None: the configuration's, by default SmolLM2-135M-Instruct, downloaded once.
            config: a configuration or its YAML file (see `configs/embedded.yaml`); what else is given wins over it.

        Raises:
            ConfigError: a value is unknown or out of range.
            ModelError: the model cannot be used.
        """
        chosen = load_config(Path(config)) if isinstance(config, str | Path) else config or Config()
        planner = dataclasses.replace(
            chosen.planner,
            strategy=strategy or chosen.planner.strategy,
            max_draft_steps=chosen.planner.max_draft_steps if max_draft_steps is None else max_draft_steps,
        )
        check_strategy(planner.strategy, planner, key="strategy")
        chosen = dataclasses.replace(
            chosen,
            planner=planner,
            model=chosen.model if model is None else dataclasses.replace(chosen.model, path=str(model)),
            drafter=chosen.drafter if drafter is None else dataclasses.replace(chosen.drafter, name=drafter),
        )
        from lightspec_lightllm.adapters.embedded import EmbeddedRuntime

        return cls(EmbeddedRuntime.open(chosen), chosen)

    @overload
    def generate(self, prompt: str | Messages, **params: Any) -> Generated: ...
    @overload
    def generate(self, prompt: list[str], **params: Any) -> list[Generated]: ...
    def generate(self, prompt: str | Messages | list[str], **params: Any) -> Generated | list[Generated]:
        """Answer one user message, one conversation, or a list of user messages, which are decoded together.

        Args:
            params: fields of `SamplingParams` that differ from the configuration's: ``max_tokens``, ``temperature``,
                ``top_k``, ``top_p``, ``seed``, ``stop``, ``ignore_eos``.

        Raises:
            RequestError: a prompt that does not fit, or a parameter that is unknown or out of range.
        """
        chosen = self._params(params)
        if isinstance(prompt, str) or (prompt and not isinstance(prompt[0], str)):
            return self._run([prompt], chosen)[0]  # type: ignore[list-item] # a list of strings was ruled out
        return self._run(list(prompt), chosen)  # type: ignore[arg-type] # as above

    def stream(self, prompt: str | Messages, **params: Any) -> Iterator[str]:
        """The answer in pieces, as rounds commit it; see `generate`. Closing the iterator cancels the request."""
        with self._lock:
            request = self._submit(prompt, self._params(params))
            shown = 0
            try:
                while request.finish_reason is None:
                    self._rounds.step()
                    if len(request.text) > shown:
                        yield request.text[shown:]
                        shown = len(request.text)
            finally:
                self._settle([request])

    def serve(self, *, host: str = "127.0.0.1", port: int = 8000) -> int:
        """Serve what is loaded, as ``lightspec serve`` does but in this process, until SIGTERM or Ctrl-C.

        Returns:
            0, or 1 when the engine failed.

        Raises:
            ConfigError: the address is taken.
        """
        from lightspec_lightllm.server.command import server_on
        from lightspec_lightllm.server.options import ServerOptions

        with self._lock:
            return asyncio.run(server_on(self.runtime, self.config, ServerOptions(host=host, port=port)).run())

    def _params(self, given: Mapping[str, Any]) -> SamplingParams:
        names = {field.name for field in dataclasses.fields(SamplingParams)}
        if unknown := sorted(set(given) - names):
            raise RequestError(f"{unknown[0]}: expected one of {', '.join(sorted(names))}")
        return dataclasses.replace(self.config.sampling, **given)

    def _submit(self, prompt: str | Messages, params: SamplingParams) -> EngineSequence:
        return self.runtime.submit(self.runtime.engine.tokenizer.chat(prompt), params)

    def _run(self, prompts: list[str | Messages], params: SamplingParams) -> list[Generated]:
        with self._lock:
            requests: list[EngineSequence] = []
            lengths: dict[int, list[int]] = {}
            try:
                for prompt in prompts:
                    requests.append(self._submit(prompt, params))
                    lengths[requests[-1].request_id] = []
                while any(request.finish_reason is None for request in requests):
                    record = self._rounds.step()
                    if record is not None:
                        for number, count in zip(record.request_ids.tolist(), record.committed.tolist(), strict=True):
                            lengths.get(number, []).append(count)  # an open stream takes part too
            finally:
                self._settle(requests)
            return [
                Generated(
                    text=request.text,
                    tokens=tuple(request.generated),
                    finish_reason=str(request.finish_reason),
                    prompt_tokens=request.prompt_length,
                    accept_lengths=tuple(lengths[request.request_id]),
                )
                for request in requests
            ]

    def _settle(self, requests: list[EngineSequence]) -> None:
        """Leave nothing behind, whatever ended the loop."""
        engine = self.runtime.engine
        for request in requests:
            engine.cancel(request.request_id)
        if engine.has_work:
            engine.schedule(rows=1)
        engine.take_finished()
