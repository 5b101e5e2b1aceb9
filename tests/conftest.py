"""Shared set-up: one thread per test process, and markers that skip with their reason."""

import functools
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # a busy machine is no failure: no test asserts a clock
settings.load_profile("untimed")

# Before torch is first imported: two spinning threads beside another busy process cost more than they give.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")


@pytest.fixture(scope="session", autouse=True)
def cost_tables_of_the_tests_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Downloads are shared with the user's cache; cost tables are not: one measured beside other tests is no good."""
    from lightspec_lightllm.engine.fetch import cache_dir

    folder = tmp_path_factory.mktemp("cache")
    for name in ("files", "models"):
        (cache_dir() / name).mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(cache_dir() / name, target_is_directory=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIGHTSPEC_CACHE", str(folder))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("slow") and not item.config.getoption("--slow"):
        pytest.skip("slow: run with --slow")
    for name, problem in (("real_model", model_problem), ("lightllm", lightllm_problem), ("gpu", gpu_problem)):
        if item.get_closest_marker(name) and (reason := problem()):
            pytest.skip(f"{name}: {reason}")


@functools.cache
def model_problem() -> str | None:
    """Why the served model's file cannot be had, or None. The first call may download it."""
    from lightspec_lightllm.engine.fetch import default_model_path
    from lightspec_lightllm.errors import DownloadError

    try:
        default_model_path()
    except DownloadError as error:
        return str(error)
    return None


@functools.cache
def lightllm_problem() -> str | None:
    from tests.adapters.lightllm.harness import checkout

    return checkout.problem()


@functools.cache
def gpu_problem() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "no CUDA GPU"
