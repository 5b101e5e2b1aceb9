"""Drafters that this package loads, through LightLLM's HTTP server as it is started from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.lightllm.harness.models import Models, cycle_text
from tests.adapters.lightllm.harness.server import PLUGIN, Server
from tests.adapters.lightllm.harness.workload import PROMPTS

pytestmark = [pytest.mark.lightllm, pytest.mark.slow]


@pytest.mark.parametrize(("mode", "steps"), [("eagle3", ("--mtp_step=3",)), ("dspark", ())])
def test_a_server_drafts_and_its_texts_are_the_targets(
    mode: str, steps: tuple[str, ...], tiny_models: Models, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("costs: {contexts: [16], repeats: 1, graph_sizes: 3, max_verify_rows: 16}")
    server = Server(
        PLUGIN,
        tiny_models.target("qwen3", "cycle"),
        [
            "--dynamic_mtp",
            f"--mtp_mode={mode}",
            *steps,
            f"--mtp_draft_model_dir={tiny_models.drafter(mode, 'always')}",
            f"--lightspec_config={config}",
        ],
        log=tmp_path / "server.log",
    )
    try:
        server.wait_until_ready()
        for prompt in PROMPTS[:2]:
            assert list(server.generate(list(prompt), 24).tokens) == cycle_text(prompt[-1], 24)
        assert server.interrupt() == 0
    finally:
        server.kill()
    told = (tmp_path / "server.log").read_text()
    assert f"dynamic MTP is on: lightspec, {mode}, K = " in told
