"""The way from the command line to the ranks: one resolved configuration, the hooks in every process."""

import argparse
import pickle
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightspec_lightllm.adapters.lightllm import hooks, launch, signatures
from lightspec_lightllm.adapters.lightllm.launch import Carried
from lightspec_lightllm.adapters.lightllm.options import LightLLMConfig
from lightspec_lightllm.errors import ConfigError, HostError
from tests.adapters.lightllm.test_arguments import model


class Args:
    """Stands in for LightLLM's start arguments: strict about what it takes."""

    def __init__(self, model_dir: str | None = None, mtp_mode: str | None = None, mtp_step: int = 0) -> None:
        self.model_dir, self.mtp_mode, self.mtp_step = model_dir, mtp_mode, mtp_step
        self.mtp_draft_model_dir: list[str] | None = None
        self.llm_kv_type, self.llm_decode_att_backend = "None", ["auto"]


@pytest.fixture
def start_args(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The same, extended."""
    monkeypatch.setattr(launch, "show_log", lambda: None)
    monkeypatch.setattr(signatures, "package_folder", lambda: Path("/nowhere"))
    monkeypatch.setattr(launch, "EXPECTED", ())
    return type("Extended", (Args,), {"__init__": launch.wrap_start_args(Args.__init__)})


def test_start_arguments_carry_the_resolved_configuration(start_args: Callable[..., Any], tmp_path: Path) -> None:
    target = model(tmp_path, "mistral")
    args = start_args(target, "eagle_no_att", mtp_step=5, dynamic_mtp=True)
    assert args.lightspec == LightLLMConfig().with_draft_steps(5).to_json()
    assert args.dynamic_mtp
    assert args.lightspec_config is None
    given = LightLLMConfig().with_draft_steps(9).to_json()
    assert start_args(target, lightspec=given).lightspec is given


def test_start_arguments_of_fixed_mtp_are_as_they_were(start_args: Callable[..., Any]) -> None:
    args = start_args("target", mtp_mode="eagle_no_att", mtp_step=1)
    assert vars(args) == vars(Args("target", "eagle_no_att", 1)) | {
        "dynamic_mtp": False,
        "lightspec_config": None,
        "lightspec": None,
    }


def test_start_arguments_are_refused_with_the_reason(start_args: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--mtp_step: expected 1 to 15"):
        start_args(model(tmp_path, "mistral"), "eagle_no_att", mtp_step=16, dynamic_mtp=True)
    with pytest.raises(TypeError):
        start_args(no_such_option=3)


def test_dynamic_mode_does_not_start_on_another_lightllm(
    start_args: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "EXPECTED", (signatures.Expectation("lightllm.gone:name", "(self)"),))
    target = model(tmp_path, "mistral")
    with pytest.raises(HostError, match=r"lightllm.gone:name: expected \(self\), found no file") as caught:
        start_args(target, "eagle_no_att", mtp_step=3, dynamic_mtp=True)
    assert "start without --dynamic_mtp" in str(caught.value)
    assert start_args(target, "eagle_no_att", mtp_step=3).lightspec is None


def test_the_parser_refuses_before_anything_is_started(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, start_args: Callable[..., Any]
) -> None:
    def add(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        for name, kind in (("--model_dir", str), ("--mtp_mode", str), ("--mtp_step", int), ("--dp", int)):
            parser.add_argument(name, type=kind, default={"--mtp_step": 0, "--dp": 1}.get(name))
        parser.set_defaults(mtp_draft_model_dir=None, llm_kv_type="None", llm_decode_att_backend=["auto"])
        return parser

    parser = argparse.ArgumentParser()
    assert launch.wrap_add_cli_args(add)(parser) is parser
    good = ["--model_dir", model(tmp_path, "mistral"), "--mtp_mode", "eagle_no_att", "--mtp_step", "3"]
    assert parser.parse_args([*good, "--dynamic_mtp"]).dynamic_mtp
    assert not parser.parse_args(["--dp", "2"]).dynamic_mtp
    with pytest.raises(SystemExit) as caught:
        parser.parse_args([*good, "--dynamic_mtp", "--dp", "2"])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --dp 2 does not go with --dynamic_mtp")
    assert error.count("\n") == 1


def serve(*given: Any) -> tuple[Any, ...]:
    return given


def test_processes_are_started_with_the_hooks_whatever_launched_them(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(hooks, "install", lambda: done.append("hooks"))
    monkeypatch.setattr(launch, "show_log", lambda: done.append("log"))

    def start(manager: Any, start_funcs: Any, start_args: Any) -> list[Any]:
        return [pickle.loads(pickle.dumps(f))(*a) for f, a in zip(start_funcs, start_args, strict=True)]  # noqa: S301

    wrapped = launch.wrap_start_submodule_processes(start)
    assert wrapped(None, start_funcs=[serve, serve], start_args=[(1,), (2, 3)]) == [(1,), (2, 3)]
    assert done == ["hooks", "log"] * 2
    assert Carried(f"{__name__}:serve").__name__ == "serve"


def test_a_rank_starts_its_main_function_and_not_the_hook_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "install", lambda: None)
    monkeypatch.setattr(launch, "show_log", lambda: None)
    carried = launch.wrap_init_env(serve)
    monkeypatch.setattr(
        hooks, "_replacements", [hooks._Replacement(carried.target, sys.modules[__name__], "serve", serve)]
    )
    monkeypatch.setattr(sys.modules[__name__], "serve", carried)
    assert carried(1, 2) == (1, 2)


class Stock:
    """LightLLM's backend."""


def test_the_backend_is_lightllms_own_unless_dynamic_mode_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    build = launch.wrap_backend(Stock)
    monkeypatch.setattr(launch, "current", lambda: None)
    assert type(build()) is Stock
    monkeypatch.setattr(launch, "current", LightLLMConfig)
    backend = types.ModuleType("backend")
    vars(backend)["make_backend"] = lambda stock: type("Dynamic", (stock,), {})
    monkeypatch.setitem(sys.modules, "lightspec_lightllm.adapters.lightllm.backend", backend)
    assert type(build()).__name__ == "Dynamic"
    assert isinstance(build(), Stock)
    monkeypatch.setitem(sys.modules, "lightspec_lightllm.adapters.lightllm.backend", None)
    with pytest.raises(HostError, match="its backend cannot be imported"):
        build()


def test_a_patched_lightllm_serves_on_where_the_hooks_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def install() -> None:
        raise HostError("it does not fit")

    monkeypatch.setattr(hooks, "install", install)
    monkeypatch.setattr(sys, "argv", ["api_server", "--mtp_step", "1"])
    launch.load()
    assert "without dynamic MTP: it does not fit" in caplog.text
    monkeypatch.setattr(sys, "argv", ["api_server", "--dynamic_mtp"])
    with pytest.raises(SystemExit, match="error: it does not fit"):
        launch.load()


def test_the_entry_point_is_what_the_patch_calls() -> None:
    pyproject = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points."lightllm.plugins"]' in pyproject
    assert 'lightspec = "lightspec_lightllm.adapters.lightllm.launch:load"' in pyproject
    assert launch.load.__module__ == "lightspec_lightllm.adapters.lightllm.launch"
