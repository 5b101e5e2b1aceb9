"""LightLLM's start arguments as dynamic mode takes them: what it adds, what it refuses and why, what ranks are told."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightspec_lightllm.adapters.lightllm.drafters.checkpoints import DraftCheckpoint, Target, open_checkpoint
from lightspec_lightllm.adapters.lightllm.drafters.layouts import BLOCK_KINDS, KINDS, BlockSettings
from lightspec_lightllm.adapters.lightllm.options import LightLLMConfig, load_options
from lightspec_lightllm.errors import ConfigError, ModelError
from lightspec_lightllm.planner.options import MAX_DRAFT_STEPS

CHAINED_MODES = ("vanilla_with_att", "vanilla_no_att")
"""MTP modes in which every draft step has a layer of its own."""
SERIAL_MODES = ("eagle_with_att", "eagle_no_att")
"""MTP modes in which one layer makes all draft steps."""
MTP_MODES = (*CHAINED_MODES, *SERIAL_MODES)
DRAFTER_MODES = KINDS
"""Modes whose drafter this package loads; LightLLM is told `HOST_MODE`."""
HOST_MODE = "eagle_with_att"

_WITH_ATTENTION = ("deepseek_v3", "glm4_moe_lite", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
_WITHOUT_ATTENTION = ("qwen3_moe", "mistral")
"""``model_type`` of the drafters that LightLLM loads, by the modes in which it does."""

_SPARSE_INDEX_MODELS = ("deepseek_v32",)
_KV_BACKENDS = {"int8kv": "triton", "int4kv": "triton", "fp8kv_sph": "fa3", "fp8kv_spt": "flashinfer"}
"""The only decode attention that LightLLM has for a quantised cache."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Values of one of LightLLM's options with which dynamic mode does not start.

    Attributes:
        option: name of the option and of its attribute.
        allowed: all other values are refused; the first is LightLLM's default.
        reason: what would go wrong.
    """

    option: str
    allowed: tuple[Any, ...]
    reason: str

    def problem(self, args: Any) -> str | None:
        """One line if these arguments are refused, else None."""
        value = getattr(args, self.option, self.allowed[0])
        if value in self.allowed:
            return None
        given = f"--{self.option}" if value is True else f"--{self.option} {value}"
        remedy = "drop one of the two" if value is True else f"use {' or '.join(map(str, self.allowed))}"
        return f"{given} does not go with --dynamic_mtp: {self.reason}; {remedy}"


REFUSALS: tuple[Refusal, ...] = (
    Refusal("run_mode", ("normal",), "nodes that hand requests over between prefill and decode are not supported yet"),
    Refusal("dp", (1,), "groups of ranks would have to agree on the draft steps, which is not supported yet"),
    Refusal("nnodes", (1,), "ranks on several machines have not been tried with a plan of their own"),
    Refusal("enable_ep_moe", (False,), "expert parallelism bounds the rows of a rank, which the planner does not know"),
    Refusal(
        "enable_prefill_microbatch_overlap", (False,), "it turns on tensor and sequence parallel mixing, see there"
    ),
    Refusal(
        "enable_decode_microbatch_overlap", (False,), "two micro-batches must be of equal size, planned rows are not"
    ),
    Refusal("enable_tpsp_mix_mode", (False,), "rows are split over ranks, so their number cannot be planned freely"),
    Refusal("enable_prefill_decode_mixed", (False,), "prefill batches with decode rows in them are not planned"),
    Refusal(
        "output_constraint_mode", ("none",), "LightLLM does not apply constraints to drafted rows, answers would break"
    ),
    Refusal("token_healing_mode", (False,), "its backend replaces the one that plans"),
    Refusal("first_token_constraint_mode", (False,), "its backend replaces the one that plans"),
    Refusal("diverse_mode", (False,), "its backend replaces the one that plans"),
    Refusal("use_reward_model", (False,), "its backend replaces the one that plans, and nothing is decoded"),
    Refusal(
        "penalty_counter_mode",
        ("gpu_counter",),
        "it counts tokens in the CPU's memory, which does not know the rows of a planned round",
    ),
)

DRAFTER_REFUSALS: tuple[Refusal, ...] = (
    Refusal("llm_kv_type", ("None",), "drafters that this package loads have no quantised KV cache"),
    Refusal("enable_cpu_cache", (False,), "their KV is not copied to it and back"),
    Refusal("enable_prefill_cudagraph", (False,), "a captured prefill does not give them the hidden states they read"),
)
"""What is refused in `DRAFTER_MODES` besides."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the launcher takes besides LightLLM's own arguments, and the modes of ``--mtp_mode``."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to an option that is there
        if action.dest == "mtp_mode" and action.choices is not None:
            action.choices = [*action.choices, *DRAFTER_MODES]
    group = parser.add_argument_group("dynamic MTP (lightspec)")
    group.add_argument(
        "--dynamic_mtp",
        action="store_true",
        help="""plan every decode round: how many drafted tokens are verified, how many are drafted next.
                Needs --mtp_mode and --mtp_step; the latter is the most that is drafted. It has modes of its own, with
                --mtp_draft_model_dir: eagle3; dflash and dspark, whose --mtp_step is their block's unless given.""",
    )
    group.add_argument(
        "--lightspec_config",
        type=str,
        default=None,
        metavar="FILE",
        help="YAML file of the planner, the cost table, checks and metrics; needs --dynamic_mtp.",
    )


