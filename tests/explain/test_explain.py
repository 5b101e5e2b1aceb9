"""`lightspec plan --explain`: what it says is what the planner's stages do, and it says why."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from lightspec_lightllm.cli import main
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.explain.explanation import Explanation, explain
from lightspec_lightllm.explain.state import State, known_keys, load_state
from lightspec_lightllm.explain.table import SHOWN, explanation_table
from lightspec_lightllm.planner import CostModel, DrafterKind
from tests.planner.worlds import CPU, GPU, KINDS, cost_models

EXAMPLE = Path(__file__).parents[2] / "configs" / "states" / "chat-64.yaml"


def text_of(found: Explanation, *, everything: bool = False) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(explanation_table(found, everything=everything))
    return capture.get()


@st.composite
def states(draw: st.DrawFn) -> State:
    count, steps = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    line = st.lists(st.floats(0.02, 0.98), min_size=1, max_size=steps).map(tuple)
    known = draw(st.booleans())
    priced = draw(st.sampled_from(["speedup", "price", "neither"]))
    return State(
        num_requests=count,
        max_draft_steps=steps,
        proposed=tuple(draw(st.lists(st.integers(0, steps), min_size=count, max_size=count))),
        acceptance=None if known else draw(line),
        confidence=tuple(draw(line) for _ in range(count)) if known else None,
        drafter=draw(st.sampled_from(KINDS)),
        draft_steps=draw(st.none() | st.integers(0, steps)),
        context_tokens=draw(st.floats(0, 5000)),
        draft_backlog=draw(st.integers(0, 20)),
        speedup=draw(st.floats(1, 3)) if priced == "speedup" else None,
        price=draw(st.floats(0, 5)) if priced == "price" else None,
        costs_file="none.yaml",
    )


FREE_TARGET = CostModel.from_tables({1: 0.0}, {1: 1.0}, fill={1: 0.0})
UNLIKELY = State(
    num_requests=6,
    max_draft_steps=4,
    proposed=(0, 0, 0, 0, 0, 4),
    confidence=(*((0.5,) for _ in range(5)), (0.0625,)),
    speedup=2.0,
    costs_file="none.yaml",
)


@settings(max_examples=80, deadline=None)
@given(state=states(), costs=cost_models(own_draft_sizes=True))
@example(state=UNLIKELY, costs=FREE_TARGET)
def test_the_exhaustive_search_agrees_and_the_chosen_candidates_are_the_best(state: State, costs: CostModel) -> None:
    found = explain(state, costs)
    assert found.disagreements == ()
    chosen = next(line for line in found.budgets if line.rows == found.rows)
    assert chosen.value >= max(line.value for line in found.budgets) - 1e-9 * (1 + abs(chosen.value))
    best = next(line for line in found.steps if line.steps == found.best_steps)
    assert best.value == max(line.value for line in found.steps)
    assert "agrees" in text_of(found)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    costs=st.sampled_from([GPU, CPU]),
    acceptance=st.floats(0.05, 0.95),
    count=st.integers(1, 40),
)
def test_the_settled_price_is_the_rate_of_the_best_round(
    kind: DrafterKind, costs: CostModel, acceptance: float, count: int
) -> None:
    state = State(count, 4, 4, acceptance=(acceptance,), drafter=kind, costs_file="none.yaml")
    found = explain(state, costs)
    assert found.settled
    best = next(line for line in found.steps if line.steps == found.best_steps)
    assert best.tokens / best.round_ms == pytest.approx(found.price, rel=1e-6)
    assert best.value == pytest.approx(0.0, abs=1e-6 * best.tokens)
    assert all(line.tokens / line.round_ms <= found.price * (1 + 1e-9) for line in found.steps)


def test_a_price_that_is_given_is_used() -> None:
    state = State(8, 3, 3, acceptance=(0.7,), price=2.5, costs_file="none.yaml")
    assert explain(state, GPU).price == 2.5
    faster = State(8, 3, 3, acceptance=(0.7,), speedup=2.0, costs_file="none.yaml")
    assert explain(faster, GPU).price == pytest.approx(2.0 * 8 / GPU.target_ms(8, 8, 0.0))


def test_dearer_time_verifies_fewer_rows() -> None:
    rows = [
        explain(State(64, 7, 7, acceptance=(0.7,), price=price, costs_file="none.yaml"), GPU).rows
        for price in (0.0, 5.0, 10.0, 5000.0)
    ]
    assert rows == sorted(rows, reverse=True)
    assert rows[0] == 64 * 8
    assert rows[-1] == 64


def test_requests_that_are_told_apart_have_their_likely_drafts_counted_first() -> None:
    sure, unsure = (0.9,), (0.1,)
    state = State(2, 2, 2, confidence=(sure, unsure), price=0.0, costs_file="none.yaml")
    found = explain(state, CPU)
    assert [line.gain for line in found.budgets] == pytest.approx([0.0, 0.9, 1.71, 1.81, 1.82])


def test_current_steps_stay_within_the_margin(tmp_path: Path) -> None:
    loose = {"options": {"steps_margin": 0.99}}
    for options, expected in (({}, 3), (loose, 2)):
        content = {"num_requests": 16, "max_draft_steps": 7, "proposed": 2, "acceptance": [0.7], **options}
        costs = {"target": {1: 7.0, 512: 9.0}, "draft": {512: 0.5}, "interpolate": True}
        found = explain(*read({**content, "costs": costs}, tmp_path))
        assert found.best_steps != 2
        assert (found.draft_steps == 2) == (expected == 2)
        assert ("stays at d = 2" in text_of(found)) == (expected == 2)


def read(content: dict[str, Any], folder: Path) -> tuple[State, CostModel]:
    path = folder / "state.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return load_state(path)


def test_nothing_waiting_is_one_row_each_and_still_a_choice_of_steps() -> None:
    found = explain(State(4, 3, 0, acceptance=(0.8,), costs_file="none.yaml"), GPU)
    assert (found.rows, len(found.budgets)) == (4, 1)
    assert found.best_steps > 0
    assert "no draft is waiting" in text_of(found)


def test_a_free_drafter_drafts_what_it_can() -> None:
    found = explain(State(64, 5, 5, acceptance=(0.2,), drafter="free", costs_file="none.yaml"), CPU)
    assert found.draft_steps == 5
    assert "drafts cost nothing" in text_of(found)


def test_only_budgets_near_the_chosen_one_are_shown_unless_all_are_wanted() -> None:
    found = explain(*load_state(EXAMPLE))
    short, long = text_of(found), text_of(found, everything=True)
    assert "..." in short
    assert "..." not in long
    assert len(found.budgets) > SHOWN
    assert long.count("\n") - short.count("\n") == len(found.budgets) - SHOWN - 2


def test_the_example_says_what_was_chosen_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--explain", str(EXAMPLE)]) == 0
    text = capsys.readouterr().out
    found = explain(*load_state(EXAMPLE))
    assert f"B = {found.rows}: {found.rows - 64} drafted rows beside the 64 own." in text
    assert f"d = {found.best_steps} has the highest value" in text
    for reason in (
        "The next tier does not pay",
        "The tier before is left",
        "More steps do not pay",
        "Fewer steps lose",
    ):
        assert reason in text
    assert "An exhaustive search over every budget and every d agrees." in text


def test_help_names_every_key_of_a_state(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    words = capsys.readouterr().out.replace("\n", " ")
    assert [key for key in known_keys() if key not in words] == []
    example = EXAMPLE.read_text(encoding="utf-8")
    assert [key for key in known_keys() if key not in example and key != "options"] == []


GOOD: dict[str, Any] = {
    "num_requests": 4,
    "max_draft_steps": 3,
    "proposed": 2,
    "acceptance": [0.7],
    "costs": {"target": {1: 1.0, 8: 2.0}},
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_requests": 0}, "num_requests: expected 1 to 1024, got 0"),
        ({"num_requests": "many"}, "num_requests: it should be a valid integer, got 'many' (str)"),
        ({"max_draft_steps": 16}, "max_draft_steps: expected 1 to 15, got 16"),
        ({"proposed": 4}, "proposed: expected counts in 0..3, got 4"),
        ({"proposed": [1, 2]}, "proposed: expected one number, or one for each of 4, got 2"),
        ({"acceptance": [1.0]}, "acceptance: expected 1 to 3 probabilities above 0 and below 1, got [1.0]"),
        ({"acceptance": []}, "acceptance: expected 1 to 3 probabilities above 0 and below 1, got []"),
        ({"acceptance": None}, "acceptance: expected either acceptance or confidence, and not both"),
        ({"confidence": [[0.5]] * 4}, "acceptance: expected either acceptance or confidence, and not both"),
        ({"acceptance": None, "confidence": [[0.5]] * 3}, "confidence: expected 4 lists, got 3"),
        ({"acceptance": None, "confidence": [[0.5]] * 3 + [[2.0]]}, "confidence: expected 1 to 3 probabilities"),
        ({"drafter": "magic"}, "drafter: it should be 'serial'"),
        ({"draft_steps": 9}, "draft_steps: expected 0 to 3, got 9"),
        ({"context_tokens": -1}, "context_tokens: expected at least 0, got -1"),
        ({"draft_backlog": -1}, "draft_backlog: expected 0 to 16384, got -1"),
        ({"speedup": 0.5}, "speedup: expected a finite number of at least 1, got 0.5"),
        ({"price": -0.5}, "price: expected a finite number of at least 0, got -0.5"),
        ({"price": 1.0, "speedup": 1.0}, "price: expected speedup or price, or neither"),
        ({"options": {"probe_cost": 2.0}}, "probe_cost: 2.0 is out of range"),
        ({"costs": {"target": {}}}, "target table: expected a table {rows: ms} with at least one entry"),
        ({"costs": None}, "costs: expected one of costs, costs_file and roofline_file"),
        ({"costs": None, "costs_file": "nowhere.yaml"}, "nowhere.yaml cannot be read"),
        ({"costs": None, "roofline_file": "nowhere.yaml"}, "nowhere.yaml cannot be read"),
        ({"roofline_file": "nowhere.yaml"}, "costs: expected one of costs, costs_file and roofline_file"),
        ({"cost": 3}, "cost is not a known key; did you mean costs?"),
    ],
)
def test_a_bad_state_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "state.yaml"
    content = {key: value for key, value in (GOOD | change).items() if value is not None}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    assert main(["plan", "--explain", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_a_missing_file_and_a_missing_argument_are_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for arguments, message in (
        (["plan", "--explain", "nowhere.yaml"], "state nowhere.yaml cannot be read"),
        (["plan"], "the following arguments are required: --explain"),
    ):
        assert main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line


def test_costs_of_a_file_are_tables_or_a_roofline(tmp_path: Path) -> None:
    tables = tmp_path / "tables.yaml"
    tables.write_text("target: {1: 1.0, 8: 2.0}\noverhead_ms: 0.5\n", encoding="utf-8")
    content = {key: value for key, value in GOOD.items() if key != "costs"}
    _, costs = read({**content, "costs_file": "tables.yaml"}, tmp_path)
    assert costs.target_ms(8, 4, 0.0) == 2.5
    modelled = EXAMPLE.parents[1] / "costs" / "h200-qwen3-14b.yaml"
    _, costs = read({**content, "roofline_file": str(modelled)}, tmp_path)
    assert costs.target_ms(1, 1, 2.0) == pytest.approx(7.5, rel=0.01)
    tables.write_text("targets: {1: 1.0}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="targets is not a known key"):
        read({**content, "costs_file": "tables.yaml"}, tmp_path)


def test_a_disagreement_is_told_and_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_args: object, **_options: object) -> tuple[int, float]:
        return 5, math.pi

    monkeypatch.setattr("lightspec_lightllm.explain.explanation.best_steps", wrong)
    assert main(["plan", "--explain", str(EXAMPLE)]) == 1
    assert "DISAGREES: d = 0: the exhaustive search finds" in capsys.readouterr().out
    monkeypatch.setattr("lightspec_lightllm.explain.explanation.best_budget", wrong)
    assert main(["plan", "--explain", str(EXAMPLE)]) == 1
    assert "DISAGREES: the exhaustive search takes B = 5 of value" in capsys.readouterr().out


def test_catching_up_is_counted_where_drafting_is_resumed() -> None:
    caught_up, behind = (
        explain(State(16, 3, 0, acceptance=(0.7,), price=1.0, draft_backlog=backlog, costs_file="none.yaml"), GPU)
        for backlog in (0, 300)
    )
    step_ms = GPU.lines(400, 0.0)[1]
    assert behind.steps[0].draft_ms == caught_up.steps[0].draft_ms == 0.0
    more = (step_ms[316] - step_ms[16]) / 128
    assert behind.steps[1].draft_ms - caught_up.steps[1].draft_ms == pytest.approx(more)


def test_a_batch_that_should_not_draft_is_told_what_the_planner_does_besides() -> None:
    found = explain(State(200, 3, 0, acceptance=(0.05,), costs_file="none.yaml"), CPU)
    assert found.best_steps == 0
    assert "tries again now and then" in text_of(found)


def test_a_state_reads_its_numbers_as_arrays() -> None:
    state = State(2, 3, (1, 2), acceptance=(0.5, 0.4), costs_file="none.yaml")
    assert state.waiting.tolist() == [1, 2]
    assert state.steps == 2
    assert np.allclose(state.survival, [[0.5, 0.2, 0.08]] * 2)


def test_what_a_draft_takes_beside_its_steps_is_shown_and_makes_drafts_longer_or_none(tmp_path: Path) -> None:
    steps = []
    for start in (0.0, 3.0, 500.0):
        content = {
            "num_requests": 8,
            "max_draft_steps": 7,
            "proposed": 2,
            "acceptance": [0.7],
            "drafter": "serial_no_kv",
        }
        costs = {"target": {1: 7.0, 64: 12.0}, "draft": {8: 1.5}, "interpolate": True, "draft_start": {8: start}}
        found = explain(*read({**content, "costs": costs}, tmp_path))
        assert found.disagreements == ()
        for line in found.steps:
            assert line.draft_ms == pytest.approx(line.steps * 1.5 + (start if line.steps else 0.0))
            assert line.value == pytest.approx(line.tokens - found.price * line.round_ms, abs=1e-6)
            assert f"{line.draft_ms:.3f}" in text_of(found)
        steps.append(found.best_steps)
    assert 0 < steps[0] < steps[1]
    assert steps[2] == 0
