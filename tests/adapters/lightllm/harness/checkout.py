"""LightLLM's source: not installed, but checked out at the commit that the adapter was written for."""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path

COMMIT = "87881ae"
VARIABLE = "LIGHTLLM_SRC"
DEFAULT = Path("~/.cache/lightspec").expanduser() / f"lightllm-{COMMIT}"

REQUIREMENTS = [
    "atomics",
    "cuda",
    "easydict",
    "einops",
    "fastapi",
    "frozendict",
    "httpx",
    "hypercorn",
    "interegular",
    "librosa",
    "orjson",
    "partial_json_parser",
    "PIL",
    "prometheus_client",
    "psutil",
    "pydantic",
    "redis",
    "requests",
    "rpyc",
    "safetensors",
    "sentencepiece",
    "setproctitle",
    "sortedcontainers",
    "tiktoken",
    "torch",
    "torchvision",
    "transformers",
    "triton",
    "ujson",
    "uvloop",
    "websockets",
    "xxhash",
    "zmq",
]
"""Modules that LightLLM imports, as far as these tests take it; the packages are in requirements.txt."""


def path() -> Path:
    return Path(os.environ.get(VARIABLE) or DEFAULT)


@functools.cache
def problem() -> str | None:
    """Why LightLLM cannot be run here, with the remedy, or None."""
    source = path()
    if not (source / "lightllm" / "__init__.py").is_file():
        return (
            f"no LightLLM at {source}: check it out at commit {COMMIT} there, or set {VARIABLE} to where it is "
            f"(git clone https://github.com/ModelTC/lightllm {source} && git -C {source} checkout {COMMIT})"
        )
    missing = [name for name in REQUIREMENTS if importlib.util.find_spec(name) is None]
    if missing:
        needed = Path(__file__).with_name("requirements.txt")
        return (
            f"LightLLM at {source} needs modules that are not installed: {', '.join(missing)}; pip install -r {needed}"
        )
    return None
