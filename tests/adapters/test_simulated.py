"""The simulated host: its clock is the cost table, its drafts are as likely as its profile says."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from lightspec_lightllm.adapters.simulated import AcceptanceProfile, SimulatedHost
from lightspec_lightllm.decode import Round
from lightspec_lightllm.errors import ConfigError
from lightspec_lightllm.planner import CostModel, DrafterKind, make_planner
from tests.planner.worlds import GPU, KINDS

STEPS = 4


def rounds(
    strategy: str, num_requests: Any = 4, profile: Any = None, *, kind: DrafterKind = "serial", **options: Any
) -> Round:
    host = SimulatedHost(
        GPU, num_requests, profile or AcceptanceProfile((0.7,)), max_draft_steps=STEPS, drafter=kind, **options
    )
    return Round(host, make_planner(strategy, GPU, max_draft_steps=STEPS, drafter=kind))


@pytest.mark.parametrize("kind", KINDS)
def test_the_clock_is_the_cost_of_the_target_and_the_drafter(kind: DrafterKind) -> None:
    loop = rounds("fixed:4", kind=kind)
    for index in range(4):
        record = loop.step()
        assert record is not None
        rows = 4 if index == 0 else 20
        assert record.plan.verify_rows == rows
        context = record.context_tokens / 4
        assert record.seconds["target"] * 1e3 == pytest.approx(GPU.target_ms(rows, 4, context))
        draft = GPU.draft_ms(kind, 4, rows, STEPS, block=STEPS)
        assert record.seconds["draft"] * 1e3 == pytest.approx(draft)
        assert record.seconds["schedule"] == record.seconds["plan"] == record.seconds["commit"] == 0.0


def test_drafts_are_accepted_as_often_as_the_profile_says() -> None:
    loop = rounds("fixed:4", 64, AcceptanceProfile((0.9, 0.5, 0.8)), seed=3)
    for _ in range(150):
        loop.step()
    counters = loop.counters
    drafts = counters.num_drafts
    survival = np.cumprod([0.9, 0.5, 0.8, 0.8])
    error = np.sqrt(survival * (1 - survival) / drafts)
    assert (np.abs(counters.accepted_per_position / drafts - survival) < 4 * error).all()


def test_what_the_confidence_tells_is_true_unless_it_is_biased() -> None:
    for bias, honest in ((0.0, True), (1.0, False)):
        profile = AcceptanceProfile((0.6,), spread=0.5, noise=1.0, confidence=True, bias=bias)
        loop = rounds("fixed:1", 64, profile, seed=5)
        told, came = 0.0, 0
        for _ in range(100):
            record = loop.step()
            assert record is not None
            assert record.confidence is not None
            told += float(record.confidence[record.drafted > 0, 0].sum())
            came += int((record.accepted - 1).sum())
        assert (abs(told / came - 1) < 0.03) is honest
        assert told > came * 0.97


def test_requests_are_replaced_when_they_have_lived_long_enough() -> None:
    loop = rounds("fixed:2", 3, lifetime=20)
    seen: dict[int, int] = {}
    for _ in range(60):
        record = loop.step()
        assert record is not None
        assert record.num_requests == 3
        for request, tokens in zip(record.request_ids.tolist(), record.committed.tolist(), strict=True):
            seen[request] = seen.get(request, 0) + tokens
    assert len(seen) > 10
    assert max(seen.values()) < 20 + STEPS + 1
    finished = [tokens for request, tokens in seen.items() if request < max(seen) - 3]
    assert min(finished) >= 20


def test_a_batch_may_grow_and_shrink_and_new_requests_have_no_drafts() -> None:
    loop = rounds("fixed:3", lambda index: 2 + 3 * (index % 2))
    known: set[int] = set()
    for index in range(8):
        record = loop.step()
        assert record is not None
        assert record.num_requests == 2 + 3 * (index % 2)
        for request, drafted in zip(record.request_ids.tolist(), record.drafted.tolist(), strict=True):
            assert drafted == (3 if request in known else 0)
        known = set(record.request_ids.tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_with_a_cache_catches_up_on_the_rounds_it_skipped(kind: DrafterKind) -> None:
    host = SimulatedHost(GPU, 2, AcceptanceProfile((0.5,)), max_draft_steps=STEPS, drafter=kind, max_backlog=5)
    backlogs, times = [], []
    for steps in (0, 0, 0, 0, 0, 0, 0, STEPS, STEPS):
        backlog = host.schedule().draft_backlog
        backlogs.append(backlog)
        none = np.zeros(2, dtype=np.int64)
        host.commit(host.verify(none))
        before = host.now()
        host.draft(steps)
        times.append((host.now() - before) * 1e3)
    cached = kind in ("serial", "chained", "block")
    assert backlogs == ([0, 2, 4, 6, 8, 10, 10, 10, 0] if cached else [0] * 9)
    expected = GPU.draft_ms(kind, 2, 2, STEPS, block=STEPS, backlog=10 if cached else 0)
    assert times[-2] == pytest.approx(expected)
    assert times[-1] == pytest.approx(GPU.draft_ms(kind, 2, 2, STEPS, block=STEPS))


def test_the_drafter_s_time_follows_the_context() -> None:
    costs = CostModel.from_tables({8: 1.0}, {100: {8: 1.0}, 1000: {8: 2.0}})
    host = SimulatedHost(costs, 1, AcceptanceProfile(), max_draft_steps=STEPS, context_tokens=1000)
    host.schedule()
    host.commit(host.verify(np.zeros(1, dtype=np.int64)))
    before = host.now()
    host.draft(1)
    assert (host.now() - before) * 1e3 == pytest.approx(2.0)


def test_a_seed_repeats_a_run_and_another_does_not() -> None:
    def trace(seed: int) -> list[int]:
        loop = rounds("lightspec", 4, AcceptanceProfile((0.6,), spread=0.5, noise=1.0), seed=seed, cost_noise=0.1)
        records = [loop.step() for _ in range(30)]
        return [int(record.accepted.sum()) for record in records if record is not None] + [int(1e6 * loop.host.now())]

    assert trace(1) == trace(1)
    assert trace(1) != trace(2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"acceptance": ()}, "acceptance"),
        ({"acceptance": (0.5, 1.0)}, "acceptance"),
        ({"acceptance": (0.0,)}, "acceptance"),
        ({"acceptance": (float("nan"),)}, "acceptance"),
        ({"spread": -0.1}, "spread"),
        ({"noise": -0.1}, "noise"),
    ],
)
def test_an_impossible_profile_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AcceptanceProfile(**fields)


def test_rounds_run_where_torch_is_not_installed() -> None:
    code = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "tokenizers", "gguf", "jinja2"}:
            raise ImportError(f"{name} is not installed")
sys.meta_path.insert(0, Blocker())
from lightspec_lightllm.adapters.simulated import AcceptanceProfile, SimulatedHost
from lightspec_lightllm.decode import Round
from lightspec_lightllm.planner import CostModel, make_planner
costs = CostModel.from_tables({8: 1.0, 64: 2.0}, {8: 0.1})
host = SimulatedHost(costs, 4, AcceptanceProfile(confidence=True), max_draft_steps=3)
rounds = Round(host, make_planner("lightspec", costs, max_draft_steps=3))
for _ in range(20):
    rounds.step()
assert rounds.counters.fallback is None
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
