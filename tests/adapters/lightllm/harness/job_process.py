"""One job: its ranks, each a process, and the router's part, which feeds them through LightLLM's shared memory."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.adapters.lightllm.harness import leftovers, rank
from tests.adapters.lightllm.harness.job import (
    FINISHED,
    IDS_PER_REQUEST,
    Job,
    JobResult,
    Outcome,
    RankReport,
    Request,
    write,
)
from tests.adapters.lightllm.harness.launcher import free_port
from tests.adapters.lightllm.harness.virtual_cuda import interpreter

POLL_SECONDS = 0.002
EOS_ID = 2

SERVICE_VARIABLE = "LIGHTLLM_UNIQUE_SERVICE_NAME_ID"
"""Where LightLLM keeps the name that its files start with."""


class JobFailedError(RuntimeError):
    """A rank died, or the job took longer than it may; the log says what it last did."""


def run(job: Job, result: Path) -> None:
    """Run a job in this process and its children, and write what came of it.

    LightLLM caches start arguments for the life of a process: a process runs one job.
    """
    started = time.monotonic()
    deadline = started + job.timeout
    interpreter.use(job.kernels)
    args = publish_start_args(job)
    # One for all ranks, so that shared memory is removed once, after the last of them has gone.
    resource_tracker.ensure_running()
    from lightllm.server.core.objs import ShmReqManager
    from lightllm.server.core.objs.shm_objs_io_buffer import ShmObjsIOBuffer

    shared = ShmReqManager(), ShmObjsIOBuffer()
    port = free_port()
    ranks = [RankProcess(job, index, args, port) for index in range(job.tp)]
    try:
        for each in ranks:
            each.receive(deadline)
        ready = time.monotonic()
        outcomes = Router(job, ranks, *shared).serve(deadline)
        served = time.monotonic()
        kv = str(result.with_suffix(".npz")) if job.keep_kv else None
        for each in ranks:
            each.pipe.send(kv if each.index == 0 else None)
        reports: list[RankReport] = [each.receive(deadline) for each in ranks]
        seconds = {"start": ready - started, "requests": served - ready}
        write(result, JobResult(outcomes, tuple(reports), seconds, kv))
    finally:
        for each in ranks:
            each.process.kill()
            each.process.join()
        # Shared memory goes with the tracker, when this process does.
        leftovers.remove(os.environ[SERVICE_VARIABLE], leftovers.LOCKS_AND_SOCKETS)


def publish_start_args(job: Job) -> Any:
    """LightLLM's start arguments, in the environment as its launcher would leave them."""
    from lightllm.server.core.objs.start_args_type import StartArgs
    from lightllm.utils.envs_utils import set_env_start_args, set_unique_server_name

    args = StartArgs(
        **{
            "model_dir": job.target,
            "data_type": "float32",
            "tp": job.tp,
            "max_total_token_num": job.max_total_token_num,
            "batch_max_tokens": job.batch_max_tokens,
            "chunked_prefill_size": job.chunked_prefill_size,
            "max_req_total_len": job.max_req_total_len,
            "running_max_req_size": job.running_max_req_size,
            "disable_cudagraph": True,
            "llm_prefill_att_backend": ["triton"],
            "llm_decode_att_backend": ["triton"],
            "eos_id": [EOS_ID],
            "mtp_mode": job.mtp_mode,
            "mtp_step": job.mtp_step,
            "mtp_draft_model_dir": list(job.drafts) or None,
            **job.start_args,
        }
    )
    if job.lightspec is not None:
        args.lightspec = job.lightspec
    os.environ["DISABLE_CHECK_MAX_LEN_INFER"] = "1"  # a prefill of the longest possible batch, only to see that it fits
    set_unique_server_name(args)
    set_env_start_args(args)
    return args


class RankProcess:
    """A rank and the pipe to it."""

    def __init__(self, job: Job, index: int, args: Any, port: int) -> None:
        self.index = index
        context = multiprocessing.get_context("fork")  # everything is imported already
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=rank.serve, args=(job, index, args, port, theirs), daemon=True
        )
        self.process.start()
        theirs.close()

    def receive(self, deadline: float) -> Any:
        if not self.pipe.poll(max(0.0, deadline - time.monotonic())):
            raise JobFailedError(f"rank {self.index} did not answer in time")
        try:
            return self.pipe.recv()
        except EOFError:
            self.process.join()
            raise JobFailedError(f"rank {self.index} died with exit code {self.process.exitcode}") from None


