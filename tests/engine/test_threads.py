import os
import time

import pytest
import torch

from lightspec_lightllm.engine import EngineOptions
from lightspec_lightllm.engine.threads import choose_threads
from lightspec_lightllm.errors import ConfigError


@pytest.mark.parametrize(("speedup", "expected"), [(1.8, 2), (1.05, 1), (0.1, 1)])
def test_more_threads_are_used_only_where_they_are_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, speedup: float, expected: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def forward() -> None:
        clock[0] += 0.03 / (speedup if torch.get_num_threads() == 2 else 1.0)

    before = torch.get_num_threads()
    assert choose_threads(forward) == expected
    assert torch.get_num_threads() == before


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
