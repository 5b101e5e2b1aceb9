"""The rounds that a benchmark really ran, timed by the measured cost table instead of a noisy clock.

    python benchmarks/at_table_costs.py RESULTS.rounds.json COSTS.json

``RESULTS.rounds.json`` is written by ``lightspec bench``, ``COSTS.json`` lies under ``~/.cache/lightspec/costs``. Real
prompts, real drafts, real accept lengths and the decisions as they were made; only the time of a round is
``T(B, N, context) + d Td(N) + start(N)`` from the table, the start where d > 0, plus the measured time of planning.
Prompt processing is left out. On a shared machine this shows what the decisions are worth when the clock cannot.

Prints, per dataset and requests in flight, decode tokens/s of each arm over that of ``off``, and lightspec's over that
of the best static arm.
"""

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path

from lightspec_lightllm.adapters.cost_cache import FORMAT, cost_model
from lightspec_lightllm.planner import CostModel


def load_costs(path: Path) -> CostModel:
    """The cost model of a table that the embedded runtime stored."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    if stored["key"]["format"] != FORMAT:
        raise SystemExit(f"{path}: expected a table of format {FORMAT}, got {stored['key']['format']}; measure it anew")
    return cost_model(stored)


def decode_rate(rounds: dict[str, list[float]], costs: CostModel) -> float:
    """Committed tokens per second of one run."""
    seconds = 0.0
    columns = ("num_requests", "context_tokens", "verify_rows", "draft_steps", "plan_ms")
    for requests, context, rows, steps, plan_ms in zip(*(rounds[name] for name in columns), strict=True):
        count, mean = int(requests), context / requests
        drafting = costs.draft_ms("serial_no_kv", count, int(rows), int(steps), block=1) if costs.draft else 0.0
        seconds += (costs.target_ms(int(rows), count, mean) + drafting + plan_ms) / 1e3
    return sum(rounds["committed"]) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=Path)
    parser.add_argument("costs", type=Path)
    args = parser.parse_args()
    costs = load_costs(args.costs)
    rates: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in json.loads(args.rounds.read_text(encoding="utf-8")):
        rates[run["dataset"], run["max_concurrency"]][run["arm"]].append(decode_rate(run["rounds"], costs))
    ratios = []
    for (dataset, flight), arms in rates.items():
        medians = {arm: statistics.median(values) for arm, values in arms.items()}
        best = max((arm for arm in medians if arm != "lightspec"), key=medians.__getitem__)
        ratios.append(medians["lightspec"] / medians[best])
        over_off = "  ".join(f"{arm} {rate / medians['off']:.2f}" for arm, rate in medians.items())
        print(f"{dataset:10} {flight:3} in flight  {over_off}   lightspec / {best} {ratios[-1]:.3f}")
    print(f"geometric mean {statistics.geometric_mean(ratios):.3f}, lowest {min(ratios):.3f}")


if __name__ == "__main__":
    main()
