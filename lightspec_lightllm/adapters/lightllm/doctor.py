"""``lightspec doctor``: whether dynamic mode would start here, one line for each thing that it depends on.

Everything is read, nothing imported: neither torch nor a GPU is needed, nor a LightLLM that can be imported.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from lightspec_lightllm import __version__
from lightspec_lightllm.adapters.lightllm import arguments, costs, patching, signatures
from lightspec_lightllm.adapters.lightllm.expected import EXPECTED
from lightspec_lightllm.adapters.lightllm.hooks import HOOKS
from lightspec_lightllm.config import parse_mapping
from lightspec_lightllm.engine.fetch import cache_dir
from lightspec_lightllm.errors import CostTableError, HostError
from lightspec_lightllm.machine import version_of

Level = Literal["ok", "note", "problem"]

_ATTENTION_PACKAGES = {"fa3": "sgl_kernel", "flashinfer": "flashinfer", "triton": None}
"""What a decode attention needs besides torch, in the order in which LightLLM tries them for MTP."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. A ``problem`` keeps dynamic mode from starting; its text names the remedy."""

    level: Level
    text: str

    def __str__(self) -> str:
        return f"{self.level:8} {self.text}"


def examine(folder: Path | None = None, command: Sequence[str] | None = None) -> Iterator[Finding]:
    """Everything there is to say.

    Args:
        folder: what holds the package ``lightllm``; None: the one that Python would import.
        command: LightLLM's arguments, as they would be given to the launcher; None: options are not looked at.
    """
    yield Finding("ok", f"lightspec {__version__}, Python {sys.version.split()[0]}, {_versions()}")
    try:
        package = signatures.package_folder() if folder is None else _package_in(folder)
    except HostError as error:
        yield Finding("problem", str(error))
        return
    yield from _examine_source(package)
    yield from _examine_patch(package)
    if command is None:
        yield Finding("note", "options were not looked at; give LightLLM's arguments after --")
        return
    try:
        args = _parse(package, command)
    except HostError as error:
        yield Finding("problem", str(error))
        return
    yield from _examine_options(args)


def _package_in(folder: Path) -> Path:
    if (folder / "lightllm" / "__init__.py").is_file():
        return folder / "lightllm"
    raise HostError(f"there is no LightLLM in {folder}: expected the package lightllm in it, as in a checkout")


def _versions() -> str:
    names = ("torch", "triton", "sgl_kernel", "flashinfer-python")
    return ", ".join(f"{name} {version_of(name) or 'absent'}" for name in names)


def _version(package: Path) -> str:
    """Of the distribution that this folder belongs to, or of the checkout."""
    for distribution in importlib.metadata.distributions(name="lightllm", path=[str(package.parent)]):
        return distribution.version
    setup = package.parent / "setup.py"
    found = re.search(r'version="([^"]+)"', setup.read_text(encoding="utf-8")) if setup.is_file() else None
    return found[1] if found else "of unknown version"


def _examine_source(package: Path) -> Iterator[Finding]:
    yield Finding("ok", f"LightLLM {_version(package)} in {package}")
    expectations = [*(hook.expectation for hook in HOOKS), *EXPECTED]
    wrong = signatures.compare(package, expectations)
    for mismatch in wrong:
        yield Finding("problem", f"{mismatch}; install LightLLM at commit {signatures.COMMIT}")
    if not wrong:
        yield Finding("ok", f"all {len(HOOKS)} hook targets and {len(EXPECTED)} other signatures fit")


def _examine_patch(package: Path) -> Iterator[Finding]:
    try:
        state = patching.state(package.parent, patching.read_patch())
    except HostError as error:
        yield Finding("note", f"not patched, and the patch does not fit: {error}")
        return
    if state == "applied":
        yield Finding("ok", "patched: python -m lightllm.server.api_server takes --dynamic_mtp")
    else:
        yield Finding("ok", "not patched: start it with python -m lightspec_lightllm.api_server")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise HostError(f"LightLLM does not take these arguments: {message}")


