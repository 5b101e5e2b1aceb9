"""The configuration: strict reading, faults that name their key, and a file that says what the code does."""

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightspec_lightllm.config import Config, StrictLoader, known_keys, load_config, parse_config
from lightspec_lightllm.errors import ConfigError

ANNOTATED = Path(__file__).parent.parent / "configs" / "embedded.yaml"

KEYS = [key for key in known_keys() if "*" not in key]
"""Without those of named parts: `tests/planner/test_named_strategies.py` has the strategies'."""

OTHER_VALUES: dict[str, Any] = {
    "model.path": "model.gguf",
    "engine.weights": "float32",
    "engine.threads": 1,
    "engine.num_slots": 4096,
    "engine.max_requests": 8,
    "engine.prefill_chunk": 64,
    "engine.max_context": 1024,
    "engine.max_rows": 16,
    "drafter.name": "hybrid",
    "planner.strategy": "fixed:3",
    "planner.max_draft_steps": 7,
    "planner.options.prior_acceptance": 0.5,
    "planner.options.memory_trials": 100.0,
    "planner.options.request_memory_trials": 40.0,
    "planner.options.request_prior_trials": 6.0,
    "planner.options.pace_rounds": 16.0,
    "planner.options.probe_rounds": 8,
    "planner.options.probe_cost": 0.01,
    "planner.options.steps_margin": 0.01,
    "planner.options.drift": False,
    "sampling.max_tokens": 16,
    "sampling.temperature": 0.8,
    "sampling.top_k": 20,
    "sampling.top_p": 0.9,
    "sampling.seed": 7,
    "sampling.stop": ["\n\n"],
    "sampling.ignore_eos": True,
}


def dotted(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= dotted(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


def read(config: Config, key: str) -> Any:
    found: Any = config
    for part in key.split("."):
        found = getattr(found, part)
    return found


def test_the_annotated_file_holds_every_key_and_only_defaults() -> None:
    content = yaml.load(ANNOTATED.read_text(encoding="utf-8"), Loader=StrictLoader)  # noqa: S506
    assert list(dotted(content)) == list(KEYS)
    assert load_config(ANNOTATED) == Config()


def test_every_key_of_the_annotated_file_has_its_comment() -> None:
    lines = ANNOTATED.read_text(encoding="utf-8").splitlines()
    for before, line in pairwise(lines):
        if line.strip() and not line.strip().startswith("#") and line.startswith(" "):
            assert before.strip().startswith("#"), f"no comment above {line.strip()!r}"


@pytest.mark.parametrize("key", KEYS)
def test_each_key_moves_its_field_and_nothing_else(key: str) -> None:
    changed = parse_config(nested(key, OTHER_VALUES[key]))
    value = read(changed, key)
    assert (list(value) if isinstance(value, tuple) else value) == OTHER_VALUES[key]
    assert value != read(Config(), key)
    moved = [other for other in KEYS if read(changed, other) != read(Config(), other)]
    assert moved == [key]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"plannr": {}}, "plannr is not a known key; did you mean planner?"),
        (
            {"planner": {"max_draft_step": 3}},
            "planner.max_draft_step is not a known key; did you mean planner.",
        ),
        ({"engine": {"temperature": 1.0}}, "engine.temperature is not a known key; did you mean sampling.temperature?"),
        ({"planner": {"options": {"zzz": 1}}}, "planner.options.zzz is not a known key; planner.options has prior_acc"),
        ({"zzz": 1}, "zzz is not a known key; the file has model, engine, drafter, planner, sampling"),
        ({"engine": {"threads": "two"}}, "engine.threads: it should be a valid integer, got 'two' (str)"),
        ({"engine": {"threads": True}}, "engine.threads: it should be a valid integer, got True (bool)"),
        ({"engine": {"weights": "int8"}}, "engine.weights: it should be 'float16' or 'float32', got 'int8' (str)"),
        ({"engine": {"threads": -1}}, "engine.threads must be at least 0"),
        ({"sampling": {"top_p": 1.5}}, "sampling.top_p must be in (0, 1], got 1.5"),
        ({"engine": {"max_rows": 8}}, "engine.max_rows: expected at least 16"),
        ({"engine": 3}, "engine: expected a mapping of weights, threads"),
        ({"planner": {"options": {"drift": 1}}}, "planner.options.drift: it should be a valid boolean, got 1 (int)"),
        ({"planner": {"options": {"probe_cost": 2.0}}}, "planner.options.probe_cost: 2.0 is out of range"),
        ({"planner": {"max_draft_steps": 0}}, "planner.max_draft_steps: expected 1 to 15, got 0"),
        ({"planner": {"max_draft_steps": 16}}, "planner.max_draft_steps: expected 1 to 15, got 16"),
        ({"planner": {"strategy": "fixed:0"}}, "the steps of 'fixed:0' must be 1 to 15"),
        (
            {"planner": {"strategy": "dynamic"}},
            "planner.strategy: expected lightspec, mean-ema, dspark, off or fixed:K",
        ),
        ({"planner": {"strategy": "fixed:8", "max_draft_steps": 7}}, "'fixed:8' must be 1 to 7"),
        ({"drafter": {"name": "eagle"}}, "drafter.name: expected one of ngram, head, hybrid, got 'eagle'"),
        ([1], "expected a mapping of model, engine, drafter, planner, sampling, got list"),
    ],
)
def test_a_fault_names_its_key_and_what_was_expected(content: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(content)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine:\n  threads: 1\n  threads: 2\n", "the key 'threads' is given twice"),
        ("engine: [\n", "is not YAML"),
        ("a: !!python/object:os.system {}\n", "is not YAML"),
    ],
)
def test_a_file_with_a_repeated_key_or_broken_yaml_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_config(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read"):
        load_config(tmp_path / "nowhere.yaml")


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("", encoding="utf-8")
    assert load_config(path) == Config()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("no", "no"),
        ("true", True),
        ("1e-4", 1e-4),
        ("1.5", 1.5),
        ("3", 3),
        ("null", None),
        ("-2.", -2.0),
    ],
)
def test_scalars_mean_what_yaml_1_2_says(text: str, value: Any) -> None:
    loaded = yaml.load(f"key: {text}", Loader=StrictLoader)["key"]  # noqa: S506
    assert (type(loaded), loaded) == (type(value), value)


def test_a_config_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().engine = None  # type: ignore[misc, assignment]


@pytest.mark.parametrize("text", ["? [a, b]\n: 2\n", "[" * 5000], ids=["a list as a key", "too deep"])
def test_yaml_that_no_mapping_can_hold_is_one_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="is not YAML"):
        load_config(path)
