"""Result files against each other: this client's, those of ``vllm bench serve`` and those of ``lightspec bench``."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lightspec_lightllm.errors import ConfigError

Record = dict[str, Any]


class Condition(NamedTuple):
    """Under which numbers can be compared."""

    dataset: str
    max_concurrency: int | None
    request_rate: float

    def __str__(self) -> str:
        rate = "" if math.isinf(self.request_rate) else f"{self.request_rate:g} requests/s"
        in_flight = "" if self.max_concurrency is None else f"{self.max_concurrency} in flight"
        return ", ".join(part for part in (self.dataset, rate, in_flight) if part) or "all"


@dataclass(frozen=True)
class Subject:
    """One of those compared: what it is called, and its record under each condition."""

    name: str
    records: dict[Condition, Record]


@dataclass(frozen=True)
class Measure:
    """A number that is compared. ``fields``: the first that a record has is taken."""

    heading: str
    fields: tuple[str, ...]
    higher_is_better: bool | None = True
    """None: neither is better."""

    def of(self, record: Record) -> float | None:
        for field in self.fields:
            value: Any = record
            for part in field.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if _is_number(value):
                return float(value)
        return None


def _latency(heading: str, name: str, *, higher_is_better: bool | None = False) -> tuple[Measure, ...]:
    return tuple(
        Measure(f"{heading} {shown} ms", (f"{statistic}_{name}_ms",), higher_is_better)
        for statistic, shown in (("mean", "mean"), ("median", "p50"), ("p90", "p90"), ("p99", "p99"))
    )


MEASURES = (
    Measure("output tok/s", ("output_throughput",)),
    Measure("total tok/s", ("total_token_throughput",)),
    Measure("req/s", ("request_throughput",)),
    Measure("good req/s", ("request_goodput",)),
    *_latency("TTFT", "ttft"),
    *_latency("TPOT", "tpot"),
    *_latency("ITL", "itl", higher_is_better=None),  # between events, of which speculation makes fewer and larger ones
    *_latency("E2EL", "e2el"),
    Measure("accept length", ("mean_accept_length", "spec_decode_acceptance_length")),
    Measure("accepted/verified", ("accepted_per_verified",)),
    Measure("right answers", ("answers.accuracy",)),
    Measure("completed", ("completed",), higher_is_better=None),
    Measure("failed", ("failed",), higher_is_better=False),
)
SAME = (
    "model_id",
    "backend",
    "dataset_source",
    "num_prompts",
    "prompt_template",
    "seed",
    "max_tokens",
    "temperature",
    "top_p",
    "ignore_eos",
    "extra_body",
)
"""What should not differ where numbers are compared."""


def read_subjects(paths: Sequence[Path]) -> list[Subject]:
    """What the files, or folders of files, hold: a subject per path and label.

    Raises ConfigError for a path without results.
    """
    found: dict[tuple[Path, str], list[Record]] = {}
    for path in paths:
        for record in _read(path):
            found.setdefault((path, str(record.get("label") or "")), []).append(record)
    labels = [label for _, label in found]
    subjects = []
    for (path, label), records in found.items():
        stem = path.name.removesuffix(".json")
        name = label if label and labels.count(label) == 1 else f"{label} ({stem})" if label else stem
        subjects.append(Subject(name, _by_condition(records)))
    if len(subjects) < 2:
        raise ConfigError(f"--compare: expected at least two results to compare, found {len(subjects)}")
    return subjects


def _by_condition(records: list[Record]) -> dict[Condition, Record]:
    """Of several results under one condition, the one whose throughput is the median, the lower of two."""
    by: dict[Condition, list[Record]] = {}
    for record in records:
        rate = float(record.get("request_rate") or "inf")
        condition = Condition(str(record.get("dataset") or ""), record.get("max_concurrency"), rate)
        by.setdefault(condition, []).append(record)
    return {
        condition: sorted(repeated, key=lambda record: float(record["output_throughput"]))[(len(repeated) - 1) // 2]
        | {"repetitions": len(repeated)}
        for condition, repeated in by.items()
    }


def _read(path: Path) -> list[Record]:
    if path.is_dir():
        files = sorted(path.glob("*.json"))
    elif path.is_file():
        files = [path]
    else:
        raise ConfigError(f"--compare: {path} does not exist; expected a result file or a folder of them")
    records = [record for file in files for record in _records(file)]
    if not records:
        raise ConfigError(f"--compare: {path} holds no result (a JSON record with output_throughput)")
    return records


def _records(file: Path) -> list[Record]:
    """Of a file with one record, with a list of ``results``, or with a record per line."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--compare: {file} cannot be read: {error}") from None
    try:
        content = [json.loads(text)]
    except ValueError:
        try:
            content = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise ConfigError(f"--compare: {file} is not JSON: {error}") from None
    records: list[Any] = []
    for entry in content:
        if isinstance(entry, dict):
            records += entry["results"] if isinstance(entry.get("results"), list) else [entry]
    return [record for record in records if isinstance(record, dict) and _is_number(record.get("output_throughput"))]


def pair(subjects: Sequence[Subject]) -> list[tuple[str, list[Record | None]]]:
    """What to compare: a title and a record of each subject, or None where it has none.

    Records are paired by condition. Subjects with one record each are compared whatever their conditions are; the
    differences say how those differ.
    """
    if all(len(subject.records) == 1 for subject in subjects):
        conditions = list(dict.fromkeys(next(iter(subject.records)) for subject in subjects))
        title = " | ".join(str(condition) for condition in conditions)
        return [(title, [next(iter(subject.records.values())) for subject in subjects])]
    conditions = sorted(
        {condition for subject in subjects for condition in subject.records},
        key=lambda at: (at.dataset, at.request_rate, at.max_concurrency or math.inf),
    )
    pairs = [(str(condition), [subject.records.get(condition) for subject in subjects]) for condition in conditions]
    shared = [(title, records) for title, records in pairs if sum(record is not None for record in records) > 1]
    if not shared:
        raise ConfigError("--compare: no two of the results were measured on the same dataset under the same load")
    return shared


def differences(records: Sequence[Record | None]) -> list[str]:
    """Settings that are not the same, and how many texts are."""
    there = [record for record in records if record is not None]
    lines = []
    for field in SAME:
        values = [record[field] for record in there if field in record]
        if any(value != values[0] for value in values[1:]):
            lines.append(f"not the same: {field} {' | '.join(str(value) for value in values)}")
    if any(record["repetitions"] > 1 for record in there):
        counts = " | ".join(str(record["repetitions"]) for record in there)
        lines.append(f"the repetition with the median throughput is shown, of {counts}")
    first = _texts(there[0])
    for record in there[1:]:
        texts = _texts(record)
        if first and first.keys() == texts.keys():
            same = sum(first[key] == texts[key] for key in first)
            lines.append(f"texts: {same} of {len(first)} are identical to the first's")
    return lines


def _texts(record: Record) -> dict[tuple[int, str], str]:
    """The answers by number and prompt; of files that do not name the prompts, nothing."""
    prompts, texts = record.get("prompts") or [], record.get("generated_texts") or []
    return {(number, prompt): text for number, (prompt, text) in enumerate(zip(prompts, texts, strict=False))}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
