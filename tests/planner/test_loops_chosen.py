"""Which loops run: compiled ones that give what numpy's give, else numpy's; and that each says so."""

import importlib
import logging
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from lightspec_lightllm.decode.loops_log import log_loops
from lightspec_lightllm.planner import BatchView, RoundFeedback, make_planner, scale, survival
from lightspec_lightllm.planner.confidence import BIN_OF_CODE, NUM_BINS, NUM_CODES
from lightspec_lightllm.planner.loops import INNER, Inner, check, plain
from lightspec_lightllm.planner.scale import LEVEL_AGAINST, LEVELS
from lightspec_lightllm.planner.survival import BITS, CURVE_VALUE
from tests.planner.test_loops import NAMES, compiled, numba
from tests.planner.worlds import GPU


def test_what_is_missing_or_broken_leaves_numpy_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightspec_lightllm.planner.loops.compiled", None)
    inner = Inner()
    inner.prepare()
    assert inner.loops is plain
    assert inner.described.startswith("numpy: ModuleNotFoundError")


def test_loops_that_differ_from_numpy_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(**{name: getattr(plain, name) for name in NAMES})
    other.gain_at = lambda rows, gain, extra: plain.gain_at(rows, gain, extra) * (1.0 + 1e-15)
    other.recompile = compilations = Mock()
    monkeypatch.setitem(sys.modules, "lightspec_lightllm.planner.loops.compiled", other)
    inner = Inner()
    inner.prepare()
    assert inner.loops is plain
    assert compilations.call_count == 1
    assert inner.unexpected
    assert inner.described == "numpy: LoopsDifferError: gain_at: differs from numpy on this machine"


def test_the_check_covers_every_loop_and_numpy_passes_it() -> None:
    assert sorted(check.samples()) == NAMES
    check.compare(plain, plain)


