"""The engine's side of the seam: commands in, rounds, deltas and reports out."""

from __future__ import annotations

import logging
import os
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import numpy as np

from lightspec_lightllm.errors import RequestError
from lightspec_lightllm.server.messages import (
    Cancel,
    Command,
    Delta,
    Deltas,
    EngineInfo,
    Load,
    Refused,
    Report,
    RoundCounts,
    RoundDetail,
    Submit,
)
from lightspec_lightllm.server.round_event import RoundEvent, RoundReporter

if TYPE_CHECKING:
    from lightspec_lightllm.adapters.embedded import EmbeddedRuntime
    from lightspec_lightllm.decode import Round, RoundRecord
    from lightspec_lightllm.engine import Sequence

REPORT_SECONDS = 0.1
"""Time between two reports while rounds run."""

logger = logging.getLogger(__name__)


class EngineLoop:
    """Runs rounds while there is work, until it is told to end or the other end of the connection closes (EOFError).

    A sequence's text, its stop strings and its half characters are the engine's business: what is sent is final.
    """

    def __init__(self, runtime: EmbeddedRuntime, rounds: Round, connection: Connection) -> None:
        self._engine = runtime.engine
        self._rounds = rounds
        self._connection = connection
        self._open: dict[int, _Outgoing] = {}
        self._reports = _Reports(rounds)

    def run(self) -> None:
        """Serve. Returns when the front says so or has gone; what was in flight is cancelled then."""
        try:
            while self._take_commands():
                record = self._rounds.step()
                self._send_deltas(record)
                if record is not None:
                    self._reports.add(record, num_waiting=len(self._engine.waiting))
                if not self._engine.has_work:
                    self._rounds.host.check_slots()
                if self._reports.due or not self._engine.has_work:
                    self._connection.send(self._reports.take(self._load()))
        finally:
            self._abandon()

    def _take_commands(self) -> bool:
        """All that have come; without work, wait for the next one. False: to end."""
        while not self._engine.has_work or self._connection.poll():
            command: Command = self._connection.recv()
            if isinstance(command, Submit):
                self._submit(command)
            elif isinstance(command, Cancel):
                for request_id in command.request_ids:
                    self._engine.cancel(request_id)
            else:
                return False
        return True

    def _submit(self, command: Submit) -> None:
        try:
            sequence = self._engine.submit(
                list(command.prompt), command.params, command.request_id, top_logprobs=command.top_logprobs
            )
        except RequestError as error:
            self._connection.send(Refused(command.request_id, str(error)))
            return
        self._open[command.request_id] = _Outgoing(sequence, detail=command.detail)

    def _send_deltas(self, record: RoundRecord | None) -> None:
        if record is not None:
            columns = (record.request_ids, record.drafted, record.verified, record.committed)
            for request_id, drafted, verified, committed in zip(*(column.tolist() for column in columns), strict=True):
                if request_id in self._open:
                    self._open[request_id].note(drafted, verified, committed)
        deltas = [delta for out in self._open.values() if (delta := out.delta()) is not None]
        for sequence in self._engine.take_finished():
            self._open.pop(sequence.request_id, None)
        if deltas:
            self._connection.send(Deltas(tuple(deltas)))

    def _load(self) -> Load:
        engine = self._engine
        return Load(len(engine.running), len(engine.waiting), engine.slots.num_free)

    def _abandon(self) -> None:
        """Free everything; a runtime may serve on for somebody else."""
        for request_id in self._open:
            self._engine.cancel(request_id)
        if self._engine.has_work:
            self._engine.schedule(rows=1)
        self._engine.take_finished()
        self._open.clear()


class _Outgoing:
    """One sequence, and how much of it has been sent."""

    def __init__(self, sequence: Sequence, *, detail: bool) -> None:
        self._sequence = sequence
        self._sent_tokens = 0
        self._sent_text = 0
        self._num_rounds = 0
        self._rounds: list[tuple[int, int, int]] | None = [] if detail else None

    def note(self, drafted: int, verified: int, committed: int) -> None:
        self._num_rounds += 1
        if self._rounds is not None:
            self._rounds.append((drafted, verified, committed))

    def delta(self) -> Delta | None:
        """What there is to send, if anything."""
        sequence = self._sequence
        if sequence.num_generated == self._sent_tokens and sequence.finish_reason is None:
            return None
        tokens = tuple(sequence.tokens[sequence.prompt_length + self._sent_tokens :])
        text = sequence.text[self._sent_text :]
        logprobs = tuple(sequence.logprobs[self._sent_tokens :])
        self._sent_tokens += len(tokens)
        self._sent_text += len(text)
        if sequence.finish_reason is None:
            return Delta(sequence.request_id, tokens, text, logprobs)
        detail = None
        if self._rounds is not None:
            drafted, verified, committed = zip(*self._rounds, strict=True) if self._rounds else ((), (), ())
            detail = RoundDetail(drafted, verified, committed)
        return Delta(sequence.request_id, tokens, text, logprobs, sequence.finish_reason, self._num_rounds, detail)


class _Reports:
    """Collects what rounds did between two reports."""

    def __init__(self, rounds: Round) -> None:
        self._counters = rounds.counters
        self._reporter = RoundReporter(rounds)
        self._refused = 0
        self._sent = time.monotonic()
        self._clear()

    def _clear(self) -> None:
        depths = self._counters.max_draft_steps
        self._events: list[RoundEvent] = []
        self._drafts = 0
        self._accepted = np.zeros(depths, dtype=np.int64)
        self._verified = np.zeros(depths, dtype=np.int64)

    @property
    def due(self) -> bool:
        return time.monotonic() - self._sent >= REPORT_SECONDS

    def add(self, record: RoundRecord, *, num_waiting: int) -> None:
        self._events.append(self._reporter.event(record, num_waiting=num_waiting, time=time.time()))
        depths = np.arange(len(self._accepted))
        self._drafts += int(np.count_nonzero(record.drafted))
        self._accepted += (depths < record.accepted[:, None] - 1).sum(axis=0)
        self._verified += (depths < record.verified[:, None]).sum(axis=0)

    def take(self, load: Load) -> Report:
        refused = self._counters.num_refused_feedback
        counts = RoundCounts(
            self._drafts, tuple(self._accepted.tolist()), tuple(self._verified.tolist()), refused - self._refused
        )
        report = Report(tuple(self._events), counts, load, self._counters.fallback)
        self._refused = refused
        self._sent = time.monotonic()
        self._clear()
        return report


def engine_info(runtime: EmbeddedRuntime, model: str, strategy: str) -> EngineInfo:
    """What the front is told when the engine is ready."""
    engine = runtime.engine
    return EngineInfo(
        model=model,
        tokenizer=engine.tokenizer,
        vocab_size=engine.model.config.vocab_size,
        max_context=min(engine.max_context, engine.options.num_slots - engine.options.max_rows),
        num_slots=engine.options.num_slots,
        max_requests=engine.options.max_requests,
        max_draft_steps=runtime.max_draft_steps,
        strategy=strategy,
        drafter="none" if strategy == "off" else runtime.drafter.name,
        weights=engine.options.weights,
        threads=engine.num_threads,
        pid=os.getpid(),
    )
