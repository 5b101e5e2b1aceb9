"""The memory of drafters: what is left for the target's KV fits beside them, and nothing is left unused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightspec_lightllm.adapters.lightllm import options
from lightspec_lightllm.adapters.lightllm.drafters import memory
from lightspec_lightllm.adapters.lightllm.drafters.checkpoints import DraftCheckpoint, open_checkpoint
from lightspec_lightllm.adapters.lightllm.drafters.memory import pool_size
from lightspec_lightllm.adapters.lightllm.options import LightLLMConfig
from tests.adapters.lightllm.drafters.folders import CONFIGS, TARGET, write


@pytest.fixture(scope="module", params=["common", "deepspec dspark"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DraftCheckpoint:
    folder: Path = write(tmp_path_factory.mktemp("drafter"), CONFIGS[request.param])
    return open_checkpoint(folder, TARGET)


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.sampled_from((1, 2, 4, 8)), st.sampled_from((2, 4)))
def test_weights_and_kv_fit_beside_the_targets_and_one_more_slot_would_not(
    checkpoint: DraftCheckpoint, without: int, cell_bytes: int, tp: int, element_bytes: int
) -> None:
    size = pool_size(without, cell_bytes, checkpoint, tp=tp, element_bytes=element_bytes)
    weights = checkpoint.weight_elements(tp) * element_bytes
    cell = cell_bytes + checkpoint.kv_elements(tp) * element_bytes
    assert size >= 0
    assert size == 0 or size * cell + weights <= without * cell_bytes
    assert (size + 1) * cell + weights > without * cell_bytes


def test_ranks_share_matrices_and_heads_and_each_has_norms_and_the_projection(checkpoint: DraftCheckpoint) -> None:
    assert checkpoint.kv_elements(2) == checkpoint.kv_elements() // 2
    assert checkpoint.kv_elements(8) == checkpoint.kv_elements(4), "a rank has a KV head at least"
    whole = checkpoint.weight_elements()
    assert whole == sum(tensor.num_elements for tensor in checkpoint.tensors.values())
    assert whole / 2 < checkpoint.weight_elements(2) < whole


def test_lightllms_own_drafters_keep_their_layers_among_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    added = memory.wrap_added_layers(lambda: 1)
    for config, layers in ((None, 1), (LightLLMConfig(), 1), (LightLLMConfig(drafter="eagle3"), 0)):
        monkeypatch.setattr(options, "current", lambda config=config: config)
        assert added() == layers
