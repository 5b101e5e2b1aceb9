"""`/metrics` counts what happened, and the Grafana dashboard asks only for what it has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightspec_lightllm import metric_names
from tests.server.serving import STEPS, Client, serving
from tests.server.test_load import leave, until

DASHBOARD = Path(__file__).parents[2] / "configs" / "grafana" / "lightspec.json"
PREFIX = "lightspec_spec_decode_num_"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Client, list[Any]]]:
    """A server after some load, and the details of its finished answers."""
    with serving() as running:
        client, choices = running.client, []
        for text in ("the an the an the an", "then", "a then a then"):
            body = {"prompt": text, "n": 2, "max_tokens": 60, "ignore_eos": True, "lightspec": {"detail": True}}
            choices += client.post("/v1/completions", body).json["choices"]
        leave(client, "/v1/completions", {"prompt": "the", "max_tokens": 250, "stream": True}, after=1)
        until(lambda: client.status()["load"]["free_slots"] == 1024 and not client.status()["in_flight"])
        yield client, choices


def total(metrics: dict[str, float], name: str) -> float:
    return sum(value for key, value in metrics.items() if key.partition("{")[0] == name)


def test_counters_agree_with_each_other_and_with_the_details(served: tuple[Client, list[Any]]) -> None:
    client, choices = served
    metrics = client.metrics()
    details = [choice["lightspec"] for choice in choices]
    accepted = sum(sum(detail["accept_lengths"]) - len(detail["accept_lengths"]) for detail in details)
    verified = sum(sum(detail["verified"]) for detail in details)
    assert metrics[f"{PREFIX}verified_tokens_total"] >= verified > 0
    assert metrics[f"{PREFIX}accepted_tokens_total"] >= accepted > 0
    assert total(metrics, f"{PREFIX}accepted_tokens_per_pos_total") == metrics[f"{PREFIX}accepted_tokens_total"]
    assert total(metrics, f"{PREFIX}verified_tokens_per_pos_total") == metrics[f"{PREFIX}verified_tokens_total"]
    drafted = metrics[f"{PREFIX}draft_tokens_total"]
    assert drafted == metrics[f"{PREFIX}verified_tokens_total"] + metrics[f"{PREFIX}trimmed_tokens_total"]
    assert metrics[f"{PREFIX}drafts_total"] <= metrics["lightspec_request_rounds_total"]
    rows = metrics["lightspec_request_rounds_total"] + metrics[f"{PREFIX}verified_tokens_total"]
    assert metrics["lightspec_verify_rows_sum"] == rows
    assert metrics["lightspec_wasted_rows_total"] == rows - metrics["lightspec_committed_tokens_total"]
    rounds = metrics["lightspec_rounds_total"]
    assert rounds == metrics["lightspec_draft_steps_count"]
    assert rounds > metrics["lightspec_round_seconds_count"] > 0, "of rounds that read no prompts"
    assert rounds == metrics['lightspec_stage_seconds_count{stage="target"}']
    assert metrics["lightspec_planner_seconds_total"] > 0
    assert 0 <= metrics["lightspec_calibration_error"] <= 1


def test_sequences_are_counted_by_how_they_ended(served: tuple[Client, list[Any]]) -> None:
    metrics = served[0].metrics()
    assert metrics['lightspec_requests_finished_total{reason="length"}'] == 6
    assert metrics['lightspec_requests_finished_total{reason="error"}'] == 0
    assert metrics["lightspec_time_to_first_token_seconds_count"] == 7
    assert metrics["lightspec_generation_tokens_total"] >= 360
    assert metrics["lightspec_request_accept_length_count"] >= 6
    assert metrics["lightspec_requests_running"] == metrics["lightspec_requests_waiting"] == 0
    assert metrics["lightspec_free_slots"] == 1024


def test_every_listed_metric_is_exposed_with_its_labels(served: tuple[Client, list[Any]]) -> None:
    exposed = {name.partition("{")[0] for name in served[0].metrics()}
    endings = {"counter": "_total", "gauge": "", "histogram": "_bucket"}
    for metric in (*metric_names.ROUND_METRICS, *metric_names.SERVER_METRICS):
        assert metric.name + endings[metric.kind] in exposed
    positions = [name for name in served[0].metrics() if name.startswith(f"{PREFIX}accepted_tokens_per_pos_total")]
    assert len(positions) == STEPS


def test_the_dashboard_asks_only_for_what_is_exposed(served: tuple[Client, list[Any]]) -> None:
    metrics = served[0].metrics()
    exposed = {name.partition("{")[0] for name in metrics}
    labels = {name.partition("{")[0]: set(re.findall(r'(\w+)="', name)) for name in metrics}
    queries = [target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]
    assert len(queries) > 30
    for query in queries:
        names = set(re.findall(r"\blightspec_\w+", query))
        assert names, query
        assert names <= exposed, query
        assert query.count("(") == query.count(")")
        for grouped in re.findall(r"by \((\w+)\)", query):
            assert all(grouped in labels[name] for name in names), query
    asked = {name for query in queries for name in re.findall(r"\blightspec_\w+", query)}
    mine = {metric.name for metric in (*metric_names.ROUND_METRICS, *metric_names.SERVER_METRICS)}
    unasked = {name for name in mine if not any(other.startswith(name) for other in asked)}
    assert unasked == {"lightspec_unreported_rounds", "lightspec_generation_tokens"}


def test_status_has_the_same_totals(served: tuple[Client, list[Any]]) -> None:
    status, metrics = served[0].status(), served[0].metrics()
    assert status["totals"]["rounds"] == metrics["lightspec_rounds_total"]
    assert status["totals"]["accepted"] == metrics[f"{PREFIX}accepted_tokens_total"]
    assert status["ended"]["length"] == 6
    assert status["state"] == "ready"
    assert status["engine"]["strategy"] == "lightspec"


def test_health_answers_get_and_head(served: tuple[Client, list[Any]]) -> None:
    assert served[0].get("/health").json == {"status": "ready"}
    assert served[0].call("HEAD", "/health").status == 200
