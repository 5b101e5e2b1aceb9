"""The file of recorded drafts: what is written is read again, and anything else is one clear line."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.adapters import recording as module
from lightspec_lightllm.adapters.cost_tables import CostTables
from lightspec_lightllm.adapters.recorder import Written, find_drafts
from lightspec_lightllm.adapters.recording import (
    RecordedRequest,
    Recording,
    load_recording,
    to_bytes,
    to_text,
)
from lightspec_lightllm.config import parse_mapping
from lightspec_lightllm.drafters import NgramDrafter
from lightspec_lightllm.engine import SamplingParams
from lightspec_lightllm.errors import ConfigError, RequestError
from lightspec_lightllm.planner import CostModel
from tests.engine.tiny_llama import tiny_engine

CONTENT: dict[str, Any] = {
    "format": "lightspec-trace/1",
    "date": "20260102-030405",
    "source": {
        "backend": "any",
        "model_id": "tiny",
        "model_sha256": "0",
        "weights": "float16",
        "threads": 1,
        "concurrency": [1, 4],
        "max_tokens": 8,
        "temperature": 0.0,
        "seed": 0,
        "machine": {"cpu": "any", "cores": 2, "commit": None},
    },
    "drafter": {"name": "ngram", "kind": "free", "max_draft_steps": 3},
    "costs": {"target": {"1": 5.0, "8": 6.0}, "interpolate": True},
    "requests": [
        {
            "dataset": "gsm8k",
            "key": "one",
            "prompt_tokens": 7,
            "answer_tokens": 4,
            "drafts": [3, 0, 2],
            "right": [2, 0, 1],
            "confidence": [[0.5, 0.25, 0.125], [], [1.0, 0.0]],
        }
    ],
}


def changed(**changes: Any) -> dict[str, Any]:
    """`CONTENT` with some values changed; double underscores go down a level."""
    out = copy.deepcopy(CONTENT)
    for name, value in changes.items():
        *path, key = name.split("__")
        place: Any = out
        for part in path:
            place = place[int(part) if isinstance(place, list) else part]
        place[int(key) if isinstance(place, list) else key] = value
    return out


def requests_of(most: int) -> st.SearchStrategy[RecordedRequest]:
    @st.composite
    def request(draw: st.DrawFn) -> RecordedRequest:
        answer = draw(st.integers(2, 12))
        drafts = draw(st.lists(st.integers(0, most), min_size=answer - 1, max_size=answer - 1))
        right = [draw(st.integers(0, min(count, answer - 1 - at))) for at, count in enumerate(drafts)]
        told = [tuple(draw(st.lists(st.integers(0, 10_000), min_size=count, max_size=count))) for count in drafts]
        confidence = tuple(tuple(value / 10_000 for value in line) for line in told)
        name = draw(st.text(min_size=1, max_size=5))
        return RecordedRequest(name, draw(st.text(max_size=5)), 3, answer, tuple(drafts), tuple(right), confidence)

    return request()


@given(st.lists(requests_of(3), min_size=1, max_size=5))
def test_what_is_written_is_read_again(requests: list[RecordedRequest]) -> None:
    base = parse_mapping(CONTENT, Recording)
    whole = Recording(base.format, base.date, base.source, base.drafter, base.costs, tuple(requests))
    assert parse_mapping(json.loads(to_text(whole)), Recording) == whole


@pytest.mark.parametrize("limit", [10, 1 << 20])
def test_a_large_file_is_gzipped_and_read_alike(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLAIN_BYTES", limit)
    whole = parse_mapping(CONTENT, Recording)
    ending, raw = to_bytes(whole)
    assert ending == (".trace.json.gz" if limit == 10 else ".trace.json")
    path = tmp_path / f"run{ending}"
    path.write_bytes(raw)
    assert load_recording(path) == whole


def test_tables_are_those_that_a_cost_model_was_made_from() -> None:
    tables = CostTables({64: {1: 5.0, 8: 6.0}, 512: {1: 5.5, 8: 7.0}}, {4: 1.0}, True, 0.1, 0.2, 0.3, max_rows=40)
    assert CostTables.of(tables.model()) == tables
    assert CostTables.of(CostModel.from_tables({4: 2.0})) == CostTables({4: 2.0})
    started = CostTables({4: 2.0}, {4: 1.0}, draft_start={1: 0.5, 16: 4.0})
    assert CostTables.of(started.model()) == started
    assert started.model(2.0).draft_start_ms("serial_no_kv", 16, 1) == 8.0


def test_a_trace_carries_what_a_draft_takes_beside_its_steps_and_an_older_one_has_none() -> None:
    assert parse_mapping(CONTENT, Recording).costs.draft_start == {}
    whole = parse_mapping(changed(costs__draft_start={"1": 0.5, "16": 4.0}), Recording)
    assert parse_mapping(json.loads(to_text(whole)), Recording) == whole
    assert whole.costs.model().draft_start_ms("serial_no_kv", 16, 1) == 4.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "lightspec-trace/2"}, "format: expected 'lightspec-trace/1', got 'lightspec-trace/2'"),
        ({"surprise": 1}, "surprise is not a known key"),
        ({"drafter__kidn": 1}, "drafter.kidn is not a known key; did you mean drafter.kind?"),
        ({"drafter__kind": "psychic"}, "drafter.kind: it should be 'serial'"),
        ({"drafter__max_draft_steps": 16}, "drafter.max_draft_steps: expected 1 to 15, got 16"),
        ({"drafter__max_draft_steps": 2}, "requests.0.drafts: expected at most 2 (drafter.max_draft_steps), got 3"),
        ({"costs__target": {}}, "target table: expected a table"),
        ({"costs__draft_start": {"1": -1.0}}, "draft_start table: expected"),
        ({"requests": []}, "requests: expected at least one"),
        ({"requests__0__dataset": ""}, "requests.0.dataset: expected a name, got none"),
        ({"requests__0__answer_tokens": 1}, "an answer of at least 2, got 7 and 1"),
        ({"requests__0__answer_tokens": 5}, "requests.0.drafts: expected an entry for each of 4 positions, got 3"),
        ({"requests__0__right": [2, 0]}, "requests.0.right: expected an entry for each of 3 positions, got 2"),
        ({"requests__0__right": [2, 1, 1]}, "requests.0.right.1: expected 0 to 0 of 0 drafts, got 1"),
        ({"requests__0__right": [2, 0, 2]}, "requests.0.right.2: expected 0 to 1 of 2 drafts, got 2"),
        ({"requests__0__right": [-1, 0, 1]}, "requests.0.right.0: expected 0 to 3 of 3 drafts, got -1"),
        ({"requests__0__right": [2.5, 0, 1]}, "right: it should be a valid integer"),
        ({"requests__0__confidence__0": [0.5]}, "requests.0.confidence.0: expected a value from 0 to 1 for each of 3"),
        ({"requests__0__confidence__2": [1.5, 0.0]}, "requests.0.confidence.2: expected a value from 0 to 1"),
        ({"requests__0__confidence__2": [float("nan"), 0.0]}, "confidence"),
    ],
)
def test_a_bad_file_is_one_line_that_names_what_is_wrong(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.trace.json"
    path.write_text(json.dumps(changed(**changes)), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_recording(path)
    assert str(caught.value).startswith(f"trace {path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is not JSON"),
        (b"[1, 2]", "format: expected 'lightspec-trace/1', got None"),
        (b"{", "is not JSON"),
        (b'{"format": 1, "format": 2}', "the key 'format' is given twice"),
        (b"\xff\xfe", "cannot be read"),
        (gzip.compress(b"{}")[:-6], "cannot be read"),
        (b"\x1f\x8b nothing", "cannot be read"),
    ],
)
def test_a_file_of_another_kind_is_named(raw: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=message) as caught:
        load_recording(path)
    assert str(path) in str(caught.value)


def test_drafts_are_compared_with_the_text_up_to_its_end_and_its_limit() -> None:
    """The prompt holds the answer, so lookup is right wherever its suffix came last."""
    engine = tiny_engine()
    text = Written(prompt=(5, 6, 7, 8, 9, 4), answer=(5, 6, 7, 8, 2), max_tokens=6)
    (found,) = find_drafts(engine, NgramDrafter(max_draft_steps=3), [text], 3)
    # After 5 comes 6 7 8; after 5 6 comes 7 8 9, of which 9 is wrong; after 5 6 7: 8 9 and no more than the limit.
    assert found.drafts == (3, 3, 2, 1)
    assert found.right == (3, 2, 1, 0)
    assert [len(line) for line in found.confidence] == [3, 3, 2, 1]


def test_what_cannot_be_recorded_is_refused() -> None:
    engine = tiny_engine()
    drafter = NgramDrafter(max_draft_steps=3)
    with pytest.raises(RequestError, match="answers of at least 2 tokens"):
        find_drafts(engine, drafter, [Written((5, 6), (7,), 8)], 3)
    engine.submit([5, 6], SamplingParams(max_tokens=4))
    with pytest.raises(RequestError, match="while the engine has no work"):
        find_drafts(engine, drafter, [Written((5, 6), (7, 8), 8)], 3)
