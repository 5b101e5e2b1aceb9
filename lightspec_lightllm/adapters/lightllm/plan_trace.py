"""Rounds of a serving process as JSON lines, and what ``lightspec simulate`` makes of them.

The first line says where they were served, every other one is a round::

    {"format": "lightspec-rounds/1", "date": "20260102-030405", "source": {"model": .., "model_sha256": .., ..},
     "drafter": {"name": "eagle_with_att", "kind": "serial", "max_draft_steps": 7}, "costs": {"target": ..}}
    {"seconds": 1.25, "ids": [8, 16], "drafted": [7, 7], "verified": [3, 2], "accepted": [4, 1], "context": 812,
     "rows": 7, "steps": 5, "padded": 1, "plan_us": 210.0, "predicted_ms": 11.9, "measured_ms": 12.3,
     "predicted_tokens": 4.1, "probe": false, "fallback": false, "confidence": [[0.9, ..], ..]}

A file that names one as its ``trace_file`` replays it. A recording made by ``lightspec bench --record`` asked the
drafter at every position; a served round asked at one, and verified some of the drafts. What is missing is filled in:

* Between two rounds, the drafts of the first one are taken to be what would have been proposed again.
* Where all verified drafts were right, whether the next one was is drawn, with the share of drafts at that depth that
  were right in the file (of those verified after a right one). If so, the run goes on as the next round's did.
* K drafts wait at every position.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from lightspec_lightllm.adapters import recording
from lightspec_lightllm.adapters.cost_tables import CostTables
from lightspec_lightllm.adapters.recording import RecordedDrafter, RecordedRequest, RecordedSource, Recording
from lightspec_lightllm.config import parse_mapping
from lightspec_lightllm.errors import ConfigError

if TYPE_CHECKING:
    from lightspec_lightllm.adapters.lightllm.metrics import RoundReport
    from lightspec_lightllm.planner.types import FloatArray

FORMAT = "lightspec-rounds/1"

DATASET = "served"
"""What requests of such a file are called in a replay."""

MAX_FILES = 1000
"""Files of one name, numbered, that may lie beside each other."""


@dataclass(frozen=True, slots=True)
class ServedSource:
    """What was served.

    Attributes:
        model: name of the model's folder.
        model_sha256: of its configuration.
        dtype: of its weights.
        device: name of the GPU.
        tp: ranks of the target.
        versions: of what it was served with.
    """

    model: str
    model_sha256: str
    dtype: str
    device: str
    tp: int
    versions: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class TraceHead:
    """The first line.

    Attributes:
        format: `FORMAT`.
        date: ``YYYYMMDD-HHMMSS``.
        source: what was served.
        drafter: what proposed.
        costs: what rounds cost there, as the planner was told.
    """

    format: str
    date: str
    source: ServedSource
    drafter: RecordedDrafter
    costs: CostTables


class PlanTrace:
    """Writes rounds into a new file. What cannot be written ends the trace, with one line in the log.

    Args:
        path: of the file; if there is one already, a number is added to the name.
        log: takes a line.
    """

    def __init__(self, path: Path, head: TraceHead, log: Callable[[str], None]) -> None:
        self._log = log
        self._began = time.perf_counter()
        self._file: TextIO | None = None
        self.path = path
        try:
            self._file = self._open(path)
            self._file.write(json.dumps(dataclasses.asdict(head)) + "\n")
            self._file.flush()
        except OSError as error:
            self._end(error)

    def _open(self, path: Path) -> TextIO:
        for number in range(1, MAX_FILES):
            self.path = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
            try:
                return self.path.open("x", encoding="utf-8")
            except FileExistsError:
                continue
        raise FileExistsError(f"there are {MAX_FILES} files of this name already")

    def write(self, report: RoundReport) -> None:
        """Append a round."""
        if self._file is None:
            return
        plan = report.plan
        line: dict[str, Any] = {
            "seconds": round(time.perf_counter() - self._began, 6),
            "ids": report.request_ids.tolist(),
            "drafted": report.drafted.tolist(),
            "verified": report.verified.tolist(),
            "accepted": report.accepted.tolist(),
            "context": report.context_tokens,
            "rows": plan.verify_rows,
            "steps": report.draft_steps,
            "padded": report.padded_rows,
            "plan_us": round(1e6 * report.plan_seconds, 1),
            "predicted_ms": plan.predicted_ms,
            "measured_ms": report.measured_ms,
            "predicted_tokens": plan.predicted_tokens,
            "probe": bool(plan.probe),
            "fallback": report.fallback,
        }
        if report.confidence is not None:
            told = np.round(report.confidence, recording.DIGITS).tolist()
            line["confidence"] = [row[:made] for row, made in zip(told, line["drafted"], strict=True)]
        try:
            self._file.write(json.dumps(line, separators=(",", ":"), default=float) + "\n")
        except OSError as error:
            self._end(error)

    def flush(self) -> None:
        """Hand what was written to the system."""
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._end(error)

    def close(self) -> None:
        """End the file."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self._end(error)

    def _end(self, error: OSError) -> None:
        self._log(f"lightspec: rounds are no longer traced, {self.path} cannot be written: {error}")
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:  # it tries to write once more what could not be written
                return


def is_rounds(text: str) -> bool:
    """Whether a file's content is one of these."""
    return text.startswith('{"format": "lightspec-rounds/')


