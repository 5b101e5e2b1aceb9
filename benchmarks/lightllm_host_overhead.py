"""CPU time of a decode round on LightLLM, dynamic rounds beside LightLLM's own, without a GPU.

    python benchmarks/lightllm_host_overhead.py
    python benchmarks/lightllm_host_overhead.py --requests 64 --repeats 1 --json overhead.json

Needs a LightLLM checkout and what it imports (`tests/adapters/lightllm/harness/checkout.py` says which). The real
backends of the harness run with their two threads, on real requests; only what a GPU would do is taken out:

* a model's forward gives back ready-made logits of 8 tokens;
* a Triton kernel is launched by its own wrapper and does nothing; where the CPU depends on what it would have written,
  that is computed at once, and its time is not counted;
* verification accepts each draft with a probability of 0.75, in all arms with the same seed.

What remains is Python, numpy, and torch's calls, whose operations on small CPU tensors stand in for kernel launches.
It is CPU time of the thread, so that other processes on the machine do not count. Phases, as LightLLM's two threads
hand them over (each waits for the other's):

    launch     from the list of requests to the last launched kernel
    pre_post   from the accept lengths to the point where the next round may be launched
    post       tokens, stop conditions, slots; beside the next round's forward

``launch + pre_post`` lies between two forwards. Arms take turns; the median over all rounds counts.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from lightspec_lightllm.adapters.lightllm.options import CostOptions, LightLLMConfig, ObserveOptions  # noqa: E402
from lightspec_lightllm.config import PlannerConfig  # noqa: E402
from lightspec_lightllm.machine import this_machine  # noqa: E402
from lightspec_lightllm.planner import CostModel, Planner, make_planner  # noqa: E402
from tests.adapters.lightllm.harness.job import Job, Request  # noqa: E402
from tests.adapters.lightllm.harness.launcher import Launcher  # noqa: E402
from tests.adapters.lightllm.harness.models import Models, write_models  # noqa: E402

if TYPE_CHECKING:
    from tests.adapters.lightllm.harness.rank import Rank

PHASES = ("launch", "pre_post", "post")
WARM_UP = 5
"""Rounds that are not counted."""

ACCEPTANCE = 0.75
VOCAB = 8
TOKEN = 5
MODE = "eagle_with_att"
ARMS = {"lightllm": None, "lightspec": "lightspec", "everything": "fixed"}
"""LightLLM alone; the plugin with its planner; the plugin with LightLLM's own rows and steps."""


class Stopwatch:
    """Counts a thread's time by phase, but for what it is told to leave out. One round at a time is measured."""

    def __init__(self, num_requests: int) -> None:
        self.num_requests = num_requests
        self.rounds: list[dict[str, float]] = []
        self._local = threading.local()
        self._seen = 0

    def begin(self, num_requests: int) -> None:
        """A round of so many requests starts, and with it its first phase."""
        self._seen += num_requests == self.num_requests
        counted = num_requests == self.num_requests and self._seen > WARM_UP
        self._local.round = {"kernels": 0.0, "forwards": 0.0} if counted else None
        self.start()

    def start(self) -> None:
        """A phase starts."""
        self._local.left_out = 0.0
        self._local.started = time.thread_time()

    def stop(self, phase: str) -> None:
        """A phase ends."""
        seconds = time.thread_time() - self._local.started - self._local.left_out
        if self._local.round is not None:
            self._local.round[phase] = 1e3 * seconds
            if phase == PHASES[-1]:
                self.rounds.append(self._local.round)

    def count(self, what: str) -> None:
        """A kernel or a forward was launched."""
        if getattr(self._local, "round", None) is not None:
            self._local.round[what] += 1

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """What happens here is a GPU's work."""
        started = time.thread_time()
        yield
        if hasattr(self._local, "left_out"):
            self._local.left_out += time.thread_time() - started


class TimedEvents:
    """LightLLM's events of a round; the time between them is a phase's."""

    def __init__(self, events: Any, watch: Stopwatch) -> None:
        self._events = events
        self._watch = watch

    def notify_post_handle_and_wait_pre_post_handle(self) -> None:
        self._watch.stop("launch")
        self._events.notify_post_handle_and_wait_pre_post_handle()
        self._watch.start()

    def notify_forward_and_wait_post_handle(self) -> None:
        self._watch.stop("pre_post")
        self._events.notify_forward_and_wait_post_handle()
        self._watch.start()

    def notify_pre_post_handle(self) -> None:
        self._watch.stop("post")
        self._events.notify_pre_post_handle()


