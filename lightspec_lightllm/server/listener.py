"""Who hears what happens in a server."""

from __future__ import annotations

from collections.abc import Sequence

from lightspec_lightllm.server.messages import EngineInfo, Report


class Listener:
    """Hears of sequences, rounds and engines; does nothing by itself."""

    def arrived(self, num_prompt_tokens: int) -> None:
        """A sequence was handed to the engine."""

    def first_token(self, seconds: float) -> None:
        """A sequence got its first token; since it arrived."""

    def next_tokens(self, seconds: float) -> None:
        """A sequence got more; since the tokens before. A round may bring several at once."""

    def finished(self, reason: str, num_tokens: int, num_rounds: int) -> None:
        """A sequence ended: ``stop``, ``length``, ``cancelled`` or ``error``."""

    def report(self, report: Report) -> None:
        """Rounds ran."""

    def engine_ready(self, info: EngineInfo) -> None:
        """An engine is up, the first one or another."""

    def engine_lost(self, message: str) -> None:
        """It has ended, unasked."""


class Listeners(Listener):
    """Several of them, told in their order."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners

    def arrived(self, num_prompt_tokens: int) -> None:
        for listener in self._listeners:
            listener.arrived(num_prompt_tokens)

    def first_token(self, seconds: float) -> None:
        for listener in self._listeners:
            listener.first_token(seconds)

    def next_tokens(self, seconds: float) -> None:
        for listener in self._listeners:
            listener.next_tokens(seconds)

    def finished(self, reason: str, num_tokens: int, num_rounds: int) -> None:
        for listener in self._listeners:
            listener.finished(reason, num_tokens, num_rounds)

    def report(self, report: Report) -> None:
        for listener in self._listeners:
            listener.report(report)

    def engine_ready(self, info: EngineInfo) -> None:
        for listener in self._listeners:
            listener.engine_ready(info)

    def engine_lost(self, message: str) -> None:
        for listener in self._listeners:
            listener.engine_lost(message)
