"""One arm of `gpu_check.py`: LightLLM's backend in this process, fed as its router would, measured round by round.

python benchmarks/gpu_worker.py task.json result.json
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

POLL_SECONDS = 0.002
IDS_PER_REQUEST = 8
"""LightLLM spaces request ids so that the samples of one request have ids of their own."""


@dataclass(frozen=True)
class Task:
    """What a worker does.

    Attributes:
        start_args: LightLLM's start arguments.
        lightspec: the plugin's resolved configuration, or None for LightLLM alone.
        acceptance: probability that the draft at each position is accepted given that those before were; the last
            one holds for deeper drafts.
        groups: numbers of requests, each group served when the one before has ended.
        text_requests: requests served first, with true verification, to compare their text.
        prompt_tokens, max_new_tokens: of each request.
        vocab: of the model; prompts are drawn from it.
        timeout: seconds until the worker gives up.
    """

    start_args: dict[str, Any]
    lightspec: dict[str, Any] | None
    acceptance: tuple[float, ...]
    groups: tuple[int, ...]
    text_requests: int
    prompt_tokens: int
    max_new_tokens: int
    vocab: int
    timeout: float


class SyntheticVerification:
    """Stands in for LightLLM's ``mtp_verify``: while it is on, accept lengths are drawn, on the device, by position.

    The drawn prefix of drafts is accepted whatever the target sampled, so that any acceptance can be had from random
    weights, and rounds cost what they cost.
    """

    def __init__(self, original: Any, acceptance: tuple[float, ...], max_draft_steps: int) -> None:
        import torch

        self.on = False
        self._original = original
        chances = [acceptance[min(place, len(acceptance) - 1)] for place in range(max_draft_steps)]
        self._chances = torch.tensor(chances, dtype=torch.float32).cuda()
        self._random = torch.Generator(self._chances.device).manual_seed(0)

    def __call__(self, **arguments: Any) -> Any:
        """As `mtp_verify`: accept lengths int32[N], and int32[B], 1 at accepted rows."""
        import torch

        if not self.on:
            return self._original(**arguments)
        starts = arguments["b_req_mtp_start_loc"].long()
        count = len(arguments["b_req_idx"])
        rows = torch.diff(starts, append=torch.full_like(starts[:1], count))
        draws = torch.rand((len(starts), len(self._chances)), generator=self._random, device=self._chances.device)
        lengths = torch.minimum(1 + (draws < self._chances).int().cumprod(dim=1).sum(dim=1), rows)
        row = torch.arange(count, device=starts.device)
        request = torch.searchsorted(starts, row, right=True) - 1
        accepted = row - starts[request] < lengths[request]
        return lengths.int(), accepted.int()


@dataclass(frozen=True)
class Mark:
    """The start of a round: seconds, requests of the batch, and their output tokens so far."""

    seconds: float
    requests: int
    tokens: int


class Worker:
    """A backend with its two threads, and the router's part."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.marks: list[Mark] = []
        self._sent = 0
        self._deadline = time.monotonic() + task.timeout

    def start(self) -> None:
        """Build the backend: load, capture graphs, measure costs."""
        if self.task.lightspec is not None:
            from lightspec_lightllm.adapters.lightllm import hooks

            hooks.install()
        from lightllm.server.core.objs import ShmReqManager
        from lightllm.server.core.objs.shm_objs_io_buffer import ShmObjsIOBuffer
        from lightllm.server.core.objs.start_args_type import StartArgs
        from lightllm.utils.envs_utils import get_env_start_args, set_env_start_args, set_unique_server_name

        args: Any = StartArgs(**self.task.start_args)
        if self.task.lightspec is not None:
            args.lightspec = self.task.lightspec
        os.environ["DISABLE_CHECK_MAX_LEN_INFER"] = "1"  # a prefill of the longest batch, only to see that it fits
        set_unique_server_name(args)
        set_env_start_args(args)
        args = get_env_start_args()
        self._shared, self._commands = ShmReqManager(), ShmObjsIOBuffer()
        from lightllm.server.router.model_infer import model_rpc
        from lightllm.server.router.model_infer.mode_backend import base_backend

        steps = max(args.mtp_step, 1)
        self.verification = SyntheticVerification(base_backend.mtp_verify, self.task.acceptance, steps)
        base_backend.mtp_verify = self.verification
        self._mark_rounds()
        server = model_rpc.ModelRpcServer(args, 0, 0, 1, None)
        server.exposed_init_model(_model_arguments(args))
        self.backend = server.backend

    def _mark_rounds(self) -> None:
        from lightllm.server.router.model_infer.mode_backend.chunked_prefill.impl import ChunkedPrefillBackend

        owner: Any = ChunkedPrefillBackend
        if self.task.lightspec is not None:
            from lightspec_lightllm.adapters.lightllm.backend import DynamicMtpMixin

            owner = DynamicMtpMixin
        name = "decode_mtp" if self.task.start_args["mtp_mode"] else "decode_normal"
        decode = getattr(owner, name)

        def marked(backend: Any, event_pack: Any, decode_reqs: list[Any]) -> None:
            tokens = sum(req.cur_output_len for req in decode_reqs)
            self.marks.append(Mark(time.perf_counter(), len(decode_reqs), tokens))
            decode(backend, event_pack, decode_reqs)

        setattr(owner, name, marked)

    def serve(self, num_requests: int) -> tuple[list[list[int]], list[Mark]]:
        """Serve so many requests at once; the same ones in every arm.

        Returns:
            Their token ids, and the rounds.
        """
        self.marks.clear()
        requests = [self._request() for _ in range(num_requests)]
        from lightllm.server.multimodal_params import MultimodalParams

        self._commands.write_obj([(one.request_id, one.index_in_shm_mem, MultimodalParams(), 0) for one in requests])
        self._commands.set_ready()
        while not all(one.shm_infer_released for one in requests):
            if time.monotonic() > self._deadline:
                raise TimeoutError(f"{num_requests} requests were not served in time")
            time.sleep(POLL_SECONDS)
        tokens = [
            one.shm_prompt_ids.arr[one.input_len : one.input_len + one.shm_cur_output_len].tolist() for one in requests
        ]
        return tokens, list(self.marks)

    def _request(self) -> Any:
        from lightllm.server.core.objs.sampling_params import SamplingParams

        params = SamplingParams()
        params.init(tokenizer=None, do_sample=False, ignore_eos=True, max_new_tokens=self.task.max_new_tokens)
        rng = np.random.default_rng(self._sent)
        self._sent += 1
        made = self._shared.reqs[self._shared.alloc_req_index()]  # never given back: there is one for each
        made.init(
            request_id=self._sent * IDS_PER_REQUEST,
            prompt_ids=rng.integers(3, self.task.vocab, self.task.prompt_tokens).tolist(),
            sample_param=params,
            tokenizer=None,
            chunked_prefill_size=self.task.start_args["chunked_prefill_size"],
        )
        return made


