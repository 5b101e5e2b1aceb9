"""What can be configured when LightLLM is the host: the file that ``--lightspec_config`` names, and what ranks read."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from lightspec_lightllm.config import PlannerConfig, StrictLoader, load_yaml, parse_mapping
from lightspec_lightllm.errors import ConfigError

START_ARGS_VARIABLE = "LIGHTLLM_START_ARGS"
"""The environment variable in which LightLLM's launcher hands its start arguments, as JSON, to every process."""


@dataclass(frozen=True, slots=True)
class CostOptions:
    """How the cost table is had, and how large a target batch may be.

    Attributes:
        path: a table to read instead of the one in the cache; it must have been measured for this very setup.
        contexts: tokens of context per request at which rounds are measured, ascending.
        repeats: timed runs of each shape; their median counts.
        graph_sizes: CUDA graphs captured for the target, and for each drafter, at most.
        max_verify_rows: rows of a captured target batch at most; a block drafter's may have twice as many. A larger
            batch runs without a graph.
    """

    path: str | None = None
    contexts: tuple[int, ...] = (512, 4096, 16384)
    repeats: int = 10
    graph_sizes: int = 40
    max_verify_rows: int = 1024

    def __post_init__(self) -> None:
        if not self.contexts or self.contexts[0] < 1 or list(self.contexts) != sorted(set(self.contexts)):
            raise ConfigError(f"costs.contexts: expected positive lengths, ascending, got {list(self.contexts)}")
        _check_least("costs.repeats", self.repeats, 1)
        _check_least("costs.graph_sizes", self.graph_sizes, 2)
        _check_least("costs.max_verify_rows", self.max_verify_rows, 16)


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Checks that cost time and are off by default.

    Attributes:
        plan_hash_every: rounds between two comparisons of the plan over all ranks; 0: never.
    """

    plan_hash_every: int = 0

    def __post_init__(self) -> None:
        _check_least("check.plan_hash_every", self.plan_hash_every, 0)


@dataclass(frozen=True, slots=True)
class ObserveOptions:
    """What can be seen from outside.

    Attributes:
        log_seconds: seconds between two log lines about the rounds; 0: none.
        trace_file: JSON lines of every plan, which ``lightspec simulate`` replays; None: not written.
        metrics: add ``lightspec_*`` to LightLLM's ``/metrics``.
    """

    log_seconds: float = 10.0
    trace_file: str | None = None
    metrics: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.log_seconds < float("inf"):
            raise ConfigError(f"observe.log_seconds: expected 0 (none) or more seconds, got {self.log_seconds}")


@dataclass(frozen=True, slots=True)
class LightLLMConfig:
    """What the launcher resolves once and every process reads. `configs/lightllm.yaml` explains all keys.

    Attributes:
        drafter: "eagle3", "dflash" or "dspark": a drafter that this package loads, where LightLLM is told of MTP
            layers; None: LightLLM's own. It is ``--mtp_mode`` that says so, never the file.
    """

    planner: PlannerConfig = field(default_factory=PlannerConfig)
    costs: CostOptions = field(default_factory=CostOptions)
    check: CheckOptions = field(default_factory=CheckOptions)
    observe: ObserveOptions = field(default_factory=ObserveOptions)
    drafter: str | None = None

    def with_draft_steps(self, max_draft_steps: int) -> LightLLMConfig:
        """The same at another K. Raises ConfigError if the strategy needs a larger one."""
        return dataclasses.replace(self, planner=dataclasses.replace(self.planner, max_draft_steps=max_draft_steps))

    def to_json(self) -> dict[str, Any]:
        """Plain values, as LightLLM hands start arguments to its processes."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain


def load_options(path: Path) -> LightLLMConfig:
    """Reads the file that ``--lightspec_config`` names, strictly. K is not its to say: that is ``--mtp_step``.

    Raises:
        ConfigError: as `lightspec_lightllm.config.load_config` does, and for the key of K.
    """
    config = load_yaml(path, LightLLMConfig, name="config")
    content = yaml.load(path.read_text(encoding="utf-8"), Loader=StrictLoader) or {}  # noqa: S506 - a SafeLoader
    if "max_draft_steps" in content.get("planner", {}):
        raise ConfigError(f"config {path}: planner.max_draft_steps: K is --mtp_step here; drop the key")
    if "drafter" in content:
        raise ConfigError(f"config {path}: drafter: its kind is --mtp_mode here; drop the key")
    return config


def current() -> LightLLMConfig | None:
    """The configuration of the server that this process belongs to; None: dynamic mode is off.

    Read from LightLLM's start arguments, so it is the same in every process. LightLLM keeps them from the first call
    on: not to be called in the launcher before it has published them. For the start of a process, not for each round.
    """
    if START_ARGS_VARIABLE not in os.environ:
        return None
    from lightllm.utils.envs_utils import get_env_start_args

    section = getattr(get_env_start_args(), "lightspec", None)
    return None if section is None else _parse(json.dumps(section))


@lru_cache(maxsize=4)
def _parse(text: str) -> LightLLMConfig:
    return parse_mapping(json.loads(text), LightLLMConfig)


def _check_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{key}: expected at least {least}, got {value}")
