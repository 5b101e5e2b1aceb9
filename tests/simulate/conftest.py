"""The tiny model's texts, and a scenario that replays them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.test_embedded_lossless import alone
from tests.simulate.replays import COUNT, PARAMS, recorded, scenario_file


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    return alone(PARAMS, COUNT)


@pytest.fixture
def replayed(tmp_path: Path, texts: list[list[int]]) -> Path:
    return scenario_file(tmp_path, recorded("reader", texts))