def to_recording(lines: Iterable[str]) -> Recording:
    """The rounds as a recording that can be replayed; the module's text says what is filled in.

    A line that was cut off at the end is left out: a process may be killed while it writes.

    Raises:
        ConfigError: a line is not of this format, or no request has two tokens; the message names the line.
    """
    content = iter(lines)
    first = next(content, "")
    head = parse_mapping(_json(first, 1), TraceHead)
    if head.format != FORMAT:
        raise ConfigError(f"format: expected {FORMAT!r}, got {head.format!r}")
    depths = head.drafter.max_draft_steps
    requests: dict[int, _Served] = {}
    most, number = 1, 1
    for number, line in enumerate(content, start=2):
        if not line.endswith("\n"):
            break
        rounds = _rounds(_json(line, number), depths, number)
        most = max(most, len(rounds))
        for request, context, round_ in rounds:
            requests.setdefault(request, _Served(context)).rounds.append(round_)
    rates = _rates([round_ for served in requests.values() for round_ in served.rounds], depths)
    rng = np.random.default_rng(0)  # the same file is the same recording
    recorded = [
        _request(request, served, rates, rng) for request, served in requests.items() if served.answer_tokens >= 2
    ]
    if not recorded:
        raise ConfigError(f"expected a request with at least 2 tokens in its rounds, got none in {number} lines")
    return Recording(
        format=recording.FORMAT,
        date=head.date,
        source=RecordedSource(
            backend="lightllm",
            model_id=head.source.model,
            model_sha256=head.source.model_sha256,
            weights=head.source.dtype,
            threads=0,
            concurrency=(most,),
            max_tokens=max(request.answer_tokens for request in recorded),
            temperature=0.0,  # requests bring their own
            seed=0,
            machine={"device": head.source.device, "tp": head.source.tp, **head.source.versions},
        ),
        drafter=head.drafter,
        costs=head.costs,
        requests=tuple(recorded),
    )


@dataclass(frozen=True, slots=True)
class _Round:
    """One request's part of a round."""

    verified: int
    accepted: int
    confidence: tuple[float, ...]

    @property
    def ended_wrong(self) -> bool:
        """Whether a verified draft was wrong, rather than all that were verified right."""
        return self.verified >= self.accepted


@dataclass(slots=True)
class _Served:
    """A request's rounds, and the tokens of context that it came with."""

    context: int
    rounds: list[_Round] = field(default_factory=list)

    @property
    def answer_tokens(self) -> int:
        """The first token comes with the prompt."""
        return 1 + sum(round_.accepted for round_ in self.rounds)


def _json(line: str, number: int) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"line {number} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"line {number}: expected an object, got {type(content).__name__}")
    return content


def _rounds(content: dict[str, Any], depths: int, number: int) -> list[tuple[int, int, _Round]]:
    """(request, context, round) of every request in a line."""
    try:
        context = max(1, round(content["context"] / max(len(content["ids"]), 1)))
        told = content.get("confidence") or [()] * len(content["ids"])
        columns = (content["ids"], content["drafted"], content["verified"], content["accepted"], told)
        out = []
        for request, drafted, verified, accepted, confidence in zip(*columns, strict=True):
            if not (0 <= verified <= drafted <= depths and 1 <= accepted <= 1 + verified):
                raise ConfigError(
                    f"line {number}: expected verified <= drafted <= {depths} and 1 <= accepted <= 1 + verified, got "
                    f"drafted {drafted}, verified {verified} and accepted {accepted}"
                )
            out.append((int(request), context, _Round(verified, accepted, tuple(map(float, confidence)))))
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"line {number}: expected a round as written by observe.trace_file ({error!r})") from None
    return out


def _rates(rounds: Sequence[_Round], depths: int) -> FloatArray:
    """float[K], share of verified drafts at each depth that were right, given that those before were; where a depth
    was never tried, that of the one before it."""
    right = np.array([round_.accepted - 1 for round_ in rounds], dtype=np.int64)
    tried = np.array([min(round_.accepted, round_.verified) for round_ in rounds], dtype=np.int64)
    rates, last = np.zeros(depths), 0.0
    for depth in range(depths):
        trials = np.count_nonzero(tried > depth)
        last = np.count_nonzero(right > depth) / trials if trials else last
        rates[depth] = last
    return rates


def _request(request: int, served: _Served, rates: FloatArray, rng: np.random.Generator) -> RecordedRequest:
    depths, answer = len(rates), served.answer_tokens
    draws = rng.random(len(served.rounds))
    right = [0] * (answer - 1)
    confidence: list[tuple[float, ...]] = [()] * (answer - 1)
    usual = tuple(np.round(rates, recording.DIGITS).tolist())
    ahead, end = 0, answer - 1  # drafts right from `end` on, as far as the later rounds tell
    for round_, draw in zip(reversed(served.rounds), draws.tolist(), strict=True):
        start = end - round_.accepted
        depth = min(round_.accepted, depths) - 1
        more = 0 if round_.ended_wrong or draw >= rates[depth] else 1 + ahead
        for at in range(start, end):
            run = end - at - 1 + more
            right[at] = min(run, depths, answer - 1 - at)
            told = round_.confidence[at - start :]
            confidence[at] = (*told, *usual[len(told) :])[:depths]
        ahead, end = end - start - 1 + more, start
    return RecordedRequest(
        dataset=DATASET,
        key=str(request),
        prompt_tokens=served.context,
        answer_tokens=answer,
        drafts=(depths,) * (answer - 1),
        right=tuple(right),
        confidence=tuple(confidence),
    )
