import os
import time

import pytest
import torch

from lightspec_lightllm.engine import EngineOptions
from lightspec_lightllm.engine.threads import choose_threads
from lightspec_lightllm.errors import ConfigError


def chosen(monkeypatch: pytest.MonkeyPatch, speedups: dict[int, float], usual: int | None = None) -> int:
    """The choice on a machine with as many cores as the most threads of ``speedups``."""
    monkeypatch.setattr(os, "cpu_count", lambda: max(speedups))
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def forward() -> None:
        clock[0] += 0.03 / speedups[torch.get_num_threads()]

    before = torch.get_num_threads()
    count = choose_threads(forward, usual)
    assert torch.get_num_threads() == before
    return count


@pytest.mark.parametrize(("speedup", "expected"), [(1.8, 2), (1.05, 1), (0.1, 1)])
def test_more_threads_are_used_only_where_they_are_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, speedup: float, expected: int
) -> None:
    assert chosen(monkeypatch, {1: 1.0, 2: speedup}) == expected


@pytest.mark.parametrize(
    ("usual", "speedup", "expected"), [(1, 1.1, 1), (2, 1.1, 2), (2, 0.9, 2), (2, 0.5, 1), (1, 1.8, 2)]
)
def test_the_usual_number_of_threads_stays_unless_another_is_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, usual: int, speedup: float, expected: int
) -> None:
    assert chosen(monkeypatch, {1: 1.0, 2: speedup}, usual) == expected


def test_a_usual_number_of_threads_is_measured_where_it_is_no_power_of_two_and_not_where_the_machine_has_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speedups = {1: 1.0, 2: 1.7, 3: 2.3}
    assert chosen(monkeypatch, speedups, usual=3) == 3
    assert chosen(monkeypatch, speedups, usual=8) == chosen(monkeypatch, speedups) == 2


def test_one_core_needs_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert choose_threads(lambda: pytest.fail("measured")) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights", "int8"),
        ("threads", -1),
        ("threads", 99_999),  # torch would crash or crawl
        ("num_slots", 0),
        ("prefill_chunk", 0),
        ("max_rows", 0),
    ],
)
def test_impossible_engine_options_are_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        EngineOptions(**{field: value})  # type: ignore[arg-type]  # the wrong value is the point
