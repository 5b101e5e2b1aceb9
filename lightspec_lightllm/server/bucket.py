"""One second of rounds, added up; what the dashboard draws."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from lightspec_lightllm.server.round_event import NUM_BINS, STAGES, RoundEvent, Tally

BINS_PER_DECADE = 16
"""Resolution of a stage's times: bins 15 % wide, counted from a microsecond."""

MAX_POINTS = 3
"""Rounds of a bucket whose predicted and measured times are kept one by one."""


class Bucket:
    """Rounds of one second.

    Its JSON (`encoded`):

    ``t``: the second (Unix time); ``running`` and ``waiting``: requests, last seen; ``fallback``: see `RoundEvent`;
    sums, left out of a second without rounds: ``rounds``, ``requests``, ``rows`` (B), ``steps`` (d as planned),
    ``made`` (d as drafted), and others named as in `RoundEvent`; over the ``plain`` rounds that read no prompts,
    ``plain_requests``, ``plain_committed``, ``measured_ms`` and ``off_ms``; over the ``timed`` rounds that had a
    prediction, ``predicted_ms``, ``error``: ``|measured - predicted| / predicted``, and ``timed_ms``: what they took;
    ``decisions``: [budget per request in halves, d as drafted, rounds];
    ``stages``: by stage [bin, rounds], bin b beginning at ``10^(b / 16)`` microseconds; ``stage_ms``: sums by stage;
    ``tried``, ``right``: counts by depth; ``by_depth``, ``survival``, ``confidence``: [counts, sums of the foretold
    probability, counts of the accepted];
    ``points``: [predicted ms, measured ms, N]; ``plan``: the last plan that was explained, or null.
    """

    def __init__(self, second: int, max_draft_steps: int, *, running: int = 0, waiting: int = 0) -> None:
        self.second = second
        self.running = running
        self.waiting = waiting
        self._sums: dict[str, float] = {}
        self._decisions: Counter[tuple[int, int]] = Counter()
        self._stages: dict[str, Counter[int]] = {stage: Counter() for stage in STAGES}
        self._stage_ms = dict.fromkeys(STAGES, 0.0)
        self._tried = [0] * max_draft_steps
        self._right = [0] * max_draft_steps
        self._tallies = {
            "by_depth": _Tallies(max_draft_steps),
            "survival": _Tallies(NUM_BINS),
            "confidence": _Tallies(NUM_BINS),
        }
        self._points: list[tuple[float, float, int]] = []
        self._plan: dict[str, Any] | None = None
        self._fallback = False

    def add(self, event: RoundEvent) -> None:
        """Count one round."""
        self.running, self.waiting = event.num_requests, event.num_waiting
        self._fallback = event.fallback
        self._sum(
            rounds=1,
            requests=event.num_requests,
            rows=event.verify_rows,
            steps=event.draft_steps,
            made=event.steps_made,
            drafted=event.drafted,
            verified=event.verified,
            accepted=event.accepted,
            committed=event.committed,
            predicted_tokens=event.predicted_tokens,
            planner_us=event.planner_us,
            probes=int(event.probe),
        )
        if not event.prompt_tokens:
            self._sum(
                plain=1,
                plain_requests=event.num_requests,
                plain_committed=event.committed,
                measured_ms=event.measured_ms,
                off_ms=event.off_ms,
            )
        if event.predicted_ms > 0:
            error = abs(event.measured_ms - event.predicted_ms) / event.predicted_ms
            self._sum(timed=1, predicted_ms=event.predicted_ms, timed_ms=event.measured_ms, error=error)
            if len(self._points) < MAX_POINTS:
                self._points.append((event.predicted_ms, event.measured_ms, event.num_requests))
        self._decisions[round(2 * event.verify_rows / event.num_requests), event.steps_made] += 1
        for stage, milliseconds in zip(STAGES, event.stage_ms, strict=True):
            self._stages[stage][_time_bin(milliseconds)] += 1
            self._stage_ms[stage] += milliseconds
        self._tried = [a + b for a, b in zip(self._tried, event.tried, strict=True)]
        self._right = [a + b for a, b in zip(self._right, event.right, strict=True)]
        for name, tally in self._tallies.items():
            tally.add(getattr(event, name))
        if event.reason is not None:
            self._plan = _plan_of(event)

    def _sum(self, **numbers: float) -> None:
        for name, number in numbers.items():
            self._sums[name] = self._sums.get(name, 0) + number

    def encoded(self) -> bytes:
        """JSON."""
        body = {
            "t": self.second,
            "running": self.running,
            "waiting": self.waiting,
            **{name: _short(number) for name, number in self._sums.items()},
            "decisions": [[*key, count] for key, count in sorted(self._decisions.items())],
            "stages": {stage: sorted(bins.items()) for stage, bins in self._stages.items()},
            "stage_ms": {stage: _short(number) for stage, number in self._stage_ms.items()},
            "tried": self._tried,
            "right": self._right,
            **{name: tally.lists() for name, tally in self._tallies.items()},
            "points": [[_short(predicted), _short(measured), n] for predicted, measured, n in self._points],
            "fallback": self._fallback,
            "plan": self._plan,
        }
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


class _Tallies:
    def __init__(self, size: int) -> None:
        self._count = [0] * size
        self._foretold = [0.0] * size
        self._right = [0] * size

    def add(self, tally: Tally | None) -> None:
        if tally is None:
            return
        self._count = [a + b for a, b in zip(self._count, tally.count, strict=True)]
        self._foretold = [a + b for a, b in zip(self._foretold, tally.foretold, strict=True)]
        self._right = [a + b for a, b in zip(self._right, tally.right, strict=True)]

    def lists(self) -> list[list[Any]] | None:
        """None where nothing was foretold."""
        return [self._count, [_short(p) for p in self._foretold], self._right] if any(self._count) else None


def _plan_of(event: RoundEvent) -> dict[str, Any]:
    reason = event.reason
    assert reason is not None  # noqa: S101 - only called for events with one
    return {
        "time": round(event.time, 3),
        "requests": event.num_requests,
        "rows": event.verify_rows,
        "steps": event.draft_steps,
        "drafted": event.drafted,
        "predicted_tokens": _short(event.predicted_tokens),
        "committed": event.committed,
        "predicted_ms": _short(event.predicted_ms),
        "measured_ms": _short(event.measured_ms),
        "probe": event.probe,
        "budget_reason": reason.budget,
        "steps_reason": reason.steps,
    }


def _time_bin(milliseconds: float) -> int:
    return max(0, math.floor(BINS_PER_DECADE * math.log10(max(1e3 * milliseconds, 1.0))))


def _short(number: float) -> float:
    """Four decimals are finer than anything that is drawn; a number that is not finite is none."""
    if isinstance(number, int):
        return number
    return round(float(number), 4) if math.isfinite(number) else 0.0
