"""Fixed and dynamic rounds on one GPU with LightLLM, on random weights, in less than 8 minutes.

    python benchmarks/gpu_check.py --json gpu_check.json
    python benchmarks/gpu_check.py --shape 8b --acceptance 0.8 0.7 0.6 --arms off lightllm:3 lightspec:7
    python benchmarks/gpu_check.py --drafter dflash --arms off lightllm:3 lightspec:7
    python benchmarks/gpu_check.py --dry-run

First, every kernel of this package is held against its specification (`gpu_kernels.py`). Then it writes checkpoints of
random weights (speed depends on shapes alone), and for each arm starts LightLLM's backend in a process of its own -
weights, CUDA graphs, and for a dynamic one the cost table - and serves groups of requests. Arms:

    off          no drafts
    lightllm:K   LightLLM's own MTP of K fixed steps, K up to 7
    fixed:K      this package's rounds with K fixed steps, all of them verified
    lightspec:K  dynamic rounds of at most K steps

The last two draft with ``--drafter``: LightLLM's MTP layer, or an Eagle3, DFlash or DSpark drafter of the same widths.

Drafts of random weights are never right, so acceptance is synthetic: a draft is accepted with the probability given
for its position, whatever was sampled, which changes no shape and no kernel. Before that, a few requests are served
with true verification: their text is compared with that of ``off`` (in half precision, kernels of other shapes may
round otherwise, so that texts part sooner or later; in float32 on a CPU they do not).

Tokens per second are those of the longest stretch of rounds with all requests of a group in the batch. ``--dry-run``
does all of this on the CPU, with a tiny model and the virtual device of the tests: what it prints as times means
nothing, but every line has run. Needs LightLLM (installed, or where ``LIGHTLLM_SRC`` or the tests' cache has it).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.gpu_worker import Mark, Task  # noqa: E402
from benchmarks.random_models import SHAPES, write, write_drafter  # noqa: E402
from lightspec_lightllm.adapters.lightllm.arguments import DRAFTER_MODES, HOST_MODE  # noqa: E402
from lightspec_lightllm.adapters.lightllm.options import CostOptions, LightLLMConfig, ObserveOptions  # noqa: E402
from lightspec_lightllm.config import PlannerConfig  # noqa: E402
from lightspec_lightllm.machine import this_machine  # noqa: E402

WARM_UP = 5
"""Rounds of a group that are not counted, at most a quarter of them."""

KERNEL_SECONDS = 120.0
"""For the kernels alone, most of it their compilation."""

TEXT_REQUESTS = 4
OWN_ARMS = ("fixed", "lightspec")
ARMS = ["off", "lightllm:3", "lightllm:7", "lightspec:7"]
DRY_ARMS = ["off", "lightllm:2", "fixed:2", "lightspec:3"]
LOG_TAIL = 30


@dataclass(frozen=True)
class Setup:
    """Sizes of a check; see the command line's options."""

    shape: str
    dtype: str
    groups: tuple[int, ...]
    prompt_tokens: int
    new_tokens: int
    acceptance: tuple[float, ...]
    drafter: str
    attention: str
    contexts: tuple[int, ...]
    graph_sizes: int
    max_verify_rows: int
    repeats: int
    dry_run: bool

    @property
    def length(self) -> int:
        """Tokens of a request at most."""
        return self.prompt_tokens + self.new_tokens + 64


Models = Mapping[str, Path]
"""The folders of ``target``, ``mtp`` and the other drafter, if there is one."""


@dataclass(frozen=True)
class Line:
    """One group of one arm."""

    arm: str
    requests: int
    rounds: int
    tokens_per_second: float
    round_ms: float
    accept_length: float

    def __str__(self) -> str:
        return (
            f"{self.arm:>12} {self.requests:>5} {self.rounds:>7} {self.tokens_per_second:>10.0f} "
            f"{self.round_ms:>9.2f} {self.accept_length:>8.2f}"
        )


