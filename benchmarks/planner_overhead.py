"""Time of `plan` and `observe` on the CPU, in microseconds per round: N requests, K draft steps, a modelled GPU.

    python benchmarks/planner_overhead.py
    python benchmarks/planner_overhead.py --requests 64 256 --steps 15 --confidence --request-ids

Prints one line per setting with percentiles over all rounds, and the machine. The rounds are meant to keep the planner
busy: every request has a full proposal waiting, and accept lengths are drawn at random.
"""

import argparse
import platform
import time

import numpy as np

from lightspec_lightllm.machine import cpu_name
from lightspec_lightllm.planner import BatchView, CostModel, RoundFeedback, make_planner


def modelled_costs() -> CostModel:
    """A staircase: a floor of 7.2 ms, 0.048 ms per row past the knee; a draft of 0.35 ms + 1.2 us per row."""
    sizes = [1, 2, 4, 8, *range(16, 257, 8), *range(272, 513, 16), *range(544, 1025, 32), *range(1152, 4097, 128)]
    target = {rows: (7.2**4 + (0.048 * rows) ** 4) ** 0.25 for rows in sizes}
    return CostModel.from_tables(target, {rows: 0.35 + 0.0012 * rows for rows in sizes}, overhead_ms=0.3)


def measure(
    num_requests: int, steps: int, rounds: int, *, confidence: bool, request_ids: bool, seed: int
) -> list[float]:
    """Microseconds of plan + observe of every round after the first 200."""
    rng = np.random.default_rng(seed)
    planner = make_planner("lightspec", modelled_costs(), max_draft_steps=steps, drafter="serial")
    ids = np.arange(num_requests) if request_ids else None
    proposed = np.full(num_requests, steps)
    times = []
    for _ in range(200 + rounds):
        sure = rng.random((num_requests, steps)) if confidence else None
        view = BatchView(num_requests, proposed, 512.0, confidence=sure, request_ids=ids)
        started = time.perf_counter()
        plan = planner.plan(view)
        planned = time.perf_counter()
        verified = rng.integers(0, steps + 1, num_requests)
        right = (rng.random((num_requests, steps)) < 0.75).cumprod(axis=1).sum(axis=1)
        feedback = RoundFeedback(
            plan,
            verified,
            1 + np.minimum(right, verified),
            confidence=sure,
            measured_ms=12.0 + rng.random(),
            request_ids=ids,
        )
        resumed = time.perf_counter()
        planner.observe(feedback)
        times.append(1e6 * (planned - started + time.perf_counter() - resumed))
    return times[200:]


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
    print(f"{'N':>5} {'per request':>12} {'confidence':>11} {'p50':>8} {'p90':>8} {'p99':>8}   us per round")
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
                f"{low:8.1f} {mid:8.1f} {high:8.1f}"
            )


if __name__ == "__main__":
    main()
