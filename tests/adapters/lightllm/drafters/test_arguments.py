"""Start arguments with drafters that this package loads: what is refused and why, K, and what LightLLM is told."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightspec_lightllm.adapters.lightllm import launch, signatures
from lightspec_lightllm.adapters.lightllm.arguments import (
    DRAFTER_MODES,
    DRAFTER_REFUSALS,
    HOST_MODE,
    REFUSALS,
    add_arguments,
    draft_folders,
    draft_steps,
    problems,
    resolve,
)
from lightspec_lightllm.adapters.lightllm.expected import EXPECTED
from lightspec_lightllm.adapters.lightllm.options import load_options
from lightspec_lightllm.errors import ConfigError
from tests.adapters.lightllm.drafters.folders import CONFIGS, write
from tests.adapters.lightllm.test_arguments import refused

TARGET = {"model_type": "qwen3", "hidden_size": 64, "vocab_size": 128, "num_hidden_layers": 12}
DRAFTERS = {"eagle3": "common", "dflash": "dflash", "dspark": "deepspec dspark"}


@pytest.fixture
def args(tmp_path: Path) -> argparse.Namespace:
    """Arguments with which Eagle3 starts; other drafters lie beside its own."""
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text(json.dumps(TARGET), encoding="utf-8")
    for kind, name in DRAFTERS.items():
        write(tmp_path / kind, CONFIGS[name])
    return argparse.Namespace(
        dynamic_mtp=True,
        lightspec_config=None,
        model_dir=str(tmp_path / "target"),
        mtp_mode="eagle3",
        mtp_draft_model_dir=[str(tmp_path / "eagle3")],
        mtp_step=7,
        llm_decode_att_backend=["auto"],
        tp=1,
        disable_flashinfer_allreduce=False,
        **{refusal.option: refusal.allowed[0] for refusal in (*REFUSALS, *DRAFTER_REFUSALS)},
    )


@pytest.mark.parametrize("kind", DRAFTER_MODES)
def test_every_kind_resolves_to_a_configuration_that_names_it(
    kind: str, args: argparse.Namespace, tmp_path: Path
) -> None:
    vars(args).update(mtp_mode=kind, mtp_draft_model_dir=[str(tmp_path / kind)])
    assert list(problems(args)) == []
    config = resolve(args)
    assert config is not None
    assert (config.drafter, config.planner.max_draft_steps) == (kind, 7)
    assert draft_folders(args) == [str(tmp_path / kind)]


@pytest.mark.parametrize(("kind", "steps"), [("dflash", 15), ("dspark", 7)])
def test_k_is_the_block_unless_a_smaller_one_is_asked_for(
    kind: str, steps: int, args: argparse.Namespace, tmp_path: Path
) -> None:
    vars(args).update(mtp_mode=kind, mtp_draft_model_dir=[str(tmp_path / kind)], mtp_step=0)
    config = resolve(args)
    assert config is not None
    assert config.planner.max_draft_steps == steps == draft_steps(args)
    args.mtp_step = 3
    assert draft_steps(args) == 3


def test_a_larger_block_than_the_drafters_is_refused_with_the_reason(args: argparse.Namespace, tmp_path: Path) -> None:
    folder = str(tmp_path / "dspark")
    problem = refused(args, mtp_mode="dspark", mtp_draft_model_dir=[folder], mtp_step=8)
    assert problem.startswith(f"--mtp_step 8: the drafter in {folder} makes blocks of 7 drafts")


def test_eagle3_says_how_many_steps(args: argparse.Namespace) -> None:
    assert "--mtp_step: expected 1 to 15 with --dynamic_mtp, got 0" in refused(args, mtp_step=0)


def test_a_drafter_of_another_kind_is_refused_with_the_right_one(args: argparse.Namespace, tmp_path: Path) -> None:
    problem = refused(args, mtp_draft_model_dir=[str(tmp_path / "dspark")])
    assert problem == f"--mtp_mode eagle3: the drafter in {tmp_path / 'dspark'} is of another kind; use dspark"


def test_a_drafter_of_another_target_is_refused(args: argparse.Namespace, tmp_path: Path) -> None:
    other = {**TARGET, "hidden_size": 32}
    (tmp_path / "target" / "config.json").write_text(json.dumps(other), encoding="utf-8")
    assert "it reads hidden states of size 64, the target's are 32" in refused(args)


@pytest.mark.parametrize("given", [None, [], ["one", "two"]])
def test_exactly_one_drafter_is_asked_for(given: list[str] | None, args: argparse.Namespace) -> None:
    assert "expected the folder of one eagle3 drafter" in refused(args, mtp_draft_model_dir=given)


@pytest.mark.parametrize(
    ("option", "value"), [("llm_kv_type", "int8kv"), ("enable_cpu_cache", True), ("enable_prefill_cudagraph", True)]
)
def test_what_such_drafters_cannot_do_is_refused_with_the_reason(
    option: str, value: Any, args: argparse.Namespace
) -> None:
    (refusal,) = [one for one in DRAFTER_REFUSALS if one.option == option]
    problem = refused(args, **{option: value})
    assert problem.startswith(f"--{option}")
    assert "does not go with --mtp_mode eagle3" in problem
    assert refusal.reason in problem


def test_heads_that_ranks_cannot_share_are_refused(args: argparse.Namespace) -> None:
    assert "--tp 3 does not divide the 8 heads and 4 KV heads of the drafter" in refused(args, tp=3)
    args.tp = 8  # two ranks per KV head
    assert resolve(args) is not None


def test_a_vocabulary_that_ranks_cannot_share_is_refused(args: argparse.Namespace, tmp_path: Path) -> None:
    folder = write(tmp_path / "odd", {**CONFIGS["common"], "draft_vocab_size": 97})
    problem = refused(args, mtp_draft_model_dir=[str(folder)], tp=2)
    assert problem == f"--tp 2 does not divide the 97 tokens that the drafter in {folder} knows"


def test_an_all_reduce_with_buffers_for_one_width_is_refused_for_a_drafter_of_another(
    args: argparse.Namespace, tmp_path: Path
) -> None:
    folder = write(tmp_path / "wide", {**CONFIGS["common"], "hidden_size": 128, "target_hidden_size": 64})
    problem = refused(args, mtp_draft_model_dir=[str(folder)], tp=2)
    assert problem.startswith(f"--tp 2 with the drafter in {folder}, of hidden size 128 where the target has 64")
    assert problem.endswith("add --disable_flashinfer_allreduce")
    for changes in ({"disable_flashinfer_allreduce": True}, {"tp": 1}):
        assert list(problems(argparse.Namespace(**{**vars(args), **changes}))) == []
    vars(args).update(mtp_draft_model_dir=[str(tmp_path / "eagle3")], tp=2)
    assert list(problems(args)) == []


def test_lightllm_alone_does_not_serve_them(args: argparse.Namespace) -> None:
    assert "--mtp_mode eagle3 needs --dynamic_mtp" in refused(args, dynamic_mtp=False)


def test_the_parser_takes_the_modes_beside_lightllms() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mtp_mode", choices=["eagle_with_att", None])
    add_arguments(parser)
    for mode in ("eagle_with_att", *DRAFTER_MODES):
        assert parser.parse_args(["--mtp_mode", mode]).mtp_mode == mode


def test_a_file_does_not_say_which_drafter_it_is(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("drafter: eagle3", encoding="utf-8")
    with pytest.raises(ConfigError, match="its kind is --mtp_mode here; drop the key"):
        load_options(path)


def test_lightllm_is_told_of_a_mode_that_it_knows(args: argparse.Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "show_log", lambda: None)
    monkeypatch.setattr(signatures, "package_folder", lambda: Path("/nowhere"))
    monkeypatch.setattr(launch, "EXPECTED", ())

    def start(self: Any, **given: Any) -> None:
        vars(self).update(given)

    start_args: Callable[..., Any] = type("StartArgs", (), {"__init__": launch.wrap_start_args(start)})
    vars(args).update(mtp_mode="dspark", mtp_draft_model_dir=[args.mtp_draft_model_dir[0].replace("eagle3", "dspark")])
    given = start_args(**{**vars(args), "mtp_step": 0})
    assert (given.mtp_mode, given.mtp_step) == (HOST_MODE, 7)
    assert given.lightspec["drafter"] == "dspark"
    again = start_args(**vars(given))
    assert vars(again) == vars(given)


def test_options_that_are_looked_at_are_among_those_whose_names_are_checked() -> None:
    expected = next(one for one in EXPECTED if one.name == "StartArgs")
    looked_at = {"tp", "disable_flashinfer_allreduce", *(refusal.option for refusal in DRAFTER_REFUSALS)}
    assert looked_at <= set(expected.fields)
