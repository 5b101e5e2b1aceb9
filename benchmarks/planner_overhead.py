"""Time of `plan` and `observe` on the CPU, in microseconds per round: N requests, K draft steps, a modelled GPU.

    python benchmarks/planner_overhead.py
    python benchmarks/planner_overhead.py --requests 64 256 --steps 15 --confidence --request-ids

Prints one line per setting with percentiles over all rounds, and the machine. The rounds are those of a simulated
server that is always full: requests differ in difficulty, end after some 400 tokens and are replaced, contexts grow.
"""

import argparse
import platform
import time

import numpy as np

from lightspec_lightllm.adapters.simulated import AcceptanceProfile, SimulatedHost
from lightspec_lightllm.decode import select_rows
from lightspec_lightllm.machine import cpu_name
from lightspec_lightllm.planner import BatchView, CostModel, RoundFeedback, make_planner

WARM_UP = 200
"""Rounds that are not counted."""

PROFILE = AcceptanceProfile((0.75,), spread=0.7, noise=1.0, confidence=True)


def modelled_costs() -> CostModel:
    """A staircase: a floor of 7.2 ms, 0.048 ms per row past the knee, more with a long context; a draft of 0.35 ms +
    1.2 us per row."""
    sizes = [1, 2, 4, 8, *range(16, 257, 8), *range(272, 513, 16), *range(544, 1025, 32), *range(1152, 4097, 128)]
    target = {
        context: {rows: (7.2**4 + (0.048 * rows) ** 4) ** 0.25 + 3e-5 * context for rows in sizes}
        for context in (64, 1024, 8192)
    }
    return CostModel.from_tables(target, {rows: 0.35 + 0.0012 * rows for rows in sizes}, overhead_ms=0.3)


def measure(
    num_requests: int, steps: int, rounds: int, *, confidence: bool, request_ids: bool, seed: int
) -> list[float]:
    """Microseconds of plan + observe of every round after the warm-up.

    As many drafts as possible are proposed every round, whatever the plan says: the most that there can be to read.
    """
    costs = modelled_costs()
    host = SimulatedHost(costs, num_requests, PROFILE, max_draft_steps=steps, lifetime=400, seed=seed)
    planner = make_planner("lightspec", costs, max_draft_steps=steps, drafter="serial")
    times = []
    for _ in range(WARM_UP + rounds):
        began, batch = host.now(), host.schedule()
        sure = batch.confidence if confidence else None
        ids = batch.request_ids if request_ids else None
        view = BatchView(num_requests, batch.proposed, batch.context_tokens, sure, ids)
        started = time.perf_counter()
        plan = planner.plan(view)
        planned = time.perf_counter()
        verified = select_rows(view.proposed, plan.verify_rows, plan.survival)
        verdict = host.verify(verified)
        host.commit(verdict)
        host.draft(steps)
        feedback = RoundFeedback(plan, verified, verdict.accepted, sure, 1e3 * (host.now() - began), ids)
        resumed = time.perf_counter()
        planner.observe(feedback)
        times.append(1e6 * (planned - started + time.perf_counter() - resumed))
    return times[WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16, 64, 256], help="N (default: 1 16 64 256)")
    parser.add_argument("--steps", type=int, default=15, help="K, 1 to 15 (default: 15)")
    parser.add_argument("--rounds", type=int, default=10_000, help="rounds per setting (default: 10000)")
    parser.add_argument("--confidence", action="store_true", help="also with confidences of all drafts")
    parser.add_argument("--request-ids", action="store_true", help="also with statistics per request")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(
        f"{cpu_name()}, Python {platform.python_version()}, numpy {np.__version__}, K = {args.steps}, seed {args.seed}"
    )
    print(
        f"{'N':>5} {'per request':>12} {'confidence':>11} {'mean':>8} {'p50':>8} {'p90':>8} {'p99':>8}   us per round"
    )
    settings = [
        (False, False),
        *([(True, False)] if args.request_ids else []),
        *([(True, True)] if args.confidence else []),
    ]
    for num_requests in args.requests:
        for request_ids, confidence in settings:
            times = measure(
                num_requests, args.steps, args.rounds, confidence=confidence, request_ids=request_ids, seed=args.seed
            )
            low, mid, high = np.percentile(times, [50, 90, 99])
            print(
                f"{num_requests:>5} {'yes' if request_ids else 'no':>12} {'yes' if confidence else 'no':>11} "
                f"{np.mean(times):8.1f} {low:8.1f} {mid:8.1f} {high:8.1f}"
            )


if __name__ == "__main__":
    main()
