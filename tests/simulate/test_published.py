"""The published comparison on modelled costs: its loads are the published ones, and it says what it cannot give."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lightspec_lightllm.adapters.roofline import load_roofline
from lightspec_lightllm.cli import REFERENCE_COSTS, main
from lightspec_lightllm.simulate.comparison import Spread
from lightspec_lightllm.simulate.published import (
    ASSUMPTIONS,
    LOADS,
    MODELLED,
    MOST,
    STEPS,
    Claim,
    Comparison,
    Line,
    Load,
    LoadResult,
    outside_share,
    scenario,
)
from lightspec_lightllm.simulate.published_table import nearest, published_table, verdicts
from lightspec_lightllm.simulate.text import levels, sigmoid

H200 = load_roofline(REFERENCE_COSTS)


def observed(load: Load, steps: int) -> tuple[float, list[float]]:
    """Mean accept length and conditional acceptance per depth that a server with fixed steps counts, by integration.

    A request of a given length takes rounds in inverse proportion to its own accept length.
    """
    rng = np.random.default_rng(0)
    ease, weight = np.polynomial.hermite_e.hermegauss(24)
    kind, correlation = load.requests, 0.5
    z = rng.standard_normal((3000, steps))
    for depth in range(1, steps):
        z[:, depth] = correlation * z[:, depth - 1] + np.sqrt(1 - correlation**2) * z[:, depth]
    log_odds = levels(kind, steps) + kind.spread * ease[:, None, None] + kind.noise * z
    survival = np.cumprod(sigmoid(log_odds), axis=2).mean(axis=1)
    rounds = weight / (1 + survival.sum(axis=1))
    counted = rounds / rounds.sum() @ survival
    return 1 + float(counted.sum()), (counted / np.concatenate(([1.0], counted[:-1]))).tolist()


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_a_load_is_accepted_as_published(load: Load) -> None:
    length, conditional = observed(load, 7)
    assert length == pytest.approx(load.accept_length, rel=0.02)
    assert conditional[0] == pytest.approx(load.first_accepted, abs=0.015)
    assert conditional == sorted(conditional)


def test_chat_and_math_keep_to_the_published_range_of_conditional_acceptance() -> None:
    chat, math_ = (observed(load, 7)[1] for load in (LOADS[0], LOADS[2]))
    assert 0.53 <= min(chat) <= max(chat) <= 0.75
    assert 0.80 <= min(math_) <= max(math_) <= 0.95


def test_every_assumption_changes_what_is_served() -> None:
    def served(number: int) -> object:
        return scenario(LOADS[0], H200, ASSUMPTIONS[number], max_draft_steps=MOST, rounds=10)

    every = [served(number) for number in range(len(ASSUMPTIONS))]
    assert all(every[first] != every[second] for first in range(len(every)) for second in range(first))


@given(modelled=st.floats(0.01, 10.0), published=st.floats(0.01, 3.0))
def test_time_outside_rounds_shrinks_a_gain_to_the_published_one(modelled: float, published: float) -> None:
    outside = outside_share(modelled, published)
    if published > modelled:
        assert outside is None
    else:
        assert outside is not None
        assert (outside + 1) / (outside + 1 / (1 + modelled)) == pytest.approx(1 + published)


def sure(value: float) -> Spread:
    return Spread(value, value, value)


def result(**compared: tuple[float, float, float | None]) -> LoadResult:
    """A load on which 50 % more, half the rows and 30 points were published."""
    load = dataclasses.replace(LOADS[0], name="Talk", claim=Claim(0.5, 2.0, 0.3))
    figures = {
        name.replace("_", " "): Comparison(sure(gain), sure(rows), None if points is None else sure(points))
        for name, (gain, rows, points) in compared.items()
    }
    figures[MODELLED.name] = figures.pop("modelled")
    everything = {world.name: figures[MODELLED.name] for world in ASSUMPTIONS} | figures
    one = sure(1.0)
    lines = (
        Line("off", None, None, one, one, one, sure(2.0), sure(0.0)),
        Line("fixed", 3, one, one, one, one, sure(1.6), sure(0.0)),
        Line("dynamic", 3, one, one, sure(0.9), sure(0.8), sure(1.2), sure(100.0)),
    )
    return LoadResult(load, "off", lines, everything)


def test_a_figure_that_is_not_reached_names_the_assumptions_that_reach_it() -> None:
    text = "\n".join(verdicts([result(modelled=(0.4, 2.1, 0.35), a_faster_one=(0.6, 2.1, 0.35))]))
    assert "Talk: gain: the model gives 0.4 of the published 0.5; reached with: a faster one" in text
    assert "Talk: fewer rows" not in text
    assert "Talk: acceptance" not in text
    hopeless = "\n".join(verdicts([result(modelled=(0.6, 1.5, None))]))
    assert "Talk: fewer rows: the model gives 1.5 of the published 2; reached with none of the assumptions" in hopeless
    assert "Talk: acceptance: the model gives nothing of the published 0.3" in hopeless


def test_the_nearest_world_and_the_lowest_ratios_are_told() -> None:
    found = result(modelled=(3.0, 9.0, 0.6), small_batches=(0.5, 2.0, 0.3), slow_rows=(0.1, 1.0, 0.1))
    assert nearest(found) == "small batches"
    text = "\n".join(verdicts([found]))
    assert "nearest to all three published figures is 'small batches'" in text
    assert "times as long outside decode rounds" in text
    assert "Lowest of dynamic over off: 0.900 (Talk, MTP 3)" in text
    assert "Lowest of dynamic over best static: 0.800 (Talk, MTP 3)" in text
    assert "Lowest of dynamic over 3 fixed steps: 0.750 (Talk, MTP 3)" in text


def test_the_table_shows_a_dash_where_nothing_was_verified() -> None:
    console = Console(width=150)
    with console.capture() as capture:
        console.print(published_table([result(modelled=(0.6, 2.5, None))], H200, num_seeds=1, rounds=9))
    assert "+60%  2.5x  -" in capture.get()
    assert "MODELLED, NOT MEASURED" in capture.get()


def test_the_reference_runs_and_prints_published_and_modelled(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert main(["simulate", "--reference", "--seeds", "1", "--rounds", "12", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    for load in LOADS:
        assert text.count(load.name) >= 3
        assert f"{load.claim.gain:+.1%}" in text
        assert f"{load.claim.fewer_rows:.1f}x" in text
    for world in ASSUMPTIONS:
        assert world.name in text
    (path,) = out.glob("reference-*.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    assert [load["load"]["name"] for load in content["loads"]] == [load.name for load in LOADS]
    lines = content["loads"][0]["lines"]
    arms: list[tuple[str, int | None]] = [("off", None), ("best static", None)]
    arms += [(arm, steps) for steps in STEPS for arm in ("fixed", "dynamic")]
    assert [(line["arm"], line["steps"]) for line in lines] == arms
    assert lines[0]["to_off"]["median"] == 1.0
    assert lines[6]["to_most"]["median"] == pytest.approx(1.0)
    # A fixed server verifies 11 drafts of all requests but those that have just come: all of them in the first round.
    assert 256 * 10.5 < lines[6]["rows"]["median"] <= 256 * 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simulate"], "simulate: expected either a SCENARIO or --reference"),
        (["simulate", "x.yaml", "--reference", "y.yaml"], "simulate: expected either a SCENARIO or --reference"),
        (["simulate", "--reference", "nowhere.yaml"], "costs nowhere.yaml cannot be read"),
        (["simulate", "--reference", "--seeds", "0"], "--seeds: expected 1 to 1000"),
        (["simulate", "--reference", "--rounds", "0"], "rounds: expected 1 to 1000000, got 0"),
    ],
)
def test_a_bad_command_line_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert message in line
