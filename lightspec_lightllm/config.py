"""The configuration: the frozen dataclasses of each package, composed, and read strictly from YAML.

Every key has a default; a file names only what it changes. `configs/embedded.yaml` lists and explains all of them.
"""

import dataclasses
import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from lightspec_lightllm.drafters.names import DRAFTER_NAMES
from lightspec_lightllm.engine.options import EngineOptions, SamplingParams
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.planner.options import MAX_DRAFT_STEPS, PlannerOptions
from lightspec_lightllm.planner.strategies import BUILT_IN, StrategyChoice, check_options, read_choice
from lightspec_lightllm.plugins import InstalledStrategies

T = TypeVar("T")

STRATEGIES = ("lightspec", "mean-ema", "dspark", "off")
"""Built-in strategies that a name says all of; ``fixed:K`` has an argument, ``hybrid`` needs options."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model is served.

    Attributes:
        path: a GGUF file of the Llama architecture; None: SmolLM2-135M-Instruct, downloaded once.
    """

    path: str | None = None


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """What proposes tokens.

    Attributes:
        name: ``ngram`` (prompt lookup), ``head`` (a trained layer on the target's hidden states) or ``hybrid`` (both).
    """

    name: str = "ngram"

    def __post_init__(self) -> None:
        if self.name not in DRAFTER_NAMES:
            raise ConfigError(f"drafter.name: expected one of {', '.join(DRAFTER_NAMES)}, got {self.name!r}")


@dataclass(frozen=True, slots=True)
class PlannerConfig:
    """How rounds are planned.

    Attributes:
        strategy: ``lightspec`` (dynamic), ``fixed:K`` (K draft steps, all verified, every round) or ``off``; to compare
            with, ``mean-ema`` (the published recipe of running means) and ``dspark`` (capacity from confidence); or a
            name in ``strategies``, or one that an installed package registers.
        max_draft_steps: K, the most drafts per request and round, 1 to 15.
        options: parameters of the ``lightspec`` strategy.
        strategies: strategies of one's own by name: another one with its options, or several of them combined.
    """

    strategy: str = "lightspec"
    max_draft_steps: int = MAX_DRAFT_STEPS
    options: PlannerOptions = field(default_factory=PlannerOptions)
    strategies: dict[str, StrategyChoice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.max_draft_steps <= MAX_DRAFT_STEPS:
            raise ConfigError(f"planner.max_draft_steps: expected 1 to {MAX_DRAFT_STEPS}, got {self.max_draft_steps}")
        for name in self.strategies:
            if name in BUILT_IN or not re.fullmatch(r"[\w.+-]+", name):
                raise ConfigError(
                    f"planner.strategies.{name}: expected a name of letters, digits and . _ + - that no built-in "
                    f"strategy has ({', '.join(BUILT_IN)})"
                )
            check_strategy(name, self, key=f"planner.strategies.{name}")
        check_strategy(self.strategy, self, key="planner.strategy")

    def resolve(self, strategy: str) -> StrategyChoice:
        """What a name stands for: names in ``strategies`` are replaced, also inside a hybrid, and options filled in.

        Raises:
            ConfigError: a strategy is made of itself, or something in its place is none.
        """
        return self._resolve(StrategyChoice(strategy), ())

    def _resolve(self, choice: StrategyChoice, within: tuple[str, ...]) -> StrategyChoice:
        name = choice.strategy
        if name in within:
            raise ConfigError(f"strategy {name!r} is made of itself: {' -> '.join((*within, name))}")
        if name in self.strategies:
            base = self._resolve(self.strategies[name], (*within, name))
            return StrategyChoice(base.strategy, base.options | choice.options)
        options = choice.options
        if name == "lightspec":
            options = dataclasses.asdict(self.options) | options
        parts = options.get("planners")
        if name == "hybrid" and isinstance(parts, list | tuple):
            options = options | {"planners": [self._resolve(read_choice(part), within) for part in parts]}
        return StrategyChoice(name, options)


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be configured."""

    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineOptions = field(default_factory=EngineOptions)
    drafter: DrafterConfig = field(default_factory=DrafterConfig)
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    sampling: SamplingParams = field(default_factory=SamplingParams)

    def __post_init__(self) -> None:
        rows = 1 + self.planner.max_draft_steps
        if self.engine.max_rows < rows:
            raise ConfigError(
                f"engine.max_rows: expected at least {rows} (1 + planner.max_draft_steps), got {self.engine.max_rows}"
            )


def check_strategy(strategy: str, planner: PlannerConfig, *, key: str) -> None:
    """Raises ConfigError, naming ``key``, unless it is a strategy that `PlannerConfig.resolve` makes sense of."""
    if strategy in STRATEGIES:
        return
    match, most = re.fullmatch(r"fixed:(-?\d+)", strategy), planner.max_draft_steps
    if match is not None and not 1 <= int(match[1]) <= most:
        raise ConfigError(f"{key}: the steps of {strategy!r} must be 1 to {most}; off runs without drafts")
    installed = InstalledStrategies()
    if match is None and strategy not in planner.strategies and strategy not in installed:
        names = ", ".join([*STRATEGIES, *planner.strategies, *sorted(installed)])
        raise ConfigError(
            f"{key}: expected {names} or fixed:K (such as fixed:3), got {strategy!r}; "
            "planner.strategies takes options and combines strategies"
        )
    try:
        check_options(planner.resolve(strategy), most, installed)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None


def load_config(path: Path) -> Config:
    """Reads a YAML file.

    Raises ConfigError for a file that cannot be read and, naming the dotted key, for an unknown or repeated key, a
    value of the wrong type and a value out of range.
    """
    return load_yaml(path, Config, name="config")


def load_yaml(path: Path, owner: type[T], *, name: str) -> T:
    """A YAML file as a dataclass, read as strictly as `load_config` reads the configuration.

    Args:
        owner: a dataclass, whose fields may be dataclasses, tuples of them or mappings from names to them.
        name: what an error calls the file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} {path} cannot be read: {error}") from None
    try:
        content = yaml.load(text, Loader=StrictLoader)  # noqa: S506 - StrictLoader is a SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{name} {path} is not YAML: {' '.join(str(error).split())}") from None
    try:
        return parse_mapping({} if content is None else content, owner)
    except ConfigError as error:
        raise ConfigError(f"{name} {path}: {error}") from None


