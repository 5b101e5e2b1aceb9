"""``/lightspec/status``: what is served, what the engine holds and what it did so far."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from lightspec_lightllm import __version__
from lightspec_lightllm.server.engine_client import EngineClient
from lightspec_lightllm.server.listener import Listener
from lightspec_lightllm.server.messages import Report
from lightspec_lightllm.server.supervisor import Supervisor
from lightspec_lightllm.server.trace import TraceFile


class Totals(Listener):
    """Sums since the server's start, over all its engines."""

    def __init__(self) -> None:
        self.rounds = dict.fromkeys(("rounds", "drafted", "verified", "accepted", "committed", "probes"), 0)
        self.ended = dict.fromkeys(("stop", "length", "cancelled", "error"), 0)

    def finished(self, reason: str, num_tokens: int, num_rounds: int) -> None:  # noqa: ARG002 - the interface's
        self.ended[reason] += 1

    def report(self, report: Report) -> None:
        for event in report.rounds:
            self.rounds["rounds"] += 1
            self.rounds["probes"] += event.probe
            for name in ("drafted", "verified", "accepted", "committed"):
                self.rounds[name] += getattr(event, name)


class StatusBoard:
    """Puts together what the parts of a server know."""

    def __init__(
        self, client: EngineClient, supervisor: Supervisor, totals: Totals, served_name: str, trace: TraceFile | None
    ) -> None:
        self._client = client
        self._supervisor = supervisor
        self._totals = totals
        self._served_name = served_name
        self._trace = trace
        self._started = time.monotonic()

    def snapshot(self) -> dict[str, Any]:
        """Plain values; ``engine`` and ``load`` are null while no engine is up."""
        info, load = self._client.info, self._client.load
        engine = None
        if info is not None:
            names = ("model", "strategy", "drafter", "max_draft_steps", "weights", "threads", "pid")
            limits = ("max_context", "max_requests", "num_slots")
            engine = {name: getattr(info, name) for name in (*names, *limits)}
        trace = None
        if self._trace is not None:
            trace = {"file": str(self._trace.path), "active": self._trace.active}
        return {
            "version": __version__,
            "model": self._served_name,
            "state": self._supervisor.state,
            "uptime_seconds": round(time.monotonic() - self._started, 3),
            "engine_restarts": self._supervisor.num_restarts,
            "engine": engine,
            "load": None if load is None else asdict(load),
            "in_flight": self._client.in_flight,
            "max_in_flight": self._client.limit,
            "ended": self._totals.ended,
            "totals": self._totals.rounds,
            "fallback": self._client.fallback,
            "trace": trace,
        }
