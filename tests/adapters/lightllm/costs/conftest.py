"""What stands in for LightLLM, the device, the clock and the cache."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from lightspec_lightllm import ops
from lightspec_lightllm.adapters.lightllm import costs, measuring
from tests.adapters.lightllm.costs.servers import (
    Clock,
    Input,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stand-ins for LightLLM, the device and the clock."""
    made, module = Clock(), ModuleType("batch_objs")
    module.ModelInput = Input  # type: ignore[attr-defined]
    for name in ("lightllm", "lightllm.common", "lightllm.common.basemodel"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "lightllm.common.basemodel.batch_objs", module)
    monkeypatch.setattr(measuring, "time", made)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(costs, "_sampling", lambda _: lambda *_: None)
    monkeypatch.setattr(ops, "draft_scores", lambda _: None)
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache, and a model's folder in it."""
    monkeypatch.setenv("LIGHTSPEC_CACHE", str(tmp_path / "cache"))
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": name}))
    return tmp_path
