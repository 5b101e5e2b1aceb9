"""What the hooks on LightLLM's way from the command line to its processes do."""

from __future__ import annotations

import argparse
import functools
import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import lightspec_lightllm
from lightspec_lightllm.adapters.lightllm import hooks, signatures
from lightspec_lightllm.adapters.lightllm.arguments import HOST_MODE, add_arguments, resolve
from lightspec_lightllm.adapters.lightllm.expected import EXPECTED
from lightspec_lightllm.adapters.lightllm.options import current
from lightspec_lightllm.errors import HostError, LightspecError

logger = logging.getLogger(__name__)


def load() -> None:
    """Install the hooks; what a patched LightLLM calls when it is imported (entry points ``lightllm.plugins``).

    A LightLLM that does not fit serves on without the hooks, after a warning. It does not start if dynamic mode is
    asked for.
    """
    try:
        hooks.install()
    except LightspecError as error:
        if "--dynamic_mtp" in sys.argv:
            sys.exit(f"error: {error}")
        logger.warning("LightLLM runs without dynamic MTP: %s", error)


def wrap_add_cli_args(original: Callable[[argparse.ArgumentParser], Any]) -> Callable[[argparse.ArgumentParser], Any]:
    """LightLLM's parser with the arguments of dynamic mode, refusing combinations of options as it refuses options."""

    @functools.wraps(original)
    def add_cli_args(parser: argparse.ArgumentParser) -> Any:
        result = original(parser)
        add_arguments(parser)
        parse = parser.parse_args

        def parse_args(*given: Any, **named: Any) -> argparse.Namespace:
            args: argparse.Namespace = parse(*given, **named)
            try:
                check(args)
            except LightspecError as error:
                parser.exit(2, f"error: {error}\n")
            return args

        vars(parser)["parse_args"] = parse_args
        return result

    return add_cli_args


def wrap_start_args(original: Callable[..., None]) -> Callable[..., None]:
    """Start arguments that also hold ``dynamic_mtp``, ``lightspec_config`` and, resolved from them, ``lightspec``.

    ``lightspec`` is what `options.current` reads in every process: plain values, or None while dynamic mode is off.
    LightLLM publishes all attributes, so an attribute is all it takes.
    """

    @functools.wraps(original)
    def __init__(  # noqa: N807 - replaces StartArgs.__init__
        self: Any,
        *given: Any,
        dynamic_mtp: bool = False,
        lightspec_config: str | None = None,
        lightspec: dict[str, Any] | None = None,
        **named: Any,
    ) -> None:
        original(self, *given, **named)
        self.dynamic_mtp, self.lightspec_config = dynamic_mtp, lightspec_config
        self.lightspec = lightspec if lightspec is not None else check(self)
        if self.lightspec is not None:
            _announce(self)
            self.mtp_step = self.lightspec["planner"]["max_draft_steps"]
            if self.lightspec["drafter"] is not None:
                self.mtp_mode = HOST_MODE

    return __init__


def _announce(args: Any) -> None:
    show_log()
    planner, mode = args.lightspec["planner"], args.lightspec["drafter"] or args.mtp_mode
    logger.info("dynamic MTP is on: %s, %s, K = %d", planner["strategy"], mode, planner["max_draft_steps"])


def show_log() -> None:
    """Print this package's log lines as LightLLM prints its own; its processes print no others."""
    from lightllm.utils.log_utils import init_logger

    init_logger(lightspec_lightllm.__name__)


def check(args: Any) -> dict[str, Any] | None:
    """Start arguments resolved to plain values; None: dynamic mode is off.

    Raises:
        ConfigError: dynamic mode cannot run with these arguments.
        HostError: it cannot run on this LightLLM.
    """
    config = resolve(args)
    if config is None:
        return None
    if wrong := signatures.compare(signatures.package_folder(), EXPECTED):
        raise HostError(
            f"--dynamic_mtp needs LightLLM at commit {signatures.COMMIT}, or one with the same signatures: "
            f"{'; '.join(map(str, wrong))}; start without --dynamic_mtp, or install that commit"
        )
    return config.to_json()


def wrap_start_submodule_processes(original: Callable[..., Any]) -> Callable[..., Any]:
    """Processes of the server that install the hooks first, whatever launched it."""

    @functools.wraps(original)
    def start_submodule_processes(
        self: Any, start_funcs: Sequence[Callable[..., Any]] = (), start_args: Sequence[tuple[Any, ...]] = ()
    ) -> Any:
        carried = [Carried(f"{start.__module__}:{start.__qualname__}") for start in start_funcs]
        return original(self, start_funcs=carried, start_args=list(start_args))

    return start_submodule_processes


def wrap_init_env(original: Callable[..., Any]) -> Carried:
    """The main function of a rank, which installs the hooks first."""
    return Carried(f"{original.__module__}:{original.__qualname__}")


@dataclass(frozen=True)
class Carried:
    """The main function of a process, sent by name so that the hooks are in place before its module is imported."""

    target: str

    @property
    def __name__(self) -> str:
        return self.target.rpartition(":")[2]

    def __call__(self, *given: Any) -> Any:
        hooks.install()
        show_log()
        return hooks.original(self.target)(*given)


def wrap_backend(original: type) -> Callable[[], Any]:
    """The model backend: the one that plans while dynamic mode is on, else LightLLM's own."""

    def build() -> Any:
        if current() is None:
            return original()
        try:
            module = importlib.import_module("lightspec_lightllm.adapters.lightllm.backend")
        except ImportError as error:
            raise HostError(f"dynamic mode is on, but its backend cannot be imported: {error}") from error
        return module.make_backend(original)()

    return build