def instrument(rank: Rank) -> None:
    """Take the GPU's work out of this process, and measure its rounds. A set-up of the harness."""
    from lightllm.server.router.model_infer.mode_backend.chunked_prefill.impl import ChunkedPrefillBackend

    watch = Stopwatch(len(rank.job.requests))
    rank.notes["rounds"] = watch.rounds
    _stub_kernels(watch)
    _stub_forward(watch)
    _stub_verification(watch)
    owner: Any = ChunkedPrefillBackend
    if rank.job.lightspec is not None:
        from lightspec_lightllm.adapters.lightllm.backend import DynamicMtpMixin

        owner = DynamicMtpMixin
        _stub_operations(watch)
    decode = owner.decode_mtp

    def decode_mtp(self: Any, event_pack: Any, decode_reqs: list[Any]) -> None:
        watch.begin(len(decode_reqs))
        decode(self, TimedEvents(event_pack, watch), decode_reqs)

    owner.decode_mtp = decode_mtp


def _stub_kernels(watch: Stopwatch) -> None:
    from triton.runtime import interpreter

    def launch(*_: Any, **__: Any) -> None:
        watch.count("kernels")

    interpreter.GridExecutor.__call__ = launch


def _stub_forward(watch: Stopwatch) -> None:
    import torch
    from lightllm.common.basemodel.basemodel import TpPartBaseModel
    from lightllm.common.basemodel.batch_objs import ModelOutput

    def forward(model: Any, model_input: Any) -> Any:
        model_input.to_cuda()
        watch.count("forwards")
        with watch.left_out():
            logits = torch.zeros(model_input.batch_size, VOCAB)
            logits[:, TOKEN] = 1.0
            hidden = torch.zeros(len(model_input.mem_indexes), model.config["hidden_size"])
        return ModelOutput(logits=logits, mtp_main_output_hiddens=hidden)

    TpPartBaseModel.forward = forward


def _stub_verification(watch: Stopwatch) -> None:
    import torch
    from lightllm.server.router.model_infer.mode_backend import base_backend

    original, rng = base_backend.mtp_verify, np.random.default_rng(0)

    def mtp_verify(**arguments: Any) -> Any:
        accept_len, accepted = original(**arguments)  # launches nothing, but as it would
        with watch.left_out():
            starts = arguments["b_req_mtp_start_loc"].numpy().astype(np.int64)
            rows = np.diff([*starts, len(accepted)])
            lengths = np.minimum(rng.geometric(1 - ACCEPTANCE, len(starts)), rows)
            place = np.arange(len(accepted)) - np.repeat(starts, rows)
            accept_len.copy_(torch.from_numpy(lengths))
            accepted.copy_(torch.from_numpy(place < np.repeat(lengths, rows)))
        return accept_len, accepted

    base_backend.mtp_verify = mtp_verify


def _stub_operations(watch: Stopwatch) -> None:
    """This package's own kernels: launched for nothing, then their results from the twins."""
    from lightspec_lightllm import ops
    from lightspec_lightllm.ops import kernels, reference

    def launching(name: str) -> Callable[..., Any]:
        kernel, twin = getattr(kernels, name), getattr(reference, name)

        def run(*arguments: Any) -> Any:
            kernel(*arguments)
            with watch.left_out():
                return twin(*arguments)

        return run

    made = {name: launching(name) for name in kernels.__all__}
    setattr(ops, "_kernel", made.__getitem__)  # noqa: B010 - replaced for this process


