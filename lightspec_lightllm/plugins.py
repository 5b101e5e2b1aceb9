"""Strategies of other packages, found by their entry points.

A package registers one in its ``pyproject.toml``::

    [project.entry-points."lightspec.strategies"]
    gentle = "my_package.planning:make_gentle"

and ``make_gentle(costs, *, max_draft_steps, drafter, **options)`` makes its planner (see `planner.Planner`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.planner import CostModel, DrafterKind, Planner, StrategyFactory
from lightspec_lightllm.planner.strategies import BUILT_IN

GROUP = "lightspec.strategies"
"""The group of entry points that strategies are registered in."""


class InstalledStrategies(Mapping[str, StrategyFactory]):
    """The strategies that installed packages register; looked for when first asked, loaded when used.

    A package that cannot be loaded, or makes something that is no planner, is named in a ConfigError; so are two that
    use one name, and one that uses a built-in name.
    """

    def __init__(self) -> None:
        self._found: dict[str, EntryPoint] | None = None

    @property
    def _entries(self) -> dict[str, EntryPoint]:
        if self._found is None:
            found: dict[str, EntryPoint] = {}
            for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
                if entry.name in BUILT_IN or ":" in entry.name:
                    reason = "is the name of a built-in strategy" if entry.name in BUILT_IN else "has a colon"
                    raise ConfigError(f"{_origin(entry)} registers {entry.name!r}, which {reason}; it must change it")
                other = found.setdefault(entry.name, entry)
                if other.value != entry.value:
                    raise ConfigError(
                        f"{_origin(other)} and {_origin(entry)} both register {entry.name!r}; uninstall one of them"
                    )
            self._found = found
        return self._found

    def __getitem__(self, name: str) -> StrategyFactory:
        entry = self._entries[name]
        try:
            factory = entry.load()
        except Exception as error:
            raise ConfigError(f"{_origin(entry)} cannot be loaded: {type(error).__name__}: {error}") from error
        if not callable(factory):
            raise ConfigError(f"{_origin(entry)}: expected a function that makes a planner, got {factory!r}")
        return _Factory(factory, _origin(entry))

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class _Factory:
    """A factory that says whose it is when it fails."""

    def __init__(self, factory: Any, origin: str) -> None:
        self.__wrapped__ = factory  # what `inspect.signature` looks at
        self._origin = origin

    def __call__(self, costs: CostModel, /, *, max_draft_steps: int, drafter: DrafterKind, **options: Any) -> Planner:
        try:
            planner = self.__wrapped__(costs, max_draft_steps=max_draft_steps, drafter=drafter, **options)
        except Exception as error:
            kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
            raise ConfigError(f"{self._origin}: {kind}{error}") from error
        missing = [name for name in ("plan", "observe", "max_draft_steps", "counters") if not hasattr(planner, name)]
        if missing:
            raise ConfigError(f"{self._origin}: expected a planner, got {planner!r} without {', '.join(missing)}")
        return cast(Planner, planner)


def _origin(entry: EntryPoint) -> str:
    package = "" if entry.dist is None else f" of {entry.dist.name} {entry.dist.version}"
    return f"strategy {entry.name!r} ({entry.value}{package})"