def resolve(args: Any) -> LightLLMConfig | None:
    """The configuration that start arguments ask for; None: dynamic mode is off.

    Args:
        args: LightLLM's ``StartArgs``, or the namespace of its parser.

    Raises:
        ConfigError: in one line, everything that keeps dynamic mode from starting.
    """
    found = list(problems(args))
    if found:
        raise ConfigError("; ".join(found))
    return _config(args) if args.dynamic_mtp else None


def problems(args: Any) -> Iterator[str]:
    """Everything that keeps these start arguments from working, one line each, with the remedy."""
    if not args.dynamic_mtp:
        if args.lightspec_config is not None:
            yield f"--lightspec_config {args.lightspec_config} has no effect without --dynamic_mtp; give both or none"
        if args.mtp_mode in DRAFTER_MODES:
            yield f"--mtp_mode {args.mtp_mode} needs --dynamic_mtp: LightLLM itself serves MTP layers; add the flag"
        return
    for refusal in REFUSALS:
        if (problem := refusal.problem(args)) is not None:
            yield problem
    if args.model_dir is None:
        yield "--model_dir: expected the folder of the model to serve, got none"
        return
    if wrong_mode := list(_mode_problems(args)):
        yield from wrong_mode
    elif args.mtp_mode in DRAFTER_MODES:
        yield from _drafter_problems(args)
    else:
        yield from _config_problems(args)
        yield from _draft_problems(args)
    yield from _target_problems(args)
    yield from attention_problems(args)


def draft_folders(args: Any) -> list[str]:
    """The folder of every draft layer that LightLLM will load; without ``--mtp_draft_model_dir``, the target's."""
    given = args.mtp_draft_model_dir or [args.model_dir] * args.mtp_step
    folders = [given] if isinstance(given, str) else list(given)
    return folders[:1] if args.mtp_mode in (*SERIAL_MODES, *DRAFTER_MODES) else folders


def draft_checkpoint(args: Any) -> DraftCheckpoint:
    """The drafter of one of `DRAFTER_MODES`. Raises ModelError if it cannot draft for the target."""
    (folder,) = draft_folders(args)
    return open_checkpoint(Path(folder), Target.read(Path(args.model_dir)))


def draft_steps(args: Any) -> int:
    """K: ``--mtp_step``, or where it is left out a block drafter's size."""
    if args.mtp_mode in DRAFTER_MODES and not args.mtp_step:
        return draft_checkpoint(args).layout.max_draft_steps
    steps: int = args.mtp_step
    return steps


def attention_problems(args: Any) -> Iterator[str]:
    """A decode attention that LightLLM does not have for the type of the KV cache."""
    kind, chosen = args.llm_kv_type, args.llm_decode_att_backend[0]
    needed = _KV_BACKENDS.get(kind)
    if needed is not None and chosen not in ("auto", needed):
        yield f"--llm_decode_att_backend {chosen} has no {kind} cache in LightLLM; use {needed}"


def _mode_problems(args: Any) -> Iterator[str]:
    if args.mtp_mode is None:
        yield (
            "--dynamic_mtp needs a drafter: give --mtp_mode (eagle_with_att: one MTP layer makes all drafts; "
            "vanilla_with_att: a layer per draft; *_no_att: layers without attention; eagle3, dflash, dspark: a "
            "drafter in --mtp_draft_model_dir) and --mtp_step K"
        )
    elif args.mtp_mode not in (*MTP_MODES, *DRAFTER_MODES):
        modes = ", ".join((*MTP_MODES, *DRAFTER_MODES))
        yield f"--mtp_mode: expected one of {modes} with --dynamic_mtp, got {args.mtp_mode}"
    if args.mtp_mode in BLOCK_KINDS and args.mtp_step == 0:
        return
    if not 1 <= args.mtp_step <= MAX_DRAFT_STEPS:
        yield (
            f"--mtp_step: expected 1 to {MAX_DRAFT_STEPS} with --dynamic_mtp, got {args.mtp_step}; it is K, the most "
            "tokens drafted per request and round"
        )


