"""The check for machines with a GPU: its arithmetic here, all of it in a dry run."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu_check import agreement, line_of
from benchmarks.gpu_check import main as check
from benchmarks.gpu_kernels import CASES, accepted_last_row, compare, draft_scores, segments
from benchmarks.gpu_worker import Mark, SyntheticVerification
from benchmarks.random_models import SHAPES, drafter_config
from lightspec_lightllm import ops
from lightspec_lightllm.adapters.lightllm.arguments import DRAFTER_MODES
from lightspec_lightllm.adapters.lightllm.drafters.checkpoints import Target, open_checkpoint
from lightspec_lightllm.adapters.lightllm.drafters.layouts import Kind
from lightspec_lightllm.ops import reference
from tests.adapters.lightllm.drafters.folders import write
from tests.adapters.lightllm.harness.launcher import ROOT, environment


def verification(acceptance: tuple[float, ...], steps: int, monkeypatch: pytest.MonkeyPatch) -> SyntheticVerification:
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    made = SyntheticVerification(lambda **_: "true verification", acceptance, steps)
    made.on = True
    return made


def test_accept_lengths_are_drawn_by_position_and_cut_at_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [1, 4, 2] * 4000
    starts = torch.tensor([0, *itertools.accumulate(rows)][:-1], dtype=torch.int32)
    verify = verification((0.8, 0.5), 7, monkeypatch)
    lengths, accepted = verify(b_req_mtp_start_loc=starts, b_req_idx=torch.zeros(sum(rows), dtype=torch.int32))
    assert (lengths.dtype, accepted.dtype) == (torch.int32, torch.int32)
    assert (lengths[0::3] == 1).all()
    assert lengths[2::3].float().mean() == pytest.approx(1.8, abs=0.03)
    assert lengths[1::3].float().mean() == pytest.approx(1 + 0.8 + 0.4 + 0.2, abs=0.06)
    assert lengths.max() == 4
    for start, count, length in list(zip(starts.tolist(), rows, lengths.tolist(), strict=True))[:300]:
        assert accepted[start : start + count].tolist() == [1] * length + [0] * (count - length)


def test_verification_is_true_until_it_is_switched(monkeypatch: pytest.MonkeyPatch) -> None:
    verify = verification((1.0,), 3, monkeypatch)
    verify.on = False
    assert verify() == "true verification"


def test_the_longest_full_stretch_counts_without_its_first_rounds() -> None:
    short = [Mark(0.1 * at, 4, 4 * at) for at in range(5)]
    ramp = [Mark(1.0, 3, 100)]
    full = [Mark(2.0 + 0.01 * at, 4, 200 + 10 * at) for at in range(45)]
    line = line_of("off", 4, [*short, *ramp, *full, *ramp])
    assert line is not None
    assert (line.arm, line.requests, line.rounds) == ("off", 4, 39)
    assert line.tokens_per_second == pytest.approx(1000.0)
    assert line.round_ms == pytest.approx(10.0)
    assert line.accept_length == pytest.approx(2.5)
    assert line_of("off", 4, full[:3]) is not None
    assert line_of("off", 4, full[:2]) is None
    assert line_of("off", 9, full) is None


def test_agreement_counts_up_to_the_first_difference() -> None:
    assert agreement([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 6]]) == 1.0
    assert agreement([[1, 9, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 6]]) == pytest.approx(4 / 6)


@pytest.mark.parametrize("arm", ["fast", "lightllm:8", "lightspec:0", "lightspec:16", "lightspec", "off:2"])
def test_an_unknown_arm_is_refused(arm: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check(["--arms", arm])
    assert "expected off, lightllm:K" in capsys.readouterr().err


def test_shapes_have_the_sizes_of_their_names() -> None:
    for name, billions in (("2b", 2.1), ("8b", 8.0), ("14b", 14.5)):
        assert SHAPES[name].parameters / 1e9 == pytest.approx(billions, rel=0.1)


def test_a_kernel_that_gives_something_else_is_told_and_one_that_does_not_run_too() -> None:
    for case in CASES:
        assert compare(case, reference) == "ok"

    def later(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        token, log_prob = reference.draft_scores(logits)
        return token + (token > 0).long(), log_prob

    def wider(start_loc: torch.Tensor, accept_len: torch.Tensor) -> torch.Tensor:
        return reference.accepted_last_row(start_loc, accept_len).int()

    def lost(*_: torch.Tensor) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    broken = SimpleNamespace(draft_scores=later, accepted_last_row=wider, segments=lost)
    assert compare(draft_scores, broken).startswith("differs: 4 of 5 values in result 0")
    assert compare(accepted_last_row, broken) == "differs: expected torch.int64 [1], got torch.int32 [1]"
    assert compare(segments, broken) == "failed: RuntimeError: an illegal memory access was encountered"


@pytest.mark.parametrize("kind", DRAFTER_MODES)
@pytest.mark.parametrize("shape", ["tiny", "2b"])
def test_drafters_of_random_weights_fit_their_target(kind: Kind, shape: str, tmp_path: Path) -> None:
    config = drafter_config(kind, SHAPES[shape], torch.bfloat16, 512)
    folder = write(tmp_path / kind, config)
    target = Target(tmp_path, "mistral", SHAPES[shape].hidden, SHAPES[shape].vocab, SHAPES[shape].layers)
    layout = open_checkpoint(folder, target).layout
    assert (layout.kind, layout.max_draft_steps) == (kind, 15)


def dry_run(tmp_path: Path, *options: str) -> dict[str, Any]:
    """What a dry run writes; every operation of this package is compared in it."""
    done = subprocess.run(
        [sys.executable, "benchmarks/gpu_check.py", "--dry-run", "--json", str(tmp_path / "check.json"), *options],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    content: dict[str, Any] = json.loads((tmp_path / "check.json").read_text())
    assert content["kernels"] == "ok"
    assert set(content["operations"]) == set(ops.__all__) - {"Segments", "SelectedRows"}
    return content


@pytest.mark.slow
@pytest.mark.lightllm
def test_a_dry_run_serves_every_arm_and_dynamic_text_is_the_targets(tmp_path: Path) -> None:
    content = dry_run(tmp_path)
    arms = content["arms"]
    assert list(arms) == ["off", "lightllm:2", "fixed:2", "lightspec:3"]
    assert all(found["agrees_with_off"] == 1.0 for found in arms.values())
    assert {(line["arm"], line["requests"]) for line in content["lines"]} == set(itertools.product(arms, (1, 3)))
    accepted = {line["arm"]: line["accept_length"] for line in content["lines"]}
    assert accepted["off"] == 1.0
    assert accepted["fixed:2"] > 1.5
    assert arms["fixed:2"]["counters"]["fallback"] is None
    assert len(content["cost_tables"]) == 2


@pytest.mark.slow
@pytest.mark.lightllm
@pytest.mark.parametrize("kind", DRAFTER_MODES)
def test_a_dry_run_serves_with_drafters_that_read_hidden_states(kind: str, tmp_path: Path) -> None:
    content = dry_run(tmp_path, "--drafter", kind, "--arms", "off", "lightllm:2", "fixed:3")
    arms = content["arms"]
    assert list(arms) == ["off", "lightllm:2", "fixed:3"]
    assert all(found["agrees_with_off"] == 1.0 for found in arms.values())
    assert max(line["accept_length"] for line in content["lines"] if line["arm"] == "fixed:3") > 1.5
    assert arms["fixed:3"]["counters"]["fallback"] is None
    (table,) = content["cost_tables"]
    assert table["key"]["mtp_mode"] == kind