def task_of(setup: Setup, arm: str, models: Models, timeout: float) -> Task:
    """What a worker does for an arm."""
    name, _, number = arm.partition(":")
    steps = int(number or 0)
    drafter = setup.drafter if name in OWN_ARMS else "mtp"
    requests = TEXT_REQUESTS + sum(setup.groups)
    config = LightLLMConfig(
        planner=PlannerConfig(strategy=arm if name == "fixed" else "lightspec", max_draft_steps=max(steps, 1)),
        costs=CostOptions(
            contexts=setup.contexts,
            repeats=setup.repeats,
            graph_sizes=setup.graph_sizes,
            max_verify_rows=setup.max_verify_rows,
        ),
        observe=ObserveOptions(metrics=False, log_seconds=2.0),
        drafter=None if drafter == "mtp" else drafter,
    )
    mode = "eagle_no_att" if drafter == "mtp" else HOST_MODE
    slots = max(setup.groups) * (setup.length + 3 * (1 + steps))
    return Task(
        start_args={
            "model_dir": str(models["target"]),
            "data_type": setup.dtype,
            "eos_id": [2],
            "mtp_mode": mode if steps else None,
            "mtp_step": steps,
            "mtp_draft_model_dir": [str(models[drafter])] if steps else None,
            "max_total_token_num": slots + 2 * setup.length + 4096,
            "batch_max_tokens": max(4096, setup.length),
            "chunked_prefill_size": 2048,
            "max_req_total_len": setup.length,
            "running_max_req_size": requests,
            "graph_max_batch_size": max(setup.groups),
            "graph_max_len_in_batch": setup.length + 64,
            "disable_cudagraph": setup.dry_run,
            "disable_dynamic_prompt_cache": True,
            "llm_prefill_att_backend": [setup.attention],
            "llm_decode_att_backend": [setup.attention],
        },
        lightspec=config.to_json() if name in OWN_ARMS else None,
        acceptance=setup.acceptance,
        groups=setup.groups,
        text_requests=TEXT_REQUESTS,
        prompt_tokens=setup.prompt_tokens,
        max_new_tokens=setup.new_tokens,
        vocab=SHAPES[setup.shape].vocab,
        timeout=timeout,
    )