class Router:
    """Sends requests and aborts, and waits for the ranks to be done with them."""

    def __init__(self, job: Job, ranks: list[RankProcess], requests: Any, commands: Any) -> None:
        if len(job.requests) > job.running_max_req_size:
            raise ValueError(f"{len(job.requests)} requests, but running_max_req_size is {job.running_max_req_size}")
        self._job = job
        self._ranks = ranks
        self._manager = requests
        self._commands = commands
        self._sent: dict[int, Any] = {}
        self._aborted: set[int] = set()

    def serve(self, deadline: float) -> tuple[Outcome, ...]:
        while len(self._sent) < len(self._job.requests) or not all(self._ended(index) for index in self._sent):
            if self._commands.is_empty() and (commands := [*self._due(), *self._leaving()]):
                self._commands.write_obj(commands)
                self._commands.set_ready()
            dead = [each.index for each in self._ranks if not each.process.is_alive()]
            if dead:
                raise JobFailedError(f"rank {dead[0]} died while {self._state()}")
            if time.monotonic() > deadline:
                raise JobFailedError(f"not done after {self._job.timeout} s: {self._state()}")
            time.sleep(POLL_SECONDS)
        return tuple(outcome(self._sent[index]) for index in range(len(self._job.requests)))

    def _ended(self, index: int) -> bool:
        return bool(self._sent[index].shm_infer_released)

    def _due(self) -> list[Any]:
        """Commands for requests whose time has come, put into shared memory first."""
        commands = []
        for index, request in enumerate(self._job.requests):
            if index not in self._sent and self._may_start(request):
                self._sent[index] = shared = self._share(index, request)
                from lightllm.server.multimodal_params import MultimodalParams

                commands.append((shared.request_id, shared.index_in_shm_mem, MultimodalParams(), 0))
        return commands

    def _may_start(self, request: Request) -> bool:
        if request.after is None:
            return True
        other, tokens = request.after
        if other not in self._sent:
            return False
        return self._ended(other) if tokens == FINISHED else self._sent[other].shm_cur_output_len >= tokens

    def _share(self, index: int, request: Request) -> Any:
        from lightllm.server.core.objs.sampling_params import SamplingParams

        params = SamplingParams()
        sampling = {"do_sample": False, "ignore_eos": True, **request.sampling}
        params.init(tokenizer=None, max_new_tokens=request.max_new_tokens, **sampling)
        shared = self._manager.reqs[self._manager.alloc_req_index()]
        shared.init(
            request_id=(index + 1) * IDS_PER_REQUEST,
            prompt_ids=list(request.prompt),
            sample_param=params,
            tokenizer=None,
            chunked_prefill_size=self._job.chunked_prefill_size,
        )
        return shared

    def _leaving(self) -> list[Any]:
        from lightllm.server.core.objs.io_objs import AbortedReqCmd

        commands = []
        for index, shared in self._sent.items():
            limit = self._job.requests[index].abort_after
            if limit is not None and index not in self._aborted and shared.shm_cur_output_len >= limit:
                self._aborted.add(index)
                commands.append(AbortedReqCmd(req_id=shared.request_id))
        return commands

    def _state(self) -> str:
        running = {index: one.shm_cur_output_len for index, one in self._sent.items() if not self._ended(index)}
        return f"{len(self._sent)} of {len(self._job.requests)} requests were sent; tokens of those running: {running}"


def outcome(shared: Any) -> Outcome:
    length, reason = shared.shm_cur_output_len, shared.finish_status.get_finish_reason()
    if reason == "abort":
        length -= 1  # LightLLM ends an aborted request with an end-of-text token of its own
    tokens = shared.shm_prompt_ids.arr[shared.input_len : shared.input_len + length].tolist()
    return Outcome(tuple(tokens), reason, shared.mtp_accepted_token_num, shared.prompt_cache_len)
