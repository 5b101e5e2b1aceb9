"""The way of samples through LightLLM's own client and metric server, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.adapters.lightllm.harness.launcher import ROOT, environment
from tests.adapters.lightllm.harness.models import Models

pytestmark = pytest.mark.lightllm

SCRIPT = """
import sys, threading, time
from tests.adapters.lightllm.harness import job, job_process, preload
preload.import_everything(plugin=True)
from lightspec_lightllm.adapters.lightllm.options import LightLLMConfig
config = LightLLMConfig().to_json() if sys.argv[2] == "on" else None
args = job_process.publish_start_args(job.Job(target=sys.argv[1], requests=(), lightspec=config))
args.model_name = "tiny"
from lightllm.server.metrics import manager
from lightllm.utils import shm_port_args
from rpyc.utils.server import ThreadedServer
port = job_process.free_port()
shm_port_args.get_shm_port_args = lambda: type("Ports", (), {"metric_port": port})
server = ThreadedServer(manager.MetricServer(args), port=port)
threading.Thread(target=server.start, daemon=True).start()

from lightspec_lightllm.adapters.lightllm import exposition
from lightspec_lightllm.adapters.lightllm.metrics import Totals
from tests.adapters.lightllm.reports import made
totals = Totals()
totals.add(made([3, 3], [2, 1], [3, 1]))
metrics = exposition.MetricServer()
metrics.push(totals.samples())
metrics.push(totals.samples())
until = time.monotonic() + 30
while b'lightspec_rounds_total{model_name="tiny"} 2.0' not in server.service.exposed_generate_latest():
    assert time.monotonic() < until
    time.sleep(0.01)
print(server.service.exposed_generate_latest().decode())
"""


def scrape(folder: str, dynamic: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, folder, dynamic],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def target(tiny_models: Models) -> str:
    return tiny_models.target("mistral", "mixed")


def test_samples_of_a_second_are_on_metrics_after_one_call(target: str) -> None:
    done = scrape(target, "on")
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    for line in (
        'lightspec_spec_decode_num_accepted_tokens_total{model_name="tiny"} 4.0',
        'lightspec_spec_decode_num_accepted_tokens_per_pos_total{model_name="tiny",position="1"} 2.0',
        'lightspec_verify_rows_count{model_name="tiny"} 2.0',
        'lightspec_wasted_rows_total{model_name="tiny"} 4.0',
    ):
        assert line in lines
    assert "# TYPE lightllm_queue_size gauge" in lines, "LightLLM's own metrics are there still"


@pytest.mark.slow
def test_a_metric_server_without_the_plugin_says_so_at_the_first_call(target: str) -> None:
    done = scrape(target, "off")
    assert done.returncode != 0
    assert "HostError: the metric server was started without this package" in done.stderr
