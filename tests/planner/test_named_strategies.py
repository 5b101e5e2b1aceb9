"""Strategies of a file and of other packages: by name, with options, combined."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from lightspec_lightllm.adapters.simulated import AcceptanceProfile, SimulatedHost
from lightspec_lightllm.config import Config, check_strategy, load_config, parse_config
from lightspec_lightllm.decode import Round
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.planner import BatchView, Planner, PlannerOptions, StrategyChoice, make_planner
from lightspec_lightllm.planner.hybrid import HybridPlanner
from lightspec_lightllm.plugins import InstalledStrategies
from tests.planner.worlds import GPU

EXAMPLE = Path(__file__).parent.parent.parent / "configs" / "strategies.yaml"


def config_of(**planner: Any) -> Config:
    return parse_config({"planner": planner})


def make(config: Config, strategy: str | None = None) -> Planner:
    choice = config.planner.resolve(strategy or config.planner.strategy)
    return make_planner(
        choice.strategy,
        GPU,
        max_draft_steps=config.planner.max_draft_steps,
        registered=InstalledStrategies(),
        **choice.options,
    )


def steps_of(planner: Planner, num_requests: int = 4) -> int:
    return planner.plan(BatchView(num_requests, np.zeros(num_requests, dtype=np.int64))).draft_steps


def serve(planner: Planner, rounds: int = 40) -> Round:
    """Rounds on the simulated host; its requests end and are replaced."""
    profile = AcceptanceProfile((0.7,), spread=0.5, noise=1.0, confidence=True)
    host = SimulatedHost(GPU, 24, profile, max_draft_steps=planner.max_draft_steps, lifetime=30)
    served = Round(host, planner)
    for _ in range(rounds):
        served.step()
    assert served.counters.fallback is None
    return served


# --- the example ------------------------------------------------------------------------------------------------------


def test_every_strategy_of_the_example_serves() -> None:
    config = load_config(EXAMPLE)
    assert config.planner.strategy in config.planner.strategies
    for name in config.planner.strategies:
        assert serve(make(config, name)).counters.num_committed_tokens > 0


def test_the_example_says_what_happens() -> None:
    planner = make(load_config(EXAMPLE))
    assert isinstance(planner, HybridPlanner)
    patient = planner.planners[0].options  # type: ignore[attr-defined]
    assert patient == PlannerOptions(memory_trials=1200.0, request_prior_trials=6.0)
    assert [steps_of(planner, n) for n in (16, 48, 37, 35)] == [2, 0, 0, 2]
    steps_of(planner, 11)
    assert planner.current == 0


# --- names and options of a file --------------------------------------------------------------------------------------


def test_a_named_lightspec_starts_from_the_options_of_the_file() -> None:
    config = config_of(
        options={"probe_rounds": 5, "drift": False},
        strategies={"mine": {"strategy": "lightspec", "options": {"drift": True}}},
        strategy="mine",
    )
    assert make(config).options == PlannerOptions(probe_rounds=5, drift=True)  # type: ignore[attr-defined]
    assert make(config, "lightspec").options == PlannerOptions(  # type: ignore[attr-defined]
        probe_rounds=5, drift=False
    )


def test_a_name_may_build_on_another() -> None:
    config = config_of(
        strategies={
            "base": {"strategy": "fixed", "options": {"steps": 2}},
            "same": {"strategy": "base"},
            "more": {"strategy": "base", "options": {"steps": 4}},
        }
    )
    assert [steps_of(make(config, name)) for name in ("base", "same", "more")] == [2, 2, 4]


def test_names_inside_a_hybrid_are_looked_up_too() -> None:
    parts = ["two", {"strategy": "two", "options": {"steps": 1}}, "lightspec"]
    config = config_of(
        options={"probe_rounds": 7},
        strategies={
            "two": {"strategy": "fixed:2"},
            "mix": {
                "strategy": "hybrid",
                "options": {"by": "load", "planners": ["two", "lightspec"], "thresholds": [4]},
            },
        },
    )
    planner = make(config, "mix")
    assert isinstance(planner, HybridPlanner)
    assert planner.planners[1].options.probe_rounds == 7  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="no option 'steps' besides"):
        config_of(
            strategies={
                "two": {"strategy": "fixed:2"},
                "mix": {"strategy": "hybrid", "options": {"by": "load", "planners": parts, "thresholds": [2, 4]}},
            }
        )


def test_a_built_in_name_resolves_to_itself() -> None:
    assert Config().planner.resolve("off") == StrategyChoice("off")
    assert Config().planner.resolve("fixed:3") == StrategyChoice("fixed:3")


@pytest.mark.parametrize(
    ("strategies", "message"),
    [
        ({"a": {"strategy": "swift"}}, "planner.strategies.a: strategy: expected one of lightspec, mean-ema"),
        ({"a": {"strategy": "a"}}, "planner.strategies.a: strategy 'a' is made of itself: a -> a"),
        (
            {"a": {"strategy": "b"}, "b": {"strategy": "hybrid", "options": {"planners": ["a", "off"]}}},
            "strategy 'a' is made of itself: a -> b -> a",
        ),
        ({"off": {"strategy": "lightspec"}}, "planner.strategies.off: expected a name"),
        ({"a b": {"strategy": "lightspec"}}, "planner.strategies.a b: expected a name"),
        ({"fixed:3": {"strategy": "off"}}, "planner.strategies.fixed:3: expected a name"),
        ({"a": {"strategy": "off", "options": {"steps": 1}}}, "planner.strategies.a: strategy 'off': steps is not an"),
        (
            {"a": {"strategy": "lightspec", "options": {"probe_round": 1}}},
            "planner.strategies.a: strategy 'lightspec': probe_round is not an option; did you mean probe_rounds?",
        ),
        (
            {"a": {"strategy": "lightspec", "options": {"probe_rounds": 1.5}}},
            "probe_rounds: expected a whole number, got 1.5 (float)",
        ),
        (
            {"a": {"strategy": "lightspec", "options": {"probe_cost": True}}},
            "probe_cost: expected a number, got True (bool)",
        ),
        ({"a": {"strategy": "lightspec", "options": {"drift": 1}}}, "drift: expected true or false, got 1 (int)"),
        ({"a": {"strategy": "lightspec", "options": {"probe_cost": 2.0}}}, "probe_cost: 2.0 is out of range"),
        ({"a": {"strategy": "fixed", "options": {"steps": 16}}}, "strategy 'fixed': steps: expected 0..15, got 16"),
        ({"a": {"strategy": "fixed", "options": {"steps": -1}}}, "strategy 'fixed': steps: expected 0..15, got -1"),
        ({"a": {"strategy": "fixed:x"}}, "strategy: expected a name, or fixed: with a number of steps"),
        ({"a": {"strategi": "off"}}, "planner.strategies.a.strategi is not a known key; did you mean"),
        ({"a": {"options": {}}}, "planner.strategies.a.strategy: expected a value, the key is missing"),
        ({"a": {"strategy": "off", "options": [1]}}, "planner.strategies"),
        ({"a": "off"}, "planner.strategies.a: expected a mapping of strategy, options, got 'off' (str)"),
    ],
)
def test_a_bad_strategy_is_refused_when_the_file_is_read(strategies: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(strategies=strategies)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_lists_the_names_that_there_are() -> None:
    config = config_of(strategies={"mine": {"strategy": "off"}})
    with pytest.raises(
        ConfigError, match=r"--arms: expected lightspec, mean-ema, dspark, off, mine or fixed:K .*'yours'"
    ):
        check_strategy("yours", config.planner, key="--arms")


# --- strategies of other packages -------------------------------------------------------------------------------------

MODULE = '''
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.planner import Plan, PlannerCounters, make_planner


class Cautious:
    """Verifies at most so many drafts a round, and drafts one."""

    def __init__(self, max_draft_steps, limit):
        self.max_draft_steps, self.limit = max_draft_steps, limit
        self.counters = PlannerCounters()

    def plan(self, view):
        self.counters.plans += 1
        rows = view.num_requests + min(int(view.proposed.sum()), self.limit)
        return Plan(rows, 1, view.num_requests, proposed=view.proposed)

    def observe(self, feedback):
        self.counters.observed += 1


def make_cautious(costs, *, max_draft_steps, drafter, limit=2):
    if limit < 0:
        raise ConfigError(f"limit: expected at least 0, got {limit}")
    return Cautious(max_draft_steps, limit)


def make_broken(costs, *, max_draft_steps, drafter):
    raise RuntimeError("out of ideas")


def make_nothing(costs, *, max_draft_steps, drafter):
    return None


NUMBER = 3
'''


def install(folder: Path, entries: dict[str, str], *, package: str = "cautious-planner") -> None:
    """A distribution as an installer leaves it behind: a module, and metadata with entry points."""
    (folder / "cautious_planning.py").write_text(MODULE, encoding="utf-8")
    info = folder / f"{package.replace('-', '_')}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n", encoding="utf-8")
    lines = "\n".join(f"{name} = {value}" for name, value in entries.items())
    (info / "entry_points.txt").write_text(f"[lightspec.strategies]\n{lines}\n", encoding="utf-8")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "cautious_planning", raising=False)
    return tmp_path


GOOD = {"cautious": "cautious_planning:make_cautious"}


def test_an_installed_strategy_serves_by_its_name(site: Path) -> None:
    install(site, GOOD)
    served = serve(make(config_of(strategy="cautious")))
    assert served.counters.num_verified_tokens == 2 * (served.counters.num_rounds - 1)


def test_an_installed_strategy_takes_options_and_part_in_a_hybrid(site: Path) -> None:
    install(site, GOOD)
    text = """
    planner:
      strategy: by-load
      strategies:
        mine: {strategy: cautious, options: {limit: 5}}
        by-load:
          strategy: hybrid
          options: {by: load, planners: [mine, "off"], thresholds: [100]}
    """
    config = parse_config(yaml.safe_load(textwrap.dedent(text)))
    served = serve(make(config))
    assert served.counters.num_verified_tokens == 5 * (served.counters.num_rounds - 1)
    planner = served.planner.planner
    assert isinstance(planner, HybridPlanner)
    assert planner.planners[0].counters.observed == served.counters.num_rounds


@pytest.mark.parametrize(
    ("entries", "planner", "message"),
    [
        (GOOD, {"strategy": "hasty"}, "expected lightspec, mean-ema, dspark, off, cautious or fixed:K"),
        (GOOD, {"strategies": {"a": {"strategy": "hasty"}}}, "strategy: expected one of lightspec, mean-ema"),
        (
            GOOD,
            {"strategies": {"a": {"strategy": "cautious", "options": {"limits": 3}}}},
            "planner.strategies.a: strategy 'cautious': got an unexpected keyword argument 'limits'",
        ),
        ({"lost": "nowhere_at_all:make"}, {"strategy": "lost"}, "'lost' (nowhere_at_all:make of cautious-planner 1.2)"),
        ({"lost": "cautious_planning:make"}, {"strategy": "lost"}, "cannot be loaded: AttributeError"),
        (
            {"three": "cautious_planning:NUMBER"},
            {"strategy": "three"},
            "expected a function that makes a planner, got 3",
        ),
        ({"off": "cautious_planning:make_cautious"}, {"strategy": "x"}, "the name of a built-in strategy"),
    ],
)
def test_a_package_that_cannot_be_used_is_named_when_the_file_is_read(
    site: Path, entries: dict[str, str], planner: dict[str, Any], message: str
) -> None:
    install(site, entries)
    with pytest.raises(ConfigError) as caught:
        config_of(**planner)
    assert message in str(caught.value)
    assert "cautious" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        ("make_broken", {}, "RuntimeError: out of ideas"),
        ("make_nothing", {}, "expected a planner, got None without plan, observe, max_draft_steps, counters"),
        ("make_cautious", {"limit": -1}, "1.2): limit: expected at least 0, got -1"),
    ],
)
def test_a_package_that_makes_no_planner_is_named(
    site: Path, value: str, options: dict[str, Any], message: str
) -> None:
    install(site, {"mine": f"cautious_planning:{value}"})
    config = config_of(strategies={"a": {"strategy": "mine", "options": options}})
    with pytest.raises(ConfigError, match="cautious-planner") as caught:
        make(config, "a")
    assert message in str(caught.value)


def test_two_packages_with_one_name_are_both_named(site: Path) -> None:
    install(site, GOOD)
    install(site, {"cautious": "elsewhere:make"}, package="other-planner")
    with pytest.raises(ConfigError, match=r"cautious-planner 1\.2.*other-planner 1\.2.*both register 'cautious'"):
        config_of(strategy="cautious")


def test_a_broken_package_does_not_matter_to_those_who_do_not_use_it(site: Path) -> None:
    install(site, {"off": "nowhere_at_all:make", "lost": "nowhere_at_all:make"})
    assert steps_of(make(config_of(strategy="fixed:2"))) == 2
