"""Time of `plan` and `observe` on the CPU, in microseconds per round: N requests, K draft steps, a modelled GPU.

    python benchmarks/planner_overhead.py
    python benchmarks/planner_overhead.py --requests 64 256 --steps 15 --confidence --request-ids

Prints one line per setting with percentiles over all rounds, and the machine. The rounds are those of a simulated
server that is always full, of one of two kinds: *steady*, the same requests with K drafts each in every round; and
*turnover*, in which requests end after some 400 tokens and are replaced, so that proposals are ragged. Confidences
mean something, and the batch is worth speculating on. They are known *live*, before a round is planned, as on the
embedded engine; or *late*, with the round's feedback, as on a GPU that nobody waits for.

Every round is planned twice. *In turn*: the simulated server computes between planning and observing, which leaves the
caches cold, as a server does that plans on the thread that runs the model. *On its own*: a second planner is given the
same rounds (it plans the same, which is checked) with nothing between them, as on a core that only plans. With
``--planners 7`` seven planners are, and of each round the median of their times counts: what a round takes by itself is
in all seven, while an interruption by the machine falls on other rounds every time.

With ``--cpu`` only the time that the thread itself ran is counted, and not that in which others had its core.

The planner's loops are compiled where numba is installed; with ``NUMBA_DISABLE_JIT=1`` they are numpy's there too.

The line *control* times the same numpy calls over and over, as long as a plan takes: what its percentiles are apart is
the machine's doing (interrupts, other tenants), not the planner's.
"""

import argparse
import gc
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from lightspec_lightllm.adapters.simulated import AcceptanceProfile, SimulatedHost
from lightspec_lightllm.decode import select_rows
from lightspec_lightllm.machine import cpu_name
from lightspec_lightllm.planner import BatchView, CostModel, Planner, RoundFeedback, make_planner
from lightspec_lightllm.planner.loops import INNER

WARM_UP = 200
"""Rounds that are not counted."""

PROFILE = AcceptanceProfile((0.75,), spread=0.7, noise=1.0, confidence=True)


def modelled_costs() -> CostModel:
    """A staircase: a floor of 7.2 ms, flat up to some 1000 rows, more with a long context; a draft of 0.35 ms + 1.2 us
    per row. On it a batch of 256 verifies a part of its drafts, which takes the most planning."""
    sizes = [1, 2, 4, 8, *range(16, 257, 8), *range(272, 513, 16), *range(544, 1025, 32), *range(1152, 4097, 128)]
    target = {
        context: {rows: (7.2**4 + (0.008 * rows) ** 4) ** 0.25 + 3e-5 * context for rows in sizes}
        for context in (64, 1024, 8192)
    }
    return CostModel.from_tables(target, {rows: 0.35 + 0.0012 * rows for rows in sizes}, overhead_ms=0.3)


@dataclass(frozen=True)
class Setting:
    """What the planner is given."""

    num_requests: int
    steps: int
    request_ids: bool
    confidence: str
    turnover: bool


SEGMENT = 500
"""Rounds that are kept until they are planned again."""


def measure(
    setting: Setting, rounds: int, seed: int, clock: Callable[[], float], planners: int
) -> tuple[list[float], list[float]]:
    """Microseconds of plan + observe of every round after the warm-up, in turn with the server and on its own.

    As many drafts as possible are proposed every round, whatever the plan says: the most that there can be to read.
    """
    costs, steps = modelled_costs(), setting.steps
    lifetime = 400 if setting.turnover else None
    host = SimulatedHost(
        modelled_costs(), setting.num_requests, PROFILE, max_draft_steps=steps, lifetime=lifetime, seed=seed
    )
    planner, *alone = (
        make_planner("lightspec", costs, max_draft_steps=steps, drafter="serial") for _ in range(1 + planners)
    )
    times: list[float] = []
    times_alone: list[float] = []
    kept: list[tuple[BatchView, RoundFeedback]] = []
    for number in range(WARM_UP + rounds):
        began, batch = host.now(), host.schedule()
        sure = None if setting.confidence == "no" else batch.confidence
        ids = batch.request_ids if setting.request_ids else None
        context = batch.context_tokens if setting.turnover else 512.0
        live = sure if setting.confidence == "live" else None
        view = BatchView(setting.num_requests, batch.proposed, context, live, ids)
        started = clock()
        plan = planner.plan(view)
        planned = clock()
        verified = select_rows(view.proposed, plan.verify_rows, plan.survival)
        verdict = host.verify(verified)
        host.commit(verdict)
        host.draft(steps)
        feedback = RoundFeedback(plan, verified, verdict.accepted, sure, 1e3 * (host.now() - began), ids)
        resumed = clock()
        planner.observe(feedback)
        times.append(1e6 * (planned - started + clock() - resumed))
        kept.append((view, feedback))
        if len(kept) == SEGMENT or number == WARM_UP + rounds - 1:
            times_alone += np.median([again(other, kept, clock) for other in alone], axis=0).tolist()
            kept.clear()
    return times[WARM_UP:], times_alone[WARM_UP:]


