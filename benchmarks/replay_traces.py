"""What dynamic planning is worth on recorded answers: every arm on the same text, timed by measured costs.

    lightspec bench --record --arms off --drafter head --concurrency 16 --num-prompts 32 --max-tokens 128 --out OUT
    python benchmarks/replay_traces.py OUT/bench-DATE.trace.json.gz [MORE.trace.json.gz ..]

A trace holds real prompts, the target's own answers, and for every position what the drafter proposed there, how sure
it was and how much of it was right; losslessness makes it valid for any plan. Time is that of the cost table measured
when it was recorded, plus the measured time of planning. Prompt processing is left out. A clock on a shared machine
would need days for the same precision.

Prints, per trace, set and requests in flight: tokens/s of lightspec over off, over the best of off and the fixed arms
(chosen afterwards, with the lowest and highest of the seeds), and over fixed:11; then geometric means.
"""

import argparse
import contextlib
import io
import json
import statistics
import tempfile
from pathlib import Path

import yaml

from lightspec_lightllm.adapters.recording import load_recording
from lightspec_lightllm.cli import main as lightspec

ARMS = ("off", "fixed:1", "fixed:3", "fixed:7", "fixed:11")
ROUNDS = {1: 1500, 4: 600, 8: 400, 16: 300}
"""Rounds of a run, by requests in flight: 1500 to 5000 tokens of off."""


def rates(trace: Path, dataset: str, num_requests: int, seeds: int, folder: Path) -> dict[str, dict[int, float]]:
    """Tokens per second by arm and seed."""
    scenario = {
        "name": f"{trace.name}-{dataset}",
        "trace_file": str(trace.resolve()),
        "requests": {"count": num_requests},
        "segments": [{"rounds": ROUNDS[num_requests], "mix": {dataset: 1.0}}],
    }
    path, out = folder / "scenario.yaml", folder / f"{trace.name}-{dataset}-{num_requests}"
    path.write_text(yaml.safe_dump(scenario), encoding="utf-8")
    command = ["simulate", str(path), "--seeds", str(seeds), "--arms", *ARMS, "lightspec", "--out", str(out)]
    with contextlib.redirect_stdout(io.StringIO()):
        if lightspec(command):
            raise SystemExit(1)
    (result,) = (file for file in out.glob("*.json") if not file.name.endswith(".rounds.json"))
    found: dict[str, dict[int, float]] = {}
    for run in json.loads(result.read_text(encoding="utf-8"))["cells"][0]["runs"]:
        found.setdefault(run["arm"], {})[run["seed"]] = run["segments"][0]["tokens_per_second"]
    return found


def ratios(mine: dict[int, float], other: dict[int, float]) -> list[float]:
    """Of equal seeds, ascending."""
    return sorted(mine[seed] / rate for seed, rate in other.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--concurrency", type=int, nargs="+", choices=ROUNDS, default=list(ROUNDS))
    parser.add_argument(
        "--seeds", type=int, default=5, help="runs of each arm; the seed draws the order of the answers"
    )
    args = parser.parse_args()
    for trace in args.traces:
        over_best = []
        print(f"{trace.name}: lightspec over")
        print(f"{'':10} {'in flight':>9} {'off':>6} {'best static':>32} {'fixed:11':>9}")
        for dataset in load_recording(trace).datasets:
            for num_requests in args.concurrency:
                with tempfile.TemporaryDirectory() as folder:
                    found = rates(trace, dataset, num_requests, args.seeds, Path(folder))
                mine = found.pop("lightspec")
                best = max(found, key=lambda arm: statistics.median(found[arm].values()))
                spread = ratios(mine, found[best])
                over_best.append(statistics.median(spread))
                shown = f"{over_best[-1]:.3f} ({spread[0]:.3f}-{spread[-1]:.3f}, {best})"
                off, long = (statistics.median(ratios(mine, found[arm])) for arm in ("off", "fixed:11"))
                print(f"{dataset:10} {num_requests:>9} {off:6.2f} {shown:>32} {long:9.2f}", flush=True)
        mean, lowest = statistics.geometric_mean(over_best), min(over_best)
        print(f"geometric mean over the best static arm {mean:.3f}, lowest {lowest:.3f}\n")


if __name__ == "__main__":
    main()
