"""Kernels run where they can, and nothing imports triton before that."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from lightspec_lightllm import ops


def test_importing_the_operations_imports_no_triton() -> None:
    code = "import sys, lightspec_lightllm.ops; print('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", sorted(set(ops.__all__) - {"Segments", "SelectedRows"}))
def test_a_tensor_on_a_gpu_goes_to_the_kernel_if_there_is_triton(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = SimpleNamespace(is_cuda=True)
    monkeypatch.setattr(ops, "_has_triton", lambda: True)
    monkeypatch.setattr(ops, "_kernel", lambda called: lambda *args: (called, args))
    assert getattr(ops, name)(on_gpu, 2) == (name, (on_gpu, 2))


def test_without_triton_a_gpu_runs_the_plain_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_has_triton", lambda: False)
    number = SimpleNamespace(is_cuda=True, long=lambda: 3)
    assert ops.accepted_last_row(number, number) == 5  # type: ignore[arg-type]
