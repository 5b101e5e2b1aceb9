"""What rounds did lately: a second at a time, for the last minutes, to anyone who watches."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass

from lightspec_lightllm.server.bucket import Bucket
from lightspec_lightllm.server.round_event import RoundEvent, RoundReporter

__all__ = ["About", "RoundEvent", "RoundReporter", "Telemetry"]

HISTORY_SECONDS = 600
"""Seconds that are kept: about 0.5 MB of JSON."""

LATE_SECONDS = 0.25
"""Time after the end of a second in which its events may still arrive."""


@dataclass(frozen=True, slots=True)
class About:
    """What is served; shown in the head of the dashboard.

    Attributes:
        model: its name.
        strategy: the planner's.
        drafter: its name.
        max_draft_steps: K.
        engine: ``embedded``, ``simulated``, ...
        device: what it runs on.
    """

    model: str
    strategy: str
    drafter: str
    max_draft_steps: int
    engine: str = "embedded"
    device: str = "CPU"


class Telemetry:
    """A ring of the last seconds. `add` from any thread; readers follow the ring at their own pace.

    A reader that is slow or was away finds what it missed in the ring and can never make it grow.
    """

    def __init__(self, about: About, *, clock: Callable[[], float] = time.time, seconds: int = HISTORY_SECONDS) -> None:
        self.about = about
        self.instance = uuid.uuid4().hex
        """Tells a reader that comes back whether it is still the same server."""
        self._clock = clock
        self._lock = threading.Lock()
        self._ring: deque[tuple[int, bytes]] = deque(maxlen=seconds)
        self._load = (0, 0)
        self._bucket = self._open(int(clock()))
        self._notice: str | None = None
        self._closed = False

    # --- the engine's side --------------------------------------------------------------------------------------------

    def add(self, event: RoundEvent) -> None:
        """Count a round. One that arrives late counts in the second that is open."""
        with self._lock:
            self._advance(event.time)
            self._bucket.add(event)
            self._load = (event.num_requests, event.num_waiting)

    def set_load(self, running: int, waiting: int) -> None:
        """Requests that run and wait now; to be told when nothing is left to do, since no round says so."""
        with self._lock:
            self._load = (running, waiting)
            self._bucket.running, self._bucket.waiting = running, waiting

    def set_notice(self, notice: str | None) -> None:
        """A line that watchers see until it is taken back, such as that the engine is being restarted."""
        self._notice = notice

    def close(self) -> None:
        """End every `follow`, so that a server that drains waits for no watcher."""
        self._closed = True

    # --- the watchers' side -------------------------------------------------------------------------------------------

    def history(self) -> bytes:
        """JSON: ``instance``, ``about``, ``notice``, and ``buckets`` of the closed seconds, oldest first."""
        with self._lock:
            self._advance(self._clock() - LATE_SECONDS)
            buckets = b",".join(encoded for _, encoded in self._ring)
        return self._head()[:-1] + b',"buckets":[' + buckets + b"]}"

    async def follow(self, after: int | None = None, *, pause: float = 0.25) -> AsyncIterator[bytes]:
        """Server-sent events until `close`: ``hello`` (`history` without buckets) at first and when it changes, then
        one ``bucket`` for every second from ``after`` on, its second as the event's id.

        Args:
            after: the last second that the reader has; None: only those to come.
            pause: seconds between two looks at the ring.
        """
        head = b""
        last = int(self._clock()) - 1 if after is None else after
        while not self._closed:
            if (now := self._head()) != head:
                head = now
                yield b"event: hello\ndata: " + head + b"\n\n"
            with self._lock:
                self._advance(self._clock() - LATE_SECONDS)
                missed = [entry for entry in self._ring if entry[0] > last]
            for last, encoded in missed:
                yield b"event: bucket\nid: %d\ndata: %s\n\n" % (last, encoded)
            await asyncio.sleep(pause)

    def _head(self) -> bytes:
        head = {"instance": self.instance, "about": asdict(self.about), "notice": self._notice}
        return json.dumps(head, separators=(",", ":")).encode()

    def _advance(self, now: float) -> None:
        """Close the seconds before ``now``; those without rounds are kept too, so that time has no holes."""
        second = int(now)
        while self._bucket.second < second:
            self._ring.append((self._bucket.second, self._bucket.encoded()))
            # After a long silence only what the ring can hold is worth filling.
            step = max(self._bucket.second + 1, second - (self._ring.maxlen or 0))
            self._bucket = self._open(step)

    def _open(self, second: int) -> Bucket:
        return Bucket(second, self.about.max_draft_steps, running=self._load[0], waiting=self._load[1])
