"""Every operation is tested twice: the plain torch twin, and the kernel, on a GPU or else in triton's interpreter."""

import importlib.util
import os
from types import ModuleType

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when kernels are decorated, so before they are imported


@pytest.fixture(scope="session")
def device() -> str:
    return DEVICE


@pytest.fixture(scope="session", params=["reference", "kernels"])
def operations(request: pytest.FixtureRequest) -> ModuleType:
    """The module whose functions a test calls."""
    if request.param == "kernels":
        if importlib.util.find_spec("triton") is None:
            pytest.skip("triton is not installed (pip install triton==3.8.0)")
        return importlib.import_module("lightspec_lightllm.ops.kernels")
    return importlib.import_module("lightspec_lightllm.ops.reference")
