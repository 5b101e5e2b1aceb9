"""Takes the runs of a command one after the other: empty the cache, warm up, read counters, load, read them again."""

import asyncio
import gc
from dataclasses import dataclass

from lightspec_lightllm.bench.datasets import Dataset
from lightspec_lightllm.client.answers import AnswerCheck, check_code, check_numbers
from lightspec_lightllm.client.load import run_load
from lightspec_lightllm.client.metrics import measure
from lightspec_lightllm.client.options import ClientOptions, Load
from lightspec_lightllm.client.progress import ClientProgress
from lightspec_lightllm.client.request import RequestOutput, Sender
from lightspec_lightllm.client.run import Run, choose_prompts, worded
from lightspec_lightllm.client.sandbox import Sandbox
from lightspec_lightllm.client.server import Server
from lightspec_lightllm.client.speculation import speculation_between
from lightspec_lightllm.errors import EndpointError


@dataclass
class Measurement:
    """What all runs of a command share. ``stop`` ends a run early; what was measured by then is its result."""

    options: ClientOptions
    server: Server
    sender: Sender
    stop: asyncio.Event
    progress: ClientProgress
    sandbox: Sandbox | None = None

    async def take(self, dataset: Dataset, load: Load) -> Run | None:
        """One run; None when it was stopped before its first request. Raises EndpointError when no warm-up succeeds."""
        options = self.options
        num_warmups = options.warmups_in(load)
        prompts, warmups = choose_prompts(dataset, options.prompts_in(load), num_warmups, options.seed)
        self.progress.run_started(dataset, load, len(prompts))
        await self.server.flush()
        await self._warm_up(worded(warmups, options.prompt_template), load)
        if self.stop.is_set():
            return None
        before = await self.server.read_metrics()
        gc.collect()
        gc.freeze()  # what exists by now is not looked through again while answers are timed
        result = await run_load(
            self.sender.send,
            worded(prompts, options.prompt_template),
            load,
            seed=options.seed,
            stop=self.stop,
            on_finish=self.progress.request_finished,
        )
        gc.unfreeze()
        run = Run(
            dataset=dataset,
            load=load,
            prompts=tuple(prompts),
            num_warmups=num_warmups,
            result=result,
            metrics=measure(result.outputs, result.duration, percentiles=options.percentiles, goodput=options.goodput),
            speculation=speculation_between(before, await self.server.read_metrics()),
            answers=None,
        )
        run = await self._check_answers(run)
        self.progress.run_finished(run)
        return run

    async def _warm_up(self, prompts: list[str], load: Load) -> None:
        if not prompts:
            return
        closed = Load(max_concurrency=load.max_concurrency)
        outputs = await self._warm_up_once(prompts, closed)
        if self._refuses_usage(outputs):
            self.sender.ask_for_usage = False
            outputs = await self._warm_up_once(prompts, closed)
        if outputs and not any(output.succeeded for output in outputs):
            raise EndpointError(
                f"none of the {len(outputs)} warm-up requests to {self.sender.url} was answered ({outputs[0].error}); "
                "check --url and --api"
            )

    async def _warm_up_once(self, prompts: list[str], load: Load) -> tuple[RequestOutput, ...]:
        return (await run_load(self.sender.send, prompts, load, seed=self.options.seed, stop=self.stop)).outputs

    def _refuses_usage(self, outputs: tuple[RequestOutput, ...]) -> bool:
        """Whether the server rejects the field that asks for token counts, which older servers do not know."""
        refused = [output for output in outputs if output.status in (400, 422) and "stream_options" in output.error]
        return self.sender.ask_for_usage and bool(outputs) and len(refused) == len(outputs)

    async def _check_answers(self, run: Run) -> Run:
        pairs = [(run.prompts[output.number], output.text) for output in run.result.outputs if output.succeeded]
        check: AnswerCheck | None = None
        if run.dataset.name == "gsm8k":
            check = check_numbers(pairs)
        elif run.dataset.name == "humaneval" and self.sandbox is not None and not run.result.interrupted:
            self.progress.checking(len(pairs))
            check = await asyncio.to_thread(check_code, pairs, self.sandbox, self.progress.answer_checked)
        return run if check is None else run.with_answers(check)