def again(planner: Planner, kept: list[tuple[BatchView, RoundFeedback]], clock: Callable[[], float]) -> list[float]:
    """Microseconds of plan + observe of rounds that were planned before."""
    times = []
    for view, feedback in kept:
        started = clock()
        plan = planner.plan(view)
        planned = clock()
        before = feedback.plan
        if (plan.verify_rows, plan.draft_steps) != (before.verify_rows, before.draft_steps):
            raise SystemExit(f"planned {before} at first and now {plan}")
        anew = replace(feedback, plan=plan)
        resumed = clock()
        planner.observe(anew)
        times.append(1e6 * (planned - started + clock() - resumed))
    return times


def control(rounds: int, microseconds: float, clock: Callable[[], float]) -> list[float]:
    """Microseconds of a fixed piece of work of about that length, with other work between."""
    rng = np.random.default_rng(0)
    counts, knots, at = rng.integers(0, 16, 256), np.linspace(0.0, 1.0, 17), np.linspace(0.0, 1.0, 90)

    def work(repetitions: int) -> float:
        started = clock()
        for _ in range(repetitions):
            tally = np.bincount(counts, minlength=17)
            gain = np.interp(at, knots, np.add.accumulate(tally[::-1])) - 0.1 * at
            gain.argmax()
        return 1e6 * (clock() - started)

    repetitions = max(1, round(microseconds / float(np.median([work(10) for _ in range(500)]) / 10)))
    times = []
    for _ in range(rounds):
        rng.random((256, 30))
        times.append(work(repetitions))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16, 64, 256], help="N (default: 1 16 64 256)")
    parser.add_argument("--steps", type=int, default=15, help="K, 1 to 15 (default: 15)")
    parser.add_argument("--rounds", type=int, default=10_000, help="rounds per setting (default: 10000)")
    parser.add_argument("--confidence", action="store_true", help="also with confidences of all drafts")
    parser.add_argument("--request-ids", action="store_true", help="also with statistics per request")
    parser.add_argument("--cpu", action="store_true", help="time of this thread, not of the clock on the wall")
    parser.add_argument("--planners", type=int, default=1, help="that plan on their own; medians count (default: 1)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.planners < 1:
        parser.error(f"--planners: expected at least 1, got {args.planners}")
    clock = time.thread_time if args.cpu else time.perf_counter
    INNER.prepare()
    gc.collect()
    gc.freeze()  # as hosts do when they have started
    print(
        f"{cpu_name()}, Python {platform.python_version()}, numpy {np.__version__}, loops: {INNER.described}, "
        f"K = {args.steps}, seed {args.seed}"
    )
    shown = f"{'mean':>8} {'p50':>8} {'p90':>8} {'p99':>8}"
    print(f"{'us/round' + (' of CPU' if args.cpu else ''):>32} {'in turn with a server':>35}   {'on its own':>35}")
    print(f"{'N':>5} {'rounds':>9} {'ids':>4} {'confidence':>11} {shown}   {shown}")
    known = [
        (False, "no"),
        *([(True, "no")] if args.request_ids else []),
        *([(True, "late"), (True, "live")] if args.confidence else []),
    ]
    for num_requests in args.requests:
        for turnover in (False, True):
            for request_ids, confidence in known:
                setting = Setting(num_requests, args.steps, request_ids, confidence, turnover)
                times, times_alone = measure(setting, args.rounds, args.seed, clock, args.planners)
                kind = "turnover" if turnover else "steady"
                print(
                    f"{num_requests:>5} {kind:>9} {'yes' if request_ids else 'no':>4} "
                    f"{confidence:>11} {percentiles(times)}   {percentiles(times_alone)}",
                    flush=True,
                )
    print(f"{'control':>32} {percentiles(control(args.rounds, 50.0, clock))}")


def percentiles(times: list[float]) -> str:
    return " ".join(f"{value:8.1f}" for value in (np.mean(times), *np.percentile(times, [50, 90, 99])))


if __name__ == "__main__":
    main()