def parse_config(content: Any) -> Config:
    """A nested mapping of plain values as a Config. Raises ConfigError as `load_config` does."""
    return parse_mapping(content, Config)


def parse_mapping(content: Any, owner: type[T]) -> T:
    """A nested mapping of plain values as a dataclass. Raises ConfigError as `load_config` does."""
    if not isinstance(content, dict):
        raise ConfigError(f"expected a mapping of {', '.join(_fields(owner))}, got {type(content).__name__}")
    _check_keys(content, owner, prefix="", root=owner)
    try:
        # JSON mode is pydantic's strict mode that still takes a mapping for a dataclass and a list for a tuple.
        return TypeAdapter(owner).validate_json(json.dumps(content, default=str), strict=True)
    except ValidationError as error:
        raise ConfigError(_explain(error, set(_words(content)))) from None


def known_keys(owner: Any = Config, prefix: str = "") -> Iterator[str]:
    """Every dotted key that holds a value; ``*`` stands for any name or position."""
    for name, kind in _fields(owner).items():
        section, many = _section(kind)
        if section is None:
            yield prefix + name
        else:
            yield from known_keys(section, f"{prefix}{name}.*." if many else f"{prefix}{name}.")


def _fields(owner: Any) -> dict[str, Any]:
    hints = get_type_hints(owner)
    return {f.name: hints[f.name] for f in dataclasses.fields(owner)}


def _section(kind: Any) -> tuple[Any, bool]:
    """The dataclass that a field holds, or None, and whether it may hold many."""
    if dataclasses.is_dataclass(kind):
        return kind, False
    many = get_origin(kind) in (dict, tuple)
    return next((held for held in get_args(kind) if dataclasses.is_dataclass(held)), None), many


def _check_keys(content: dict[Any, Any], owner: Any, prefix: str, root: type) -> None:
    fields = _fields(owner)
    for key, value in content.items():
        if key not in fields:
            raise ConfigError(f"{prefix}{key} is not a known key; {_suggestion(str(key), prefix, list(fields), root)}")
        section, many = _section(fields[key])
        if section is None or (value is None and not many):
            continue
        held: list[tuple[Any, Any]] = [(None, value)]
        if many:
            held = list(value.items()) if isinstance(value, dict) else []
            held = list(enumerate(value)) if isinstance(value, list) else held
        for name, part in held:
            dotted = f"{prefix}{key}" if name is None else f"{prefix}{key}.{name}"
            if not isinstance(part, dict):
                raise ConfigError(f"{dotted}: expected a mapping of {', '.join(_fields(section))}, got {_shown(part)}")
            _check_keys(part, section, f"{dotted}.", root)


def _suggestion(key: str, prefix: str, siblings: list[str], root: type) -> str:
    """The nearest known key: of this section first, then the same word in another section."""
    if near := difflib.get_close_matches(key, siblings, n=1):
        return f"did you mean {prefix}{near[0]}?"
    by_word = {dotted.rpartition(".")[2]: dotted for dotted in known_keys(root)}
    if near := difflib.get_close_matches(key, by_word, n=1):
        return f"did you mean {by_word[near[0]]}?"
    return f"{prefix[:-1] or 'the file'} has {', '.join(siblings)}"


def _explain(error: ValidationError, words: set[str]) -> str:
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ValueError):  # raised by the dataclass of a section
        section = "".join(f"{part}." for part in first["loc"])
        return str(cause) if str(cause).startswith(section) else f"{section}{cause}"
    if first["type"] == "missing":
        return f"{'.'.join(str(part) for part in first['loc'])}: expected a value, the key is missing"
    dotted = ".".join(str(part) for part in first["loc"] if isinstance(part, str) and part in words)
    expected = first["msg"][0].lower() + first["msg"][1:]
    return f"{dotted}: {expected.replace('input', 'it')}, got {_shown(first['input'])}"


def _words(content: Any) -> Iterator[str]:
    """Every key of a nested mapping: what is not one in an error's location is pydantic's name of a type."""
    if isinstance(content, dict):
        yield from map(str, content)
        content = list(content.values())
    for part in content if isinstance(content, list) else ():
        yield from _words(part)


def _shown(value: Any) -> str:
    return f"{value!r} ({type(value).__name__})"


class StrictLoader(yaml.SafeLoader):
    """YAML 1.2's scalars (``off`` is a word, ``1e-4`` a number) and no repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, list | dict):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a word or a number", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":float", ":timestamp"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
StrictLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false|True|False)$"), list("tfTF"))
StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?$"),
    list("-+.0123456789"),
)