def environment(folder: Path, *, dry_run: bool) -> dict[str, str]:
    """Of a worker: LightLLM importable, a cache of its own, and for a dry run the virtual device."""
    paths = [str(ROOT)]
    made = {**os.environ, "LIGHTSPEC_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    if dry_run:
        paths.insert(0, str(ROOT / "tests" / "adapters" / "lightllm" / "harness" / "site"))
        made |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if importlib.util.find_spec("lightllm") is None:
        from tests.adapters.lightllm.harness import checkout

        paths.append(str(checkout.path()))
    made["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    return made


def run_arm(setup: Setup, arm: str, models: Models, seconds: float) -> dict[str, Any]:
    """A worker's result, or ``{"error": ..}`` with the end of its log."""
    place = models["target"].parent / arm.replace(":", "-")
    place.mkdir()
    task = task_of(setup, arm, models, timeout=seconds)
    (place / "task.json").write_text(json.dumps(dataclasses.asdict(task)), encoding="utf-8")
    return run_script("gpu_worker.py", ["task.json", "result.json"], place, seconds, dry_run=setup.dry_run)


def compare_kernels(folder: Path, seconds: float, *, dry_run: bool) -> dict[str, Any]:
    """By operation, ``ok`` or what is wrong; or ``{"error": ..}`` with the end of the log."""
    place = folder / "kernels"
    place.mkdir()
    return run_script("gpu_kernels.py", ["result.json"], place, seconds, dry_run=dry_run)


def run_script(script: str, arguments: list[str], place: Path, seconds: float, *, dry_run: bool) -> dict[str, Any]:
    """What a script of this folder leaves in ``result.json``, or ``{"error": ..}`` with the end of its log."""
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
    with (place / "log.txt").open("w", encoding="utf-8") as log:
        try:
            done = subprocess.run(  # noqa: S603 - this folder's own script
                command,
                cwd=place,
                env=environment(place.parent, dry_run=dry_run),
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=seconds + 5,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"not done in {seconds:.0f} s", "log": _tail(place / "log.txt")}
    if done.returncode != 0:
        return {"error": f"exit code {done.returncode}", "log": _tail(place / "log.txt")}
    found: dict[str, Any] = json.loads((place / "result.json").read_text(encoding="utf-8"))
    return found


def _tail(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL:]


def line_of(arm: str, size: int, marks: list[Mark]) -> Line | None:
    """The longest stretch of rounds with all ``size`` requests; None where it is too short to say anything."""
    stretches = [list(each) for full, each in itertools.groupby(marks, lambda mark: mark.requests == size) if full]
    longest = max(stretches, key=len, default=[])
    longest = longest[min(WARM_UP, len(longest) // 4) :]
    if len(longest) < 3:
        return None
    first, last, rounds = longest[0], longest[-1], len(longest) - 1
    seconds, tokens = last.seconds - first.seconds, last.tokens - first.tokens
    return Line(arm, size, rounds, tokens / seconds, 1e3 * seconds / rounds, tokens / (rounds * size))


def agreement(text: list[list[int]], reference: list[list[int]]) -> float:
    """Share of the reference's tokens that come before the first difference."""
    same = [
        sum(itertools.takewhile(bool, (int(a == b) for a, b in zip(mine, theirs, strict=False))))
        for mine, theirs in zip(text, reference, strict=True)
    ]
    return sum(same) / max(sum(map(len, reference)), 1)


def check(setup: Setup, arms: list[str], minutes: float) -> dict[str, Any]:
    """Run the arms, one after the other, while time is left; what came of them, as JSON."""
    import torch

    deadline = time.monotonic() + 60 * minutes
    content: dict[str, Any] = {
        "check": "gpu_check",
        "setup": dataclasses.asdict(setup),
        "parameters": SHAPES[setup.shape].parameters,
        "machine": dataclasses.asdict(this_machine()),
        "arms": {},
        "lines": [],
    }
    with tempfile.TemporaryDirectory(prefix="lightspec-gpu-check-") as name:
        folder = Path(name)
        began = time.monotonic()
        content["operations"] = compare_kernels(folder, min(KERNEL_SECONDS, 60 * minutes), dry_run=setup.dry_run)
        content["kernels"] = "ok" if all(found == "ok" for found in content["operations"].values()) else "differs"
        content["kernel_seconds"] = time.monotonic() - began
        print("kernels:", "ok" if content["kernels"] == "ok" else json.dumps(content["operations"], indent=1))
        began = time.monotonic()
        shape = SHAPES[setup.shape]
        given = {
            "dtype": getattr(torch, setup.dtype),
            "device": "cpu" if setup.dry_run else "cuda",
            "max_length": setup.length + 64,
        }
        models = dict(zip(("target", "mtp"), write(folder, shape, **given), strict=True))
        if setup.drafter != "mtp":
            models[setup.drafter] = write_drafter(folder, setup.drafter, shape, **given)
        content["write_seconds"] = time.monotonic() - began
        print(f"{'arm':>12} {'N':>5} {'rounds':>7} {'tokens/s':>10} {'ms/round':>9} {'accepted':>8}")
        for arm in arms:
            left = deadline - time.monotonic()
            taken = [each["seconds"] for each in content["arms"].values()]
            if taken and left < statistics.mean(taken):
                content["arms"][arm] = {"skipped": f"{left:.0f} s left, an arm takes {statistics.mean(taken):.0f} s"}
                continue
            content["arms"][arm] = _examined(content, setup, arm, models, left)
        content["cost_tables"] = [
            json.loads(path.read_text()) for path in sorted((folder / "cache").rglob("costs/lightllm/*.json"))
        ]
    return content


def _examined(content: dict[str, Any], setup: Setup, arm: str, models: Models, left: float) -> dict[str, Any]:
    """Run an arm and print its lines, which are added to those of ``content``."""
    began = time.monotonic()
    found = run_arm(setup, arm, models, left)
    found["seconds"] = time.monotonic() - began
    for group in found.pop("groups", []):
        line = line_of(arm, group["requests"], [Mark(*mark) for mark in group["marks"]])
        if line is None:
            found.setdefault("too_short", []).append(group["requests"])
            continue
        print(line)
        content["lines"].append(dataclasses.asdict(line))
    text = found.get("text")
    reference = text if arm == "off" else content["arms"].get("off", {}).get("text")
    if text is not None and reference is not None:
        found["agrees_with_off"] = agreement(text, reference)
    if "error" in found:
        print(f"{arm:>12} failed: {found['error']}", *found["log"], sep="\n    ")
    return found


def _arm(text: str) -> str:
    name, _, steps = text.partition(":")
    most = {"lightllm": 7, "fixed": 15, "lightspec": 15}.get(name)
    if text != "off" and (most is None or not steps.isdecimal() or not 1 <= int(steps) <= most):
        raise argparse.ArgumentTypeError(
            f"expected off, lightllm:K (K <= 7), fixed:K or lightspec:K (K <= 15), got {text!r}"
        )
    return text


def _probability(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a probability from 0 to 1, got {text}")
    return value


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), help="of the target (default: 2b)")
    parser.add_argument("--arms", type=_arm, nargs="+", help=f"default: {' '.join(ARMS)}")
    parser.add_argument("--requests", type=int, nargs="+", help="sizes of the groups (default: 1 16 64 256)")
    parser.add_argument("--prompt-tokens", type=int, help="default: 512")
    parser.add_argument("--new-tokens", type=int, help="default: 384")
    parser.add_argument(
        "--acceptance",
        type=_probability,
        nargs="+",
        default=[0.8, 0.7, 0.65, 0.6],
        help="of the draft at each position, given that those before were accepted; the last holds for deeper ones",
    )
    parser.add_argument(
        "--drafter",
        choices=("mtp", *DRAFTER_MODES),
        default="mtp",
        help="of the arms fixed and lightspec; LightLLM's own keep its MTP layer (default: mtp)",
    )
    parser.add_argument("--attention", help="LightLLM's --llm_decode_att_backend (default: auto)")
    parser.add_argument("--minutes", type=float, default=8.0, help="what would end later is left out (default: 8)")
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, on a tiny model: tests the script itself")
    args = parser.parse_args(arguments)
    dry = args.dry_run
    setup = Setup(
        shape=args.shape or ("tiny" if dry else "2b"),
        dtype="float32" if dry else "bfloat16",
        groups=tuple(args.requests or ([1, 3] if dry else [1, 16, 64, 256])),
        prompt_tokens=args.prompt_tokens or (6 if dry else 512),
        new_tokens=args.new_tokens or (24 if dry else 384),
        acceptance=tuple(args.acceptance),
        drafter=args.drafter,
        attention=args.attention or ("triton" if dry else "auto"),
        contexts=(16, 32) if dry else (512, 4096, 16384),
        graph_sizes=4 if dry else 40,
        max_verify_rows=16 if dry else 1024,
        repeats=1 if dry else 10,
        dry_run=dry,
    )
    arms = args.arms or (DRY_ARMS if dry else ARMS)
    content = check(setup, arms, args.minutes)
    if args.json:
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    summary = {
        arm: {key: found[key] for key in ("start_seconds", "agrees_with_off", "error", "skipped") if key in found}
        for arm, found in content["arms"].items()
    }
    print(json.dumps({"kernels": content["kernels"], "lines": content["lines"], "arms": summary}, indent=1))
    return int(content["kernels"] != "ok" or any("error" in found for found in content["arms"].values()))


if __name__ == "__main__":
    sys.exit(main())
