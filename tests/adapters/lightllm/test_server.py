"""Dynamic rounds through LightLLM's HTTP server, over both ways to start it."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lightspec_lightllm.adapters.lightllm import patching
from lightspec_lightllm.cli import main
from tests.adapters.lightllm.harness import checkout
from tests.adapters.lightllm.harness.models import Models
from tests.adapters.lightllm.harness.reference import Reference
from tests.adapters.lightllm.harness.server import LIGHTLLM, PLUGIN, Server
from tests.adapters.lightllm.harness.workload import PROMPTS

pytestmark = [pytest.mark.lightllm, pytest.mark.slow]

CONFIG = """
costs: {contexts: [16], repeats: 1, graph_sizes: 3, max_verify_rows: 16}
"""
LENGTH = 16
PUSH_SECONDS = 30.0
"""Ranks push what they count about once a second."""


def patched_copy(folder: Path) -> Path:
    shutil.copytree(checkout.path() / "lightllm", folder / "lightllm")
    patching.apply(folder, patching.read_patch())
    return folder


@pytest.fixture(scope="module", params=["plugin's launcher", "LightLLM's own, patched"])
def server(
    request: pytest.FixtureRequest, tiny_models: Models, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "config.yaml").write_text(CONFIG)
    patched = request.param != "plugin's launcher"
    running = Server(
        LIGHTLLM if patched else PLUGIN,
        tiny_models.target("mistral", "mixed"),
        [
            "--dynamic_mtp",
            f"--lightspec_config={folder / 'config.yaml'}",
            "--mtp_mode=eagle_no_att",
            "--mtp_step=7",
            f"--mtp_draft_model_dir={tiny_models.drafter('mistral', 'half')}",
        ],
        log=folder / "server.log",
        source=patched_copy(folder / "source") if patched else None,
    )
    try:
        running.wait_until_ready()
        yield running
        assert running.interrupt() == 0
    finally:
        running.kill()


def count(server: Server, name: str) -> float:
    """A counter's value, 0 before it is there."""
    found = re.findall(rf"^{name}_total{{[^}}]*}} ([0-9.e+]+)$", server.metrics(), re.MULTILINE)
    return sum(map(float, found))


def test_concurrent_requests_get_the_targets_text_and_are_counted(
    server: Server, tiny_models: Models, reference: Reference
) -> None:
    model = tiny_models.target("mistral", "mixed")
    names = [f"lightspec_spec_decode_num_{what}" for what in ("drafts", "draft_tokens", "verified_tokens")]
    before = [count(server, name) for name in names]
    with ThreadPoolExecutor(len(PROMPTS)) as clients:
        answers = list(clients.map(lambda prompt: server.generate(prompt, LENGTH), PROMPTS))
    assert [answer.tokens for answer in answers] == [reference.text(model, prompt, LENGTH).tokens for prompt in PROMPTS]
    end = time.monotonic() + PUSH_SECONDS
    while not all(count(server, name) > old for name, old in zip(names, before, strict=True)):
        assert time.monotonic() < end, server.metrics()
        time.sleep(0.5)
    assert count(server, "lightspec_spec_decode_num_accepted_tokens") <= count(server, names[-1])


@pytest.mark.parametrize("api", ["lightllm", "openai"])
def test_the_benchmark_client_measures_the_server(server: Server, tmp_path: Path, api: str) -> None:
    problems = tmp_path / "problems.jsonl"
    words = (" ".join(f"t{token}" for token in prompt) for prompt in PROMPTS)
    problems.write_text("\n".join(json.dumps({"question": text, "answer": "#### 1"}) for text in words))
    load = ("--dataset", "gsm8k", "--dataset-path", str(problems), "--concurrency", "1", "4")
    size = ("--num-prompts", "4", "--max-tokens", str(LENGTH), "--num-warmups", "1")
    url = f"http://127.0.0.1:{server.port}"
    assert main(["bench", "--url", url, "--api", api, *load, *size, "--out", str(tmp_path / "out")]) == 0
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "out").glob("client-*.json")]
    assert sorted(record["max_concurrency"] for record in records) == [1, 4]
    for record in records:
        assert (record["completed"], record["failed"]) == (4, 0)
        assert record["output_lens"] == [LENGTH] * 4
        assert record["generated_texts"] == records[0]["generated_texts"]
        assert record["spec_decode_source"] == "lightspec"
