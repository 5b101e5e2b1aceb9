"""Start arguments of dynamic mode: what is refused and why, what is needed, what the ranks are told."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from lightspec_lightllm.adapters.lightllm.arguments import (
    MTP_MODES,
    REFUSALS,
    Refusal,
    add_arguments,
    draft_folders,
    problems,
    resolve,
)
from lightspec_lightllm.adapters.lightllm.expected import EXPECTED
from lightspec_lightllm.errors import ConfigError

REFUSED: dict[str, tuple[Any, ...]] = {
    "run_mode": ("prefill", "decode", "pd_master", "config_server", "visual_only"),
    "dp": (2,),
    "nnodes": (2,),
    "enable_ep_moe": (True,),
    "enable_prefill_microbatch_overlap": (True,),
    "enable_decode_microbatch_overlap": (True,),
    "enable_tpsp_mix_mode": (True,),
    "enable_prefill_decode_mixed": (True,),
    "output_constraint_mode": ("outlines", "xgrammar"),
    "token_healing_mode": (True,),
    "first_token_constraint_mode": (True,),
    "diverse_mode": (True,),
    "use_reward_model": (True,),
    "penalty_counter_mode": ("cpu_counter", "pin_mem_counter"),
}


def model(folder: Path, kind: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": kind}), encoding="utf-8")
    return str(folder)


@pytest.fixture
def args(tmp_path: Path) -> argparse.Namespace:
    """Arguments with which dynamic mode starts."""
    return argparse.Namespace(
        dynamic_mtp=True,
        lightspec_config=None,
        model_dir=model(tmp_path / "target", "deepseek_v3"),
        mtp_mode="eagle_with_att",
        mtp_draft_model_dir=[model(tmp_path / "drafter", "deepseek_v3")],
        mtp_step=7,
        llm_kv_type="None",
        llm_decode_att_backend=["auto"],
        **{refusal.option: refusal.allowed[0] for refusal in REFUSALS},
    )


def refused(args: argparse.Namespace, **changes: Any) -> str:
    """The one problem of the arguments with changes."""
    vars(args).update(changes)
    (problem,) = problems(args)
    with pytest.raises(ConfigError) as caught:
        resolve(args)
    assert str(caught.value) == problem
    assert "\n" not in problem
    return problem


def test_good_arguments_resolve_to_the_configuration_at_that_many_draft_steps(args: argparse.Namespace) -> None:
    config = resolve(args)
    assert config is not None
    assert config.planner.max_draft_steps == 7
    assert list(problems(args)) == []


def test_without_the_flag_dynamic_mode_is_off_whatever_else_is_asked_for(args: argparse.Namespace) -> None:
    vars(args).update(dynamic_mtp=False, mtp_mode=None, mtp_step=0, dp=8, run_mode="decode")
    assert resolve(args) is None


def test_a_file_without_the_flag_is_no_silent_mistake(args: argparse.Namespace) -> None:
    assert "no effect without --dynamic_mtp" in refused(args, dynamic_mtp=False, lightspec_config="a.yaml")


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.option)
def test_every_refusal_names_the_option_the_reason_and_the_remedy(refusal: Refusal, args: argparse.Namespace) -> None:
    for value in REFUSED[refusal.option]:
        problem = refused(args, **{refusal.option: value})
        assert problem.startswith(f"--{refusal.option}")
        assert refusal.reason in problem
        assert "drop one of the two" in problem or f"use {refusal.allowed[0]}" in problem


def test_all_problems_are_told_at_once(args: argparse.Namespace) -> None:
    vars(args).update(dp=2, diverse_mode=True, mtp_step=99)
    with pytest.raises(ConfigError) as caught:
        resolve(args)
    assert all(option in str(caught.value) for option in ("--dp 2", "--diverse_mode", "--mtp_step"))


def test_a_drafter_is_asked_for(args: argparse.Namespace) -> None:
    assert "give --mtp_mode" in refused(args, mtp_mode=None)
    assert "expected one of" in refused(args, mtp_mode="medusa")


@pytest.mark.parametrize("steps", [-1, 0, 16, 99])
def test_draft_steps_out_of_range_are_refused(steps: int, args: argparse.Namespace) -> None:
    assert f"--mtp_step: expected 1 to 15 with --dynamic_mtp, got {steps}" in refused(args, mtp_step=steps)


@pytest.mark.parametrize("steps", [1, 7, 8, 15])
@pytest.mark.parametrize("mode", MTP_MODES)
def test_every_mode_takes_1_to_15_steps(mode: str, steps: int, args: argparse.Namespace, tmp_path: Path) -> None:
    drafter = model(tmp_path / "drafter", "deepseek_v3" if mode.endswith("with_att") else "mistral")
    vars(args).update(mtp_mode=mode, mtp_step=steps, mtp_draft_model_dir=[drafter] * steps)
    config = resolve(args)
    assert config is not None
    assert config.planner.max_draft_steps == steps


def test_a_missing_drafter_is_named_once(args: argparse.Namespace, tmp_path: Path) -> None:
    missing = str(tmp_path / "nowhere")
    problem = refused(args, mtp_mode="vanilla_with_att", mtp_draft_model_dir=[missing] * 7)
    assert problem == f"--mtp_draft_model_dir: expected a folder with config.json, {missing} is none; correct the path"


def test_chained_layers_need_a_folder_each(args: argparse.Namespace) -> None:
    problem = refused(args, mtp_mode="vanilla_with_att")
    assert "expected 7 folders, one per draft step of vanilla_with_att, got 1" in problem


def test_without_draft_folders_the_layers_are_the_targets(args: argparse.Namespace) -> None:
    vars(args).update(mtp_draft_model_dir=None, mtp_mode="vanilla_with_att")
    assert draft_folders(args) == [args.model_dir] * 7
    assert resolve(args) is not None
    args.mtp_mode = "eagle_with_att"
    assert draft_folders(args) == [args.model_dir]


@pytest.mark.parametrize(
    ("mode", "kind", "remedy"),
    [
        ("eagle_with_att", "mistral", "use eagle_no_att"),
        ("eagle_no_att", "deepseek_v3", "use eagle_with_att"),
        ("vanilla_no_att", "qwen3_5", "use vanilla_with_att"),
        ("vanilla_with_att", "qwen3_moe", "use vanilla_no_att"),
    ],
)
def test_a_drafter_of_the_other_mode_is_refused_before_models_are_loaded(
    mode: str, kind: str, remedy: str, args: argparse.Namespace, tmp_path: Path
) -> None:
    problem = refused(args, mtp_mode=mode, mtp_draft_model_dir=[model(tmp_path / "other", kind)] * 7)
    assert problem.endswith(remedy)


def test_a_missing_target_is_named(args: argparse.Namespace, tmp_path: Path) -> None:
    assert "--model_dir: expected the folder" in refused(args, model_dir=None)
    assert f"{tmp_path / 'nowhere'} is none" in refused(args, model_dir=str(tmp_path / "nowhere"))


def test_models_that_are_yet_to_be_fetched_are_not_looked_for(args: argparse.Namespace) -> None:
    vars(args).update(model_dir="s3://bucket/target", mtp_draft_model_dir=["s3://bucket/drafter"])
    assert resolve(args) is not None


def test_a_sparse_attention_index_is_refused(args: argparse.Namespace, tmp_path: Path) -> None:
    assert "attention index" in refused(args, model_dir=model(tmp_path / "sparse", "deepseek_v32"))


def test_a_cache_that_the_attention_cannot_read_is_refused(args: argparse.Namespace) -> None:
    problem = refused(args, llm_kv_type="int8kv", llm_decode_att_backend=["fa3"])
    assert problem == "--llm_decode_att_backend fa3 has no int8kv cache in LightLLM; use triton"
    args.llm_decode_att_backend = ["auto"]
    assert resolve(args) is not None


def test_a_bad_file_is_a_problem_like_any_other(args: argparse.Namespace, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("planner: {strategy: 'fixed:9'}", encoding="utf-8")
    assert "must be 1 to 7" in refused(args, lightspec_config=str(path))
    assert "cannot be read" in refused(args, lightspec_config=str(tmp_path / "nowhere.yaml"))


def test_options_that_are_looked_at_are_among_those_whose_names_are_checked() -> None:
    expected = next(e for e in EXPECTED if e.name == "StartArgs")
    assert {refusal.option for refusal in REFUSALS} <= set(expected.fields)
    assert REFUSED.keys() == {refusal.option for refusal in REFUSALS}


def test_the_parser_takes_both_arguments() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert vars(parser.parse_args([])) == {"dynamic_mtp": False, "lightspec_config": None}
    found = parser.parse_args(["--dynamic_mtp", "--lightspec_config", "a.yaml"])
    assert vars(found) == {"dynamic_mtp": True, "lightspec_config": "a.yaml"}