CHANGED: list[tuple[Any, str, Any]] = [
    (plain.learning, "MOST_LOG_ODDS", 8.0 + 1e-9),
    (plain.learning, "SPREAD_MEMORY", 64.0 + 1e-9),
    (plain.learning, "SHIFT_PRIOR", 20.0 + 1e-9),
    (plain.learning, "SCALE_PRIOR", 150.0 + 1e-9),
    (plain.learning, "STALE", 0.5 + 1e-9),
    (plain.learning, "LEVEL_STEP", 0.26),
    (plain.learning, "NEUTRAL_LEVEL", LEVELS // 2 + 1),
    (plain.learning, "HASH", np.uint64(0x9E3779B97F4A7C17)),
    (plain.learning, "LEVEL_AGAINST", LEVEL_AGAINST * (1.0 + 1e-12)),
    (scale, "LEAST_SPREAD", 0.02 + 1e-9),
    (plain.reading, "BIN_OF_CODE", np.minimum(BIN_OF_CODE + (np.arange(NUM_CODES) == 1000), NUM_BINS - 1)),
    (plain.reading, "ODDS_STEPS", 33),
    (plain.reading, "MOST_ODDS", 25),
    (plain.reading, "BITS", BITS + (np.arange(len(BITS)) == 0).astype(np.int16)),
    (plain.reading, "BITS", BITS + (np.arange(len(BITS)) == len(BITS) - 1).astype(np.int16)),
    (plain.reading, "CURVE_VALUE", CURVE_VALUE * (1.0 + 1e-12)),
    (plain.reading, "LOGGED_TOGETHER", 15),
    (plain.reading, "ONE_BITS", plain.reading.ONE_BITS + 1),
    (plain.reading, "ONE_BITS", plain.reading.ONE_BITS - 1),
    (plain.search, "MASS_BINS", 12),
    (plain.search, "MASS_SHARED", 5),
    (survival, "SURVIVAL", np.append(survival.SURVIVAL[:-2], [0.0, 0.0])),
    (survival, "SURVIVAL", survival.SURVIVAL + 1e-12 * (np.arange(survival.LAST_CELL + 1) == survival.LAST_CELL)),
]


@numba
@pytest.mark.parametrize(("module", "name", "value"), CHANGED)
def test_the_check_tells_loops_with_another_constant(
    module: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = compiled()
    monkeypatch.setattr(module, name, value)
    with pytest.raises(check.LoopsDifferError):
        check.compare(plain, loops)


def test_an_interrupt_while_loops_are_prepared_leaves_it_to_the_next_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    inner = Inner()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "lightspec_lightllm.planner.loops.compiled", plain)
        patch.setattr(check, "compare", interrupted)
        with pytest.raises(KeyboardInterrupt):
            inner.prepare()
    decided = inner.prepared
    assert not decided
    monkeypatch.setitem(sys.modules, "lightspec_lightllm.planner.loops.compiled", plain)
    inner.prepare()
    assert inner.prepared
    assert inner.described == "compiled"


def run(code: str, **environment: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.strip()


MAKE = """
from lightspec_lightllm.planner import CostModel, make_planner
planner = make_planner("lightspec", CostModel.from_tables({1: 1.0}), max_draft_steps=2)
print(planner.loops)
"""


def test_numba_is_not_imported_before_a_planner_is_made() -> None:
    assert (
        run("import sys, lightspec_lightllm.cli, lightspec_lightllm.planner; print('numba' in sys.modules)") == "False"
    )


@numba
def test_numba_that_is_told_not_to_compile_or_cannot_keep_what_it_compiled_leaves_numpy() -> None:
    assert run(MAKE, NUMBA_DISABLE_JIT="1").startswith("numpy: ImportError: numba is told not to compile")
    nowhere = "from numba.core.caching import CompileResultCacheImpl\nCompileResultCacheImpl._locator_classes = []\n"
    assert run(nowhere + MAKE).startswith("numpy: RuntimeError: cannot cache")


@numba
def test_numba_that_takes_exponentials_from_svml_leaves_numpy() -> None:
    found = run("import numba\nnumba.config.USING_SVML = True\n" + MAKE)
    assert found.startswith("numpy: ImportError: numba takes exponentials from Intel's SVML")


STALE = """
from lightspec_lightllm.planner import scale, survival
scale.LEAST_SPREAD, survival.MOST_ODDS = 0.5, 20
import lightspec_lightllm.planner.loops.compiled
"""


@numba
def test_code_that_was_kept_with_other_constants_is_compiled_anew(tmp_path: Path) -> None:
    run(STALE, NUMBA_CACHE_DIR=str(tmp_path))
    assert run(MAKE, NUMBA_CACHE_DIR=str(tmp_path)) == "compiled"
    again = MAKE + "from lightspec_lightllm.planner.loops.compiled import gain_at as g; print(len(g.stats.cache_hits))"
    assert run(again, NUMBA_CACHE_DIR=str(tmp_path)).split() == ["compiled", "1"]  # and kept


@numba
def test_what_is_kept_is_found_by_all_sources(tmp_path: Path) -> None:
    loops: Any = compiled()
    types = importlib.import_module("lightspec_lightllm.planner.loops.compiled.types")
    (tmp_path / "one.py").write_text("A = 1")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "three.py").write_text("B = 2")
    before = types.identity(tmp_path)
    assert types.identity(tmp_path) == before
    (tmp_path / "two" / "three.py").write_text("B = 3")
    assert types.identity(tmp_path) != before
    assert types.IDENTITY in loops.gain_at.__qualname__


@pytest.mark.parametrize(
    ("described", "unexpected", "level"),
    [
        ("compiled", False, logging.INFO),
        ("numpy: numba is not installed (extra fast)", False, logging.INFO),
        ("numpy: LoopsDifferError: cells: differs from numpy on this machine", True, logging.WARNING),
    ],
)
def test_a_log_says_which_loops_run_and_warns_if_numba_is_there_and_not_used(
    described: str, unexpected: bool, level: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("lightspec_lightllm.test")
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(INNER, "prepared", False)
    log_loops(logger)
    assert not caplog.records
    for name, value in (("prepared", True), ("described", described), ("unexpected", unexpected)):
        monkeypatch.setattr(INNER, name, value)
    log_loops(logger)
    assert caplog.record_tuples == [(logger.name, level, f"the planner's loops: {described}")]


def test_numba_that_is_not_installed_is_no_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("lightspec_lightllm.planner.loops.compiled")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    inner = Inner()
    inner.prepare()
    assert inner.described == "numpy: numba is not installed (extra fast)"
    assert not inner.unexpected


def test_an_interrupt_while_planning_is_an_interrupt() -> None:
    """A signal may arrive in any loop. What it raises must come through as it is, or Ctrl-C ends nothing."""
    sent = caught = 0

    def interrupt(*_: object) -> None:
        nonlocal sent
        sent += 1
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    ids, proposed, rng = np.arange(8), np.full(8, 15), np.random.default_rng(0)
    planner = make_planner("lightspec", GPU, max_draft_steps=15)
    try:
        for delay in rng.uniform(5e-4, 3e-3, 600):
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                while sent == caught:
                    sure = rng.random((8, 15))
                    plan = planner.plan(BatchView(8, proposed, 300.0, sure, ids))
                    verified = np.minimum(proposed, 2)
                    planner.observe(RoundFeedback(plan, verified, 1 + verified, sure, 8.0, ids))
            except KeyboardInterrupt:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert sent == caught == 600
