"""The command line of ``lightspec serve``."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.machine import version_of
from lightspec_lightllm.server.options import ServerOptions

PACKAGES = ("fastapi", "uvicorn", "prometheus_client", "plotly")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = ServerOptions()
    parser.description = (
        "Serves OpenAI's API under /v1, LightLLM's /generate and /generate_stream, /health, /metrics, "
        "/lightspec/status and a dashboard at /lightspec/. The engine is a process of its own. SIGTERM or Ctrl-C ends "
        "it when the answers in flight are out."
    )
    add = parser.add_argument
    add("--host", default=default.host, help=f"address to listen at (default: {default.host}, this machine only)")
    add("--port", type=int, default=default.port, metavar="N", help=f"default: {default.port}; 0: any that is free")
    add("--served-model-name", metavar="NAME", help="what clients call the model (default: its file's name)")
    add("--strategy", help="how rounds are planned; see planner.strategy in configs/embedded.yaml")
    add(
        "--max-waiting",
        type=int,
        default=default.max_waiting,
        metavar="N",
        help=f"requests that may wait beside those that decode; more get 429 (default: {default.max_waiting})",
    )
    add("--max-body-mb", type=int, default=default.max_body_mb, metavar="N", help="larger requests get 413")
    add(
        "--drain-seconds",
        type=int,
        default=default.drain_seconds,
        metavar="N",
        help=f"how long answers in flight may take after SIGTERM (default: {default.drain_seconds})",
    )
    add("--trace", type=Path, metavar="FILE", help="append every round to this file, a line of JSON each")
    add("--access-log", action="store_true", help="a log line per request")
    add(
        "--engine",
        choices=("embedded", "lightllm"),
        default="embedded",
        help="lightllm: hand over to LightLLM's launcher, which gets everything after --",
    )
    add("lightllm_arguments", nargs="*", metavar="-- LIGHTLLM_ARGUMENT", help="with --engine lightllm only")


def server_options(arguments: argparse.Namespace) -> ServerOptions:
    """Raises ConfigError for a value out of range, and when the server's packages are missing."""
    if arguments.lightllm_arguments:
        raise ConfigError(
            f"{arguments.lightllm_arguments[0]}: expected no further arguments; they need --engine lightllm"
        )
    options = ServerOptions(
        host=arguments.host,
        port=arguments.port,
        served_model_name=arguments.served_model_name,
        max_waiting=arguments.max_waiting,
        max_body_mb=arguments.max_body_mb,
        drain_seconds=arguments.drain_seconds,
        trace=arguments.trace,
        access_log=arguments.access_log,
    )
    missing = [package for package in PACKAGES if version_of(package) is None]
    if missing:
        raise ConfigError(f"the server needs {', '.join(missing)}; install lightspec_lightllm[embedded,serve]")
    return options


def hand_over(arguments: argparse.Namespace) -> NoReturn:
    """Become LightLLM's launcher with this package's hooks. Raises ConfigError where LightLLM is not installed."""
    if find_spec("lightllm") is None:
        raise ConfigError("--engine lightllm: LightLLM is not installed for this Python; see lightspec doctor")
    words = [sys.executable, "-m", "lightspec_lightllm.api_server", *arguments.lightllm_arguments]
    os.execv(sys.executable, words)  # noqa: S606 - the same interpreter, another module