def _parse(package: Path, command: Sequence[str]) -> Any:
    """Arguments as LightLLM's own parser takes them. The file of its parser is run alone: it needs nothing else."""
    path = signatures.module_path(package, "lightllm.server.api_cli")
    parser = _Parser(prog="lightllm")
    try:
        spec = importlib.util.spec_from_file_location("_lightllm_api_cli", path)
        assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - a path that ends in .py has both
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.add_cli_args(parser)
    except Exception as error:  # noqa: BLE001 - whatever another LightLLM's file does
        raise HostError(f"options cannot be looked at, LightLLM's parser in {path} cannot be run: {error}") from None
    arguments.add_arguments(parser)
    return parser.parse_args([*command])


def _examine_options(args: Any) -> Iterator[Finding]:
    if not args.dynamic_mtp:
        yield Finding("note", "these arguments do not turn dynamic mode on; add --dynamic_mtp")
    found = list(arguments.problems(args))
    for problem in found:
        yield Finding("problem", problem)
    if not args.dynamic_mtp or found:
        return
    yield Finding("ok", f"no option conflicts; {args.mtp_mode}, K = {arguments.draft_steps(args)}")
    yield Finding("ok", f"drafter in {', '.join(dict.fromkeys(arguments.draft_folders(args)))}")
    yield from _examine_attention(args)
    yield from _examine_costs(args)


def _examine_attention(args: Any) -> Iterator[Finding]:
    chosen, kind = args.llm_decode_att_backend[0], args.llm_kv_type
    if chosen != "auto":
        package = _ATTENTION_PACKAGES[chosen]
        if package is None or _is_there(package):
            yield Finding("ok", f"decode attention {chosen}, KV cache {kind}")
        else:
            missing = f"--llm_decode_att_backend {chosen} needs {package}, which is absent"
            yield Finding("problem", f"{missing}; install it, or use triton")
        return
    likely = [name for name, package in _ATTENTION_PACKAGES.items() if package is None or _is_there(package)]
    yield Finding(
        "ok", f"decode attention: LightLLM tries {', '.join(likely)} on the GPU and takes the first that computes right"
    )


def _examine_costs(args: Any) -> Iterator[Finding]:
    config = arguments.resolve(args)
    assert config is not None  # noqa: S101 - dynamic mode is on, and nothing was found against it
    try:
        wanted = _known_key(args)
    except CostTableError:
        yield Finding("note", "cost tables were not looked at: a model is yet to be fetched")
        return
    if config.costs.path is not None:
        wrong = _foreign(Path(config.costs.path), wanted)
        yield Finding("problem", wrong) if wrong else Finding("ok", f"cost table {config.costs.path} fits")
        return
    folder = cache_dir() / "costs" / "lightllm"
    fitting = [path for path in sorted(folder.glob("*.json")) if _foreign(path, wanted) is None]
    for path in fitting:
        yield Finding("ok", f"cost table {path}, measured on {_key_of(path).device}, fits")
    if not fitting:
        yield Finding("note", f"no cost table in {folder} fits; one is measured when the server starts, and kept there")


def _known_key(args: Any) -> dict[str, Any]:
    """What a table of this setup is measured for, as far as it is known without the GPU and the loaded models."""
    known = {
        "model": costs.config_sha256(Path(args.model_dir)),
        "drafters": tuple(
            costs.config_sha256(Path(folder)) for folder in args.mtp_draft_model_dir or [args.model_dir] * args.mtp_step
        ),
        "mtp_mode": args.mtp_mode,
        "max_draft_steps": arguments.draft_steps(args),
        "tp": args.tp,
        "graphs": not args.disable_cudagraph,
        "versions": costs.versions(),
    }
    if args.data_type is not None:
        known["dtype"] = f"{args.data_type}, weights {args.quant_type}, kv {args.llm_kv_type}"
    return known


def _foreign(path: Path, wanted: dict[str, Any]) -> str | None:
    """Why a table is not this setup's, or None."""
    try:
        costs.read(path)
    except CostTableError as error:
        return str(error)
    key = _key_of(path)
    wrong = [
        f"{name} {getattr(key, name)!r}, not {value!r}" for name, value in wanted.items() if getattr(key, name) != value
    ]
    remedy = "take costs.path out of the configuration to have one measured"
    return f"cost table {path} was measured for {'; '.join(wrong)}; {remedy}" if wrong else None


def _key_of(path: Path) -> costs.CostKey:
    return parse_mapping(json.loads(path.read_text(encoding="utf-8")), costs.StoredCosts).key


def _is_there(package: str) -> bool:
    return importlib.machinery.PathFinder.find_spec(package) is not None