def _model_arguments(args: Any) -> dict[str, Any]:
    """What LightLLM's router hands to a rank."""
    same = (
        *("nccl_host", "data_type", "eos_id", "graph_max_batch_size", "graph_max_len_in_batch", "disable_cudagraph"),
        *("mem_fraction", "batch_max_tokens", "quant_type", "quant_cfg", "expert_dtype", "load_way"),
        "max_total_token_num",
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {name: getattr(args, name) for name in same} | {
        "args": args,
        "rank_id": None,
        "world_size": 1,
        "dp_size": 1,
        "weight_dir": args.model_dir,
        "max_req_num": args.running_max_req_size,
        "max_seq_length": args.max_req_total_len + 8,  # the router's margin
        "nccl_port": port,
    }


def run(task: Task) -> dict[str, Any]:
    """Everything that a worker found, as JSON."""
    import torch

    began = time.perf_counter()
    worker = Worker(task)
    worker.start()
    started = time.perf_counter()
    text, _ = worker.serve(task.text_requests)
    worker.verification.on = True
    groups = []
    for size in task.groups:
        _, marks = worker.serve(size)
        groups.append({"requests": size, "marks": [dataclasses.astuple(mark) for mark in marks]})
    counters = None
    if task.lightspec is not None:
        found = worker.backend.planner.counters
        counters = {
            "rounds": found.num_rounds,
            "verified_tokens": found.num_verified_tokens,
            "accepted_tokens": found.num_accepted_tokens,
            "plan_seconds": found.plan_seconds,
            "fallback": found.fallback,
        }
    return {
        "device": torch.cuda.get_device_name(),
        "attention": type(worker.backend.model.decode_att_backend).__name__,
        "graphs": list(worker.backend.model.graph.cuda_graph_batch_sizes) if worker.backend.model.graph else None,
        "start_seconds": started - began,
        "memory_gb": torch.cuda.max_memory_allocated() / 2**30,
        "text": text,
        "groups": groups,
        "counters": counters,
    }


def remove_shared_memory() -> None:
    """What LightLLM keeps under this server's name; a process that just ends leaves it behind."""
    from lightllm.utils.envs_utils import get_unique_server_name

    for segment in Path("/dev/shm").glob(f"{get_unique_server_name()}_*"):  # noqa: S108 - where it lies
        segment.unlink(missing_ok=True)


def die(failure: threading.ExceptHookArgs) -> None:
    """A backend thread that ends takes the process along: the check fails at once instead of timing out."""
    threading.__excepthook__(failure)
    remove_shared_memory()
    os._exit(1)


def main() -> None:
    task, result = (Path(argument) for argument in sys.argv[1:])
    threading.excepthook = die
    content = json.loads(task.read_text(encoding="utf-8"))
    for name in ("acceptance", "groups"):
        content[name] = tuple(content[name])
    code = 1
    try:
        found = run(Task(**content))
        result.write_text(json.dumps(found), encoding="utf-8")
        code = 0
    except BaseException:  # noqa: BLE001 - the log is all that the parent sees
        traceback.print_exc()
    remove_shared_memory()
    os._exit(code)  # the backend's threads never end


if __name__ == "__main__":
    main()
