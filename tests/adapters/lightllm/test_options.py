"""The file that --lightspec_config names: strict, documented, and the same in every process."""

import functools
import json
import sys
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from lightspec_lightllm.adapters.lightllm import options
from lightspec_lightllm.adapters.lightllm.options import LightLLMConfig, current, load_options
from lightspec_lightllm.config import StrictLoader, known_keys, parse_mapping
from lightspec_lightllm.errors import ConfigError
from tests.test_config import dotted, nested

CONFIGS = Path(__file__).parents[3] / "configs"
ANNOTATED = CONFIGS / "lightllm.yaml"

COMMAND_LINE = ("planner.max_draft_steps", "drafter")
"""Keys that are --mtp_step and --mtp_mode."""

KEYS = [key for key in known_keys(LightLLMConfig) if "*" not in key and key not in COMMAND_LINE]

OTHER_VALUES: dict[str, Any] = {
    "planner.strategy": "fixed:3",
    "planner.options.prior_acceptance": 0.5,
    "planner.options.memory_trials": 100.0,
    "planner.options.request_memory_trials": 40.0,
    "planner.options.request_prior_trials": 6.0,
    "planner.options.pace_rounds": 16.0,
    "planner.options.probe_rounds": 8,
    "planner.options.probe_cost": 0.01,
    "planner.options.steps_margin": 0.01,
    "planner.options.drift": False,
    "costs.path": "table.json",
    "costs.contexts": (64, 128),
    "costs.repeats": 3,
    "costs.graph_sizes": 20,
    "costs.max_verify_rows": 256,
    "check.plan_hash_every": 16,
    "observe.log_seconds": 0.0,
    "observe.trace_file": "trace.jsonl",
    "observe.metrics": False,
}


def written(folder: Path, text: str) -> Path:
    path = folder / "lightspec.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_annotated_file_holds_every_key_and_only_defaults() -> None:
    content = yaml.load(ANNOTATED.read_text(encoding="utf-8"), Loader=StrictLoader)  # noqa: S506
    assert list(dotted(content)) == KEYS
    assert load_options(ANNOTATED) == LightLLMConfig()


def test_every_key_of_the_annotated_file_has_its_comment() -> None:
    for before, line in pairwise(ANNOTATED.read_text(encoding="utf-8").splitlines()):
        if line.startswith(" ") and not line.strip().startswith("#"):
            assert before.strip().startswith("#"), f"no comment above {line.strip()!r}"


def test_the_latency_file_is_read_and_differs() -> None:
    config = load_options(CONFIGS / "lightllm_latency.yaml").with_draft_steps(15)
    assert config != LightLLMConfig()
    assert config.costs.max_verify_rows == 16 * 16


@pytest.mark.parametrize("key", KEYS)
def test_every_key_moves_its_field_and_reaches_other_processes(key: str, tmp_path: Path) -> None:
    value = OTHER_VALUES[key]
    plain = list(value) if isinstance(value, tuple) else value
    config = load_options(written(tmp_path, json.dumps(nested(key, plain)))).with_draft_steps(7)
    assert functools.reduce(getattr, key.split("."), config) == value
    assert parse_mapping(json.loads(json.dumps(config.to_json())), LightLLMConfig) == config


def test_named_strategies_reach_other_processes() -> None:
    config = load_options(CONFIGS / "strategies.yaml").with_draft_steps(7)
    assert parse_mapping(config.to_json(), LightLLMConfig) == config
    assert config.planner.strategies


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("costs: {graph_size: 3}", "did you mean costs.graph_sizes"),
        ("costs: {graph_sizes: 1}", "costs.graph_sizes: expected at least 2, got 1"),
        ("costs: {graph_sizes: '40'}", "costs.graph_sizes"),
        ("costs: {max_verify_rows: 15}", "costs.max_verify_rows: expected at least 16"),
        ("costs: {repeats: 0}", "costs.repeats"),
        ("costs: {contexts: []}", "costs.contexts"),
        ("costs: {contexts: [4096, 512]}", "costs.contexts: expected positive lengths, ascending"),
        ("costs: {contexts: [0, 512]}", "costs.contexts"),
        ("check: {plan_hash_every: -1}", "check.plan_hash_every"),
        ("observe: {log_seconds: -1.0}", "observe.log_seconds"),
        ("observe: {log_seconds: .inf}", "observe.log_seconds"),
        ("planner: {max_draft_steps: 7}", "K is --mtp_step here; drop the key"),
        ("planner: {strategy: fastest}", "planner.strategy"),
        ("planner: {strategy: lightspec}\nplanner: {strategy: dspark}", "given twice"),
        ("engine: {threads: 1}", "engine is not a known key"),
        ("- a", "expected a mapping"),
    ],
)
def test_a_bad_file_is_one_error_that_names_the_key(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_options(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_fixed_strategy_must_fit_the_draft_steps(tmp_path: Path) -> None:
    config = load_options(written(tmp_path, "planner: {strategy: 'fixed:5'}"))
    with pytest.raises(ConfigError, match="must be 1 to 3"):
        config.with_draft_steps(3)
    assert config.with_draft_steps(5).planner.max_draft_steps == 5


class StartArguments:
    """Stands in for LightLLM's module of start arguments."""

    def __init__(self, patch: pytest.MonkeyPatch, **args: Any) -> None:
        patch.setenv(options.START_ARGS_VARIABLE, "{}")
        module = ModuleType("lightllm.utils.envs_utils")
        vars(module)["get_env_start_args"] = lambda: SimpleNamespace(**args)
        for name in ("lightllm", "lightllm.utils"):
            patch.setitem(sys.modules, name, ModuleType(name))
        patch.setitem(sys.modules, module.__name__, module)


def test_every_process_reads_what_the_launcher_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_options(CONFIGS / "lightllm_latency.yaml").with_draft_steps(3)
    StartArguments(monkeypatch, lightspec=config.to_json())
    assert current() == config


def test_without_a_server_or_without_dynamic_mode_there_is_no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(options.START_ARGS_VARIABLE, raising=False)
    assert current() is None
    StartArguments(monkeypatch, mtp_step=0)
    assert current() is None
    StartArguments(monkeypatch, lightspec=None)
    assert current() is None


def test_the_seam_has_the_four_sections_that_ranks_read_and_the_drafter() -> None:
    assert [f.name for f in fields(LightLLMConfig)] == ["planner", "costs", "check", "observe", "drafter"]
