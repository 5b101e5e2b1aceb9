"""One model process, as LightLLM's router would start it: its choice of backend class, its two infer threads."""

from __future__ import annotations

import importlib
import os
import threading
from multiprocessing.connection import Connection
from typing import Any

from tests.adapters.lightllm.harness import recorder
from tests.adapters.lightllm.harness.job import Job


class Rank:
    """A rank before and after its backend is built. Set-up functions get it.

    Attributes:
        job: what runs.
        index: 0 .. tp - 1.
        notes: whatever a set-up function wants in the result; JSON-able.
        backend: LightLLM's or the plugin's backend, None until it is built.
    """

    def __init__(self, job: Job, index: int) -> None:
        self.job = job
        self.index = index
        self.notes: dict[str, Any] = {}
        self.backend: Any = None

    def start(self, args: Any, port: int) -> None:
        """Build the backend, which starts its threads. ``port``: of the process group's store."""
        from lightllm.common.basemodel.basemodel import TpPartBaseModel
        from lightllm.server.router.model_infer import model_rpc

        TpPartBaseModel._autotune_warmup = skip_warm_up
        for where in self.job.setup:
            load(where)(self)
        if self.job.planner is not None:
            use_planner(self.job)
        self.recorder = recorder.Recorder()
        server = model_rpc.ModelRpcServer(args, self.index, self.index, self.job.tp, None)
        server.exposed_init_model(
            {
                "args": args,
                "rank_id": None,
                "world_size": args.tp,
                "dp_size": args.dp,
                "weight_dir": args.model_dir,
                "load_way": args.load_way,
                "max_total_token_num": args.max_total_token_num,
                "max_req_num": args.running_max_req_size,
                "max_seq_length": args.max_req_total_len + 8,  # the router's margin
                "nccl_host": args.nccl_host,
                "nccl_port": port,
                "data_type": args.data_type,
                "eos_id": args.eos_id,
                "graph_max_batch_size": args.graph_max_batch_size,
                "graph_max_len_in_batch": args.graph_max_len_in_batch,
                "disable_cudagraph": args.disable_cudagraph,
                "mem_fraction": args.mem_fraction,
                "batch_max_tokens": args.batch_max_tokens,
                "quant_type": args.quant_type,
                "quant_cfg": args.quant_cfg,
                "expert_dtype": args.expert_dtype,
            }
        )
        self.backend = server.backend
        self.recorder.begin(self.backend)


def skip_warm_up(model: Any) -> None:
    """In place of LightLLM's forwards that have kernels compiled ahead: nothing is compiled here."""


def load(where: str) -> Any:
    """The object that "module:name" names."""
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)


def use_planner(job: Job) -> None:
    from lightspec_lightllm.adapters.lightllm.backend import DynamicMtpMixin

    assert job.planner is not None, "no planner named"
    make = load(job.planner)

    def make_planner(self: Any, table: Any) -> Any:
        return make(max_draft_steps=self.max_draft_steps, **job.planner_options)

    setattr(DynamicMtpMixin, "make_planner", make_planner)  # noqa: B010 - a method replaced for one process


def serve(job: Job, index: int, args: Any, port: int, pipe: Connection) -> None:
    """Body of the process: build, say so, serve until told to report, and go without waiting for the threads."""
    threading.excepthook = die
    rank = Rank(job, index)
    rank.start(args, port)
    pipe.send("ready")
    kv_path = pipe.recv()
    pipe.send(rank.recorder.report(rank, kv_path))
    pipe.recv()
    os._exit(0)  # the infer threads never end


def die(failure: threading.ExceptHookArgs) -> None:
    """An infer thread that ends takes its process along, so that the job fails at once instead of timing out."""
    threading.__excepthook__(failure)
    os._exit(1)