def make(max_draft_steps: int, strategy: str) -> Planner:
    """The planner of an arm, on modelled costs: a round that runs on nothing has none worth measuring."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(288, 1025, 32), *range(1152, 4097, 128)]
    costs = CostModel.from_tables(
        {rows: (7.2**4 + (0.008 * rows) ** 4) ** 0.25 for rows in sizes}, {rows: 0.35 + 0.0012 * rows for rows in sizes}
    )
    if strategy == "fixed":
        return make_planner(f"fixed:{max_draft_steps}", costs, max_draft_steps=max_draft_steps, drafter="serial")
    return make_planner(strategy, costs, max_draft_steps=max_draft_steps, drafter="serial", drift=False)


def job_of(models: Models, arm: str, num_requests: int, steps: int, rounds: int) -> Job:
    """A job whose requests live for about so many rounds."""
    tokens = int(rounds * (1 - ACCEPTANCE ** (steps + 1)) / (1 - ACCEPTANCE))
    strategy = ARMS[arm]
    config = LightLLMConfig(
        planner=PlannerConfig(max_draft_steps=steps),
        costs=CostOptions(contexts=(16,), repeats=1, graph_sizes=2, max_verify_rows=16),
        observe=ObserveOptions(metrics=False, log_seconds=0),
    )
    plan = f"benchmarks.lightllm_host_overhead:{make.__name__}"
    return Job(
        target=models.target("deepseek", "mixed"),
        requests=(Request((5, 9, 33, 77), max_new_tokens=tokens),) * num_requests,
        mtp_mode=MODE,
        mtp_step=steps,
        drafts=(models.drafter("deepseek", "half"),),
        lightspec=config.to_json() if strategy else None,
        planner=plan if strategy else None,
        planner_options={"strategy": strategy} if strategy else {},
        setup=("benchmarks.lightllm_host_overhead:instrument",),
        max_total_token_num=2049 + num_requests * (tokens + 64 + 4 * steps),
        batch_max_tokens=2048,
        max_req_total_len=tokens + 64,
        running_max_req_size=num_requests,
        start_args={"disable_dynamic_prompt_cache": True},
        timeout=300.0,
    )


@dataclasses.dataclass(frozen=True)
class Line:
    """Medians over all rounds of an arm, in milliseconds; ``kernels`` and ``forwards`` launched per round."""

    requests: int
    arm: str
    rounds: int
    launch: float
    pre_post: float
    post: float
    kernels: float
    forwards: float

    @classmethod
    def of(cls, requests: int, arm: str, rounds: list[dict[str, float]]) -> Line:
        found = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
        return cls(requests, arm, len(rounds), **found)

    def __str__(self) -> str:
        return (
            f"{self.requests:>5} {self.arm:>11} {self.rounds:>7} {self.launch:>8.2f} {self.pre_post:>9.2f} "
            f"{self.launch + self.pre_post:>9.2f} {self.post:>8.2f} {self.kernels:>8.0f} {self.forwards:>9.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[64, 256], help="N (default: 64 256)")
    parser.add_argument("--steps", type=int, default=7, help="K, 1 to 7: more LightLLM cannot (default: 7)")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each run (default: 40)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each arm, in turn (default: 3)")
    parser.add_argument("--json", type=Path, help="also write the lines and the machine to this file")
    args = parser.parse_args()
    if not 1 <= args.steps <= 7:
        parser.error(f"--steps: expected 1 to 7, got {args.steps}")
    head = f"{'N':>5} {'arm':>11} {'rounds':>7} {'launch':>8} {'pre_post':>9} {'both':>9} {'post':>8} {'kernels':>8}"
    print(f"{head} {'forwards':>9}   ms per round")
    lines = []
    launchers = {True: Launcher(plugin=True), False: Launcher(plugin=False)}
    try:
        for num_requests in args.requests:
            lines += _measure(launchers, num_requests, args)
    finally:
        for launcher in launchers.values():
            launcher.close()
    if args.json:
        content = {
            "benchmark": "lightllm_host_overhead",
            "mode": MODE,
            "steps": args.steps,
            "unit": "ms",
            "machine": dataclasses.asdict(this_machine()),
            "lines": [dataclasses.asdict(line) for line in lines],
        }
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _measure(launchers: dict[bool, Launcher], num_requests: int, args: argparse.Namespace) -> list[Line]:
    rounds: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as folder:
        models = write_models(Path(folder) / "models")
        for repeat in range(args.repeats):
            for arm, strategy in ARMS.items():
                place = Path(folder) / f"{arm}-{repeat}"
                place.mkdir()
                job = job_of(models, arm, num_requests, args.steps, args.rounds)
                result = launchers[strategy is not None].run(job, place)
                rounds[arm] += result.ranks[0].notes["rounds"]
    lines = [Line.of(num_requests, arm, each) for arm, each in rounds.items()]
    for line in lines:
        print(line)
    return lines


if __name__ == "__main__":
    main()
