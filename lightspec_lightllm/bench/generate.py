"""``lightspec generate``: one prompt, streamed; and, to compare, the same prompt with speculation off."""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console

from lightspec_lightllm.bench.experiment import Host, warm_up
from lightspec_lightllm.bench.host import check_installed, open_host
from lightspec_lightllm.bench.progress import SetupProgress
from lightspec_lightllm.config import Config
from lightspec_lightllm.engine.options import SamplingParams


@dataclass(frozen=True)
class Answer:
    """One answer and what it took. Times are seconds since it was submitted."""

    strategy: str
    tokens: tuple[int, ...]
    finish_reason: str
    first_token: float
    duration: float
    rounds: int

    def line(self) -> str:
        count = len(self.tokens)
        return (
            f"{self.strategy}: {count} tokens in {self.duration:.2f} s ({count / self.duration:.1f} tok/s), first after"
            f" {self.first_token:.2f} s, {self.rounds} rounds, ended by {self.finish_reason}"
        )


def run_generate(config: Config, prompt: str, params: SamplingParams, strategy: str, *, compare: bool) -> None:
    """Prints the answer to stdout as it grows, and what it took to stderr."""
    check_installed()
    log, output = Console(stderr=True), Console(soft_wrap=True, highlight=False, markup=False)
    with SetupProgress(log) as setup:
        host = open_host(config, setup.report)
    if compare and params.seed is None:
        params = dataclasses.replace(params, seed=0)  # the default seed is the request's number, which would differ

    tokens = host.chat(prompt)
    if compare:
        warm_up(host, tokens)

    def show(strategy: str) -> Answer:
        found = answer(host, tokens, params, strategy, on_text=lambda text: output.print(text, end=""))
        output.print()
        return found

    first = show(strategy)
    if not compare:
        log.print(first.line(), style="dim", highlight=False)
        return
    output.print("\n--- the same with speculation off ---")
    second = show("off")
    output.print("---")
    output.print(first.line())
    output.print(second.line())
    verdict = "identical" if first.tokens == second.tokens else "not identical"
    output.print(f"{first.strategy} is {second.duration / first.duration:.2f} times as fast; the texts are {verdict}")


def answer(
    host: Host, prompt: list[int], params: SamplingParams, strategy: str, *, on_text: Callable[[str], None]
) -> Answer:
    """Decodes one request alone, handing out its text as it grows."""
    began = time.perf_counter()
    rounds, request = host.rounds(strategy), host.submit(prompt, params)
    shown, count, first_token = 0, 0, 0.0
    while request.finish_reason is None:
        count += rounds.step() is not None
        if request.num_generated and not first_token:
            first_token = time.perf_counter() - began
        if len(request.text) > shown:
            on_text(request.text[shown:])
            shown = len(request.text)
    return Answer(
        strategy=strategy,
        tokens=tuple(request.tokens[request.prompt_length :]),
        finish_reason=request.finish_reason,
        first_token=first_token,
        duration=time.perf_counter() - began,
        rounds=count,
    )
