"""Small scenarios, and a planner that does as it is told."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from lightspec_lightllm.config import parse_mapping
from lightspec_lightllm.decode import Round, RoundRecord
from lightspec_lightllm.planner import BatchView, Plan, PlannerCounters, RoundFeedback
from lightspec_lightllm.simulate.host import ScenarioHost
from lightspec_lightllm.simulate.scenario import Scenario

CONTENT: dict[str, Any] = {
    "name": "small",
    "seed": 1,
    "correlation": 0.5,
    "cost_noise": 0.05,
    "costs": {
        "target": {8: 5.0, 32: 6.0, 128: 12.0},
        "draft": {8: 0.5, 32: 0.7, 128: 1.0},
        "interpolate": False,
        "overhead_ms": 0.1,
        "request_ms": 0.01,
        "request_token_ms": 1e-5,
        "max_rows": 60,
    },
    "drafter": {
        "kind": "serial",
        "max_draft_steps": 4,
        "confidence": "live",
        "quality": "informed",
        "noise": 0.5,
        "bias": 0.0,
        "max_backlog": 5,
    },
    "requests": {
        "count": 6,
        "prompt_tokens": [100, 200],
        "answer_tokens": [10, 20],
        "arrivals": 0.3,
        "pauses": 0.1,
        "pause_rounds": 3,
    },
    "classes": {
        "easy": {"acceptance": [0.7, 0.8], "spread": 0.5, "noise": 1.0},
        "hard": {"acceptance": [0.4], "spread": 0.5, "noise": 1.0},
    },
    "segments": [
        {"rounds": 15, "mix": {"easy": 1.0, "hard": 1.0}, "cost_factor": 1.0},
        {"rounds": 15, "mix": {"hard": 1.0}, "cost_factor": 1.2, "count": [3, 8]},
    ],
}
"""Every key of a scenario, with a value that matters."""

GPU_COSTS = {
    "target": {rows: round((7.2**4 + (0.048 * rows) ** 4) ** 0.25, 4) for rows in (1, *range(8, 513, 8))},
    "draft": {rows: 0.35 + 0.0012 * rows for rows in (1, *range(8, 513, 8))},
    "overhead_ms": 0.3,
}


def content(**changes: Any) -> dict[str, Any]:
    """`CONTENT` with some keys changed; double underscores go down a level, a change of None takes a key out."""
    out: dict[str, Any] = copy.deepcopy(CONTENT)
    for name, value in changes.items():
        *path, key = name.split("__")
        place: Any = out
        for part in path:
            place = place[int(part) if isinstance(place, list) else part]
        if value is None:
            place.pop(key, None)
        else:
            place[key] = value
    return out


def scenario(**changes: Any) -> Scenario:
    """`content`, parsed."""
    return parse_mapping(content(**changes), Scenario)


def plain(
    *,
    acceptance: Sequence[float] = (0.7,),
    spread: float = 0.0,
    noise: float = 0.0,
    count: int = 16,
    steps: int = 4,
    rounds: int = 200,
    drafter: dict[str, Any] | None = None,
    **changes: Any,
) -> Scenario:
    """One class, one segment, requests that never end, no noise of costs."""
    return parse_mapping(
        {
            "name": "plain",
            "costs": GPU_COSTS,
            "drafter": {"max_draft_steps": steps} | (drafter or {}),
            "requests": {"count": count},
            "classes": {"only": {"acceptance": list(acceptance), "spread": spread, "noise": noise}},
            "segments": [{"rounds": rounds, "mix": {"only": 1.0}}],
        }
        | changes,
        Scenario,
    )


class Scripted:
    """Drafts the numbers of steps it was given, in turn, and verifies a share of what waits."""

    def __init__(self, scenario: Scenario, steps: Sequence[int], share: float = 1.0) -> None:
        self.max_draft_steps = scenario.drafter.max_draft_steps
        self.counters = PlannerCounters()
        self.views: list[BatchView] = []
        self.feedbacks: list[RoundFeedback] = []
        self._steps, self._share = steps, share

    def plan(self, view: BatchView) -> Plan:
        steps = self._steps[len(self.views) % len(self._steps)]
        self.views.append(view)
        rows = view.num_requests + int(self._share * int(view.proposed.sum()))
        return Plan(rows, steps, view.num_requests, proposed=view.proposed)

    def observe(self, feedback: RoundFeedback) -> None:
        self.feedbacks.append(feedback)


def serve(
    scenario: Scenario, *, steps: Sequence[int], seed: int = 0, share: float = 1.0, ranks: bool = False
) -> tuple[ScenarioHost, Scripted, list[RoundRecord]]:
    """All rounds of a scenario under a scripted planner."""
    host = ScenarioHost(scenario, seed, ranks=ranks)
    planner = Scripted(scenario, steps, share)
    loop = Round(host, planner)
    records = []
    for _ in range(scenario.num_rounds):
        record = loop.step()
        assert record is not None
        host.check_slots()
        records.append(record)
    assert loop.counters.fallback is None, loop.counters.fallback
    return host, planner, records


def signature(scenario: Scenario) -> list[tuple[float, ...]]:
    """Everything that a planner and a stopwatch see of a scenario."""
    drafted = scenario.drafter.max_draft_steps
    _, planner, records = serve(scenario, steps=(drafted, drafted, 0, 0, 0, drafted, 2))
    return [
        (
            record.num_requests,
            float(record.request_ids.sum()),
            float(np.sum(view.context_tokens)),
            float(view.proposed.sum()),
            -1.0 if view.confidence is None else float(view.confidence.sum()),
            float(view.draft_backlog or 0),
            float(record.accepted.sum()),
            sum(record.seconds.values()),
        )
        for view, record in zip(planner.views, records, strict=True)
    ]
