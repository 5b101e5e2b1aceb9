"""Runs one arm on one seed of a scenario."""

from __future__ import annotations

import time
from collections import deque

import numpy as np

from lightspec_lightllm.decode import Round
from lightspec_lightllm.errors import PlanError
from lightspec_lightllm.planner import BatchView, Plan, Planner, RoundFeedback
from lightspec_lightllm.simulate.host import ScenarioHost
from lightspec_lightllm.simulate.options import FREE, PlanTime
from lightspec_lightllm.simulate.trace import Trace


class TimedPlanner:
    """A planner under a stopwatch, which hears of a round ``delay`` rounds late."""

    def __init__(self, planner: Planner, delay: int = 0) -> None:
        self.planner = planner
        self._delay = delay
        self._waiting: deque[RoundFeedback] = deque()
        self.max_draft_steps = planner.max_draft_steps
        self.counters = planner.counters
        self._ns = 0

    def plan(self, view: BatchView) -> Plan:
        """See `planner.Planner`."""
        start = time.perf_counter_ns()
        plan = self.planner.plan(view)
        self._ns += time.perf_counter_ns() - start
        return plan

    def observe(self, feedback: RoundFeedback) -> None:
        """See `planner.Planner`."""
        self._waiting.append(feedback)
        if len(self._waiting) <= self._delay:
            return
        start = time.perf_counter_ns()
        try:
            self.planner.observe(self._waiting.popleft())
        finally:
            self._ns += time.perf_counter_ns() - start

    def take_us(self) -> float:
        """Microseconds since the last call."""
        taken, self._ns = 1e-3 * self._ns, 0
        return taken


def run(host: ScenarioHost, planner: Planner, rounds: int, *, plan_time: PlanTime = FREE, delay: int = 0) -> Trace:
    """Serve ``rounds`` rounds; the planner hears of each ``delay`` rounds late.

    Raises:
        PlanError: the planner failed; a run on fallback steps would say nothing about it.
    """
    timed = TimedPlanner(planner, delay)
    loop = Round(host, timed)
    columns: dict[str, list[float]] = {}
    newest = -1
    for _ in range(rounds):
        record = loop.step()
        if record is None:
            continue
        plan_us = timed.take_us()
        latest = int(record.request_ids.max())
        line = {
            "segment": host.world.segment,
            "num_requests": record.num_requests,
            "fresh": int(np.count_nonzero(record.request_ids > newest)),
            "rows": record.num_requests + int(record.verified.sum()),
            "steps": record.draft_steps,
            "tokens": int(record.committed.sum()),
            "expected": host.expected_tokens,
            "ms": 1e3 * sum(record.seconds.values()),
            "plan_us": plan_us,
            "charged_ms": plan_time.charge_ms(plan_us),
        }
        newest = max(newest, latest)
        for name, value in line.items():
            columns.setdefault(name, []).append(value)
    if loop.counters.fallback is not None:
        raise PlanError(f"the planner failed: {loop.counters.fallback}")
    if loop.counters.num_refused_feedback:
        raise PlanError(f"the planner refused the feedback of {loop.counters.num_refused_feedback} rounds")
    return Trace(**{name: np.array(values) for name, values in columns.items()})
