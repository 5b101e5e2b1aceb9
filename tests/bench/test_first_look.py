"""A benchmark without arguments shortens its answers where the machine is slow, and only then."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.bench.datasets import Dataset, Prompt
from lightspec_lightllm.bench.first_look import LEAST_TOKENS, SECONDS, fitted, is_default, predicted_seconds
from lightspec_lightllm.bench.options import BenchOptions
from lightspec_lightllm.cli import main
from lightspec_lightllm.planner import CostModel
from tests.bench.fakes import FakeHost

SETS = [Dataset(name, name, tuple(Prompt(f"p{i}", "x" * 100) for i in range(20))) for name in BenchOptions().datasets]


def costs(slowness: float) -> CostModel:
    """A forward takes 20 ms and 0.5 ms per row on a machine of slowness 1."""
    return CostModel.from_tables({rows: slowness * (20.0 + 0.5 * rows) for rows in (1, 16, 128)}, interpolate=True)


@given(slowness=st.floats(0.01, 100.0))
def test_answers_are_as_long_as_there_is_time_for(slowness: float) -> None:
    options, model = BenchOptions(), costs(slowness)
    lengths = {dataset.name: [100] * 16 for dataset in SETS}
    found = fitted(options, FakeHost(), model, SETS)
    assert LEAST_TOKENS <= found.max_tokens <= options.max_tokens
    assert dataclasses.replace(found, max_tokens=options.max_tokens) == options
    if found.max_tokens > LEAST_TOKENS:
        assert predicted_seconds(found, model, lengths) <= SECONDS
    if found.max_tokens < options.max_tokens:
        longer = dataclasses.replace(found, max_tokens=found.max_tokens + 1)
        assert predicted_seconds(longer, model, lengths) > SECONDS


def test_slow_machines_are_asked_for_less() -> None:
    found = [fitted(BenchOptions(), FakeHost(), costs(slowness), SETS).max_tokens for slowness in (0.5, 2.3, 3.0)]
    assert found[0] == 24
    assert found[2] == LEAST_TOKENS
    assert found[0] > found[1] > found[2]


def test_what_is_predicted_is_prompts_and_rounds() -> None:
    """Of one request in flight: two prompts of 100 rows, and 24 rounds for each, in every arm."""
    options = BenchOptions(datasets=("gsm8k",), concurrency=(1,), arms=("off", "fixed:3"))
    model = CostModel.from_tables({1: 30.0, 8: 37.0}, interpolate=True)
    seconds = predicted_seconds(options, model, {"gsm8k": [100, 100]})
    assert seconds == pytest.approx(1.3 * 2 * 1e-3 * (0.8 * 200 + 2 * 24 * 30.0))


@pytest.mark.parametrize(
    "changes", [{"concurrency": (1,)}, {"arms": ("off", "lightspec")}, {"repetitions": 3}, {"num_prompts": 4}], ids=str
)
def test_whoever_asks_for_something_gets_it(changes: dict[str, object]) -> None:
    assert is_default(BenchOptions())
    assert is_default(BenchOptions(seed=3, temperature=0.7))
    assert not is_default(BenchOptions(**changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "shorten"),
    [
        ("", True),
        ("--seed 3 --drafter head", True),
        ("--max-tokens 24", False),
        ("--concurrency 1 4", False),
        ("--output-tokens 500", False),
    ],
)
def test_the_command_shortens_answers_where_nothing_says_how_much_to_run(
    arguments: str, shorten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def run(*_: object, **options: Any) -> Any:
        asked.append(options)
        return dataclasses.make_dataclass("Ended", [("interrupted", bool, False)])()

    monkeypatch.setattr("lightspec_lightllm.bench.command.run_bench", run)
    assert main(["bench", *arguments.split()]) == 0
    assert [options["shorten"] for options in asked] == [shorten]