def _config_problems(args: Any) -> Iterator[str]:
    try:
        _config(args)
    except ConfigError as error:
        yield str(error)


def _drafter_problems(args: Any) -> Iterator[str]:
    for refusal in DRAFTER_REFUSALS:
        if (problem := refusal.problem(args)) is not None:
            yield problem.replace("--dynamic_mtp", f"--mtp_mode {args.mtp_mode}")
    given = args.mtp_draft_model_dir
    if not given or (not isinstance(given, str) and len(given) != 1):
        yield f"--mtp_draft_model_dir: expected the folder of one {args.mtp_mode} drafter, got {given or 'none'}"
        return
    try:
        checkpoint = draft_checkpoint(args)
    except ModelError as error:
        yield str(error)
        return
    layout, folder = checkpoint.layout, checkpoint.folder
    if layout.kind != args.mtp_mode:
        yield f"--mtp_mode {args.mtp_mode}: the drafter in {folder} is of another kind; use {layout.kind}"
        return
    if isinstance(layout.settings, BlockSettings) and args.mtp_step > layout.max_draft_steps:
        yield (
            f"--mtp_step {args.mtp_step}: the drafter in {folder} makes blocks of {layout.max_draft_steps} drafts and "
            "was trained for no others; use at most that, or leave the option out"
        )
        return
    heads, kv_heads, tp = layout.decoder.num_heads, layout.decoder.num_kv_heads, args.tp
    if heads % tp or (kv_heads % tp and tp % kv_heads):
        yield f"--tp {tp} does not divide the {heads} heads and {kv_heads} KV heads of the drafter in {folder}"
    if layout.draft_vocab_size % tp:
        yield f"--tp {tp} does not divide the {layout.draft_vocab_size} tokens that the drafter in {folder} knows"
    width, targets = layout.decoder.hidden_size, layout.target_hidden_size
    if width != targets and tp > 1 and not args.disable_flashinfer_allreduce:
        yield (
            f"--tp {tp} with the drafter in {folder}, of hidden size {width} where the target has {targets}: "
            "LightLLM's FlashInfer all-reduce has buffers for one size, which the target's CUDA graphs would go on "
            "using after they are freed; add --disable_flashinfer_allreduce"
        )
    yield from _config_problems(args)


def _draft_problems(args: Any) -> Iterator[str]:
    folders = draft_folders(args)
    if args.mtp_mode in CHAINED_MODES and len(folders) != args.mtp_step:
        yield (
            f"--mtp_draft_model_dir: expected {args.mtp_step} folders, one per draft step of {args.mtp_mode}, got "
            f"{len(folders)}; repeat the folder, or leave the option out if the layers lie in --model_dir"
        )
    for folder in dict.fromkeys(folders):
        if folder != args.model_dir and not _has_config(folder):
            yield f"--mtp_draft_model_dir: expected a folder with config.json, {folder} is none; correct the path"
        kind, attention = _model_type(folder), args.mtp_mode.endswith("_with_att")
        if kind in (_WITHOUT_ATTENTION if attention else _WITH_ATTENTION):
            other = args.mtp_mode.replace("_with_att", "_no_att") if attention else f"{args.mtp_mode[:-7]}_with_att"
            yield f"--mtp_mode {args.mtp_mode} does not go with the {kind} drafter in {folder}; use {other}"


def _target_problems(args: Any) -> Iterator[str]:
    if not _has_config(args.model_dir):
        yield f"--model_dir: expected a folder with config.json, {args.model_dir} is none; correct the path"
    kind = _model_type(args.model_dir)
    if kind in _SPARSE_INDEX_MODELS:
        yield (
            f"--model_dir {args.model_dir} is a {kind} model, whose attention index takes as many rows from every "
            "request; drop --dynamic_mtp"
        )


def _has_config(folder: str) -> bool:
    """Whether a model is there, or will be once LightLLM has fetched it."""
    return "://" in folder or (Path(folder) / "config.json").is_file()


def _model_type(folder: str) -> str | None:
    """``model_type`` of a model's config.json, None if it cannot be read."""
    try:
        content = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content.get("model_type") if isinstance(content, dict) else None


def _config(args: Any) -> LightLLMConfig:
    path = args.lightspec_config
    config = LightLLMConfig() if path is None else load_options(Path(path))
    drafter = args.mtp_mode if args.mtp_mode in DRAFTER_MODES else None
    return dataclasses.replace(config.with_draft_steps(draft_steps(args)), drafter=drafter)
