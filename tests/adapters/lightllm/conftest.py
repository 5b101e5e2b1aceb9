"""Fixtures that run LightLLM on this machine's CPU; tests that use them carry the marker ``lightllm``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.adapters.lightllm.harness.job import Job, JobResult
from tests.adapters.lightllm.harness.launcher import ROOT, Launcher, environment
from tests.adapters.lightllm.harness.models import Models, write_models
from tests.adapters.lightllm.harness.reference import Reference

RunBackend = Callable[[Job], JobResult]


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return write_models(tmp_path_factory.mktemp("tiny-models"))


@pytest.fixture(scope="session")
def reference() -> Iterator[Reference]:
    """Transformers' greedy text."""
    process = Reference(str(ROOT), environment())
    yield process
    process.close()


@pytest.fixture(scope="session")
def run_backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunBackend]:
    """Run a job, LightLLM alone or with the plugin as the job says; its files stay for the post-mortem."""
    launchers = {plugin: Launcher(plugin=plugin) for plugin in (False, True)}
    folder = tmp_path_factory.mktemp("lightllm-jobs")
    numbers = itertools.count()

    def run(job: Job) -> JobResult:
        own = folder / f"job-{next(numbers)}"
        own.mkdir()
        return launchers[job.lightspec is not None].run(job, own)

    yield run
    for launcher in launchers.values():
        launcher.close()
