"""The way of round metrics from a model rank into LightLLM's ``/metrics``."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from lightspec_lightllm import metric_names as names
from lightspec_lightllm.adapters.lightllm import options
from lightspec_lightllm.adapters.lightllm.metrics import Sample
from lightspec_lightllm.errors import HostError
from lightspec_lightllm.metric_names import Metric

PUSH_NAME = f"{names.PREFIX}push"
"""Under this name the metric server takes a whole second's samples in one call."""


class Exposition:
    """Round metrics in a prometheus registry, in the place of one metric of LightLLM's monitor.

    The monitor knows a metric as something with ``labels(model_name=..)`` that has ``inc(amount)``. Here the amount is
    a second's samples: one remote call, whatever their number, and labels that the monitor's own interface has no
    words for.

    Args:
        registry: a ``prometheus_client.CollectorRegistry``.
        max_draft_steps: K; so many positions are there from the start.
    """

    def __init__(self, registry: Any, max_draft_steps: int) -> None:
        import prometheus_client

        kinds = {"counter": prometheus_client.Counter, "gauge": prometheus_client.Gauge}
        self._positions = max_draft_steps
        self._metrics: dict[str, tuple[Metric, Any]] = {}
        for metric in names.ROUND_METRICS:
            labels = ("model_name", *metric.labels)
            if metric.kind == "histogram":
                made: Any = prometheus_client.Histogram(
                    metric.name, metric.help, labels, registry=registry, buckets=metric.buckets
                )
            else:
                made = kinds[metric.kind](metric.name, metric.help, labels, registry=registry)
            self._metrics[metric.name] = (metric, made)

    def labels(self, *, model_name: str) -> _Labelled:
        """What takes samples of a model."""
        return _Labelled(self._metrics, model_name, self._positions)


class _Labelled:
    def __init__(self, metrics: dict[str, tuple[Metric, Any]], model_name: str, positions: int) -> None:
        self._metrics = metrics
        self._model_name = model_name
        for metric, made in metrics.values():
            for place in range(positions) if metric.labels else [None]:
                made.labels(model_name, *([] if place is None else [str(place)]))

    def inc(self, samples: tuple[Sample, ...]) -> None:
        """Take in samples. Those of an unknown name come from another version and are left out."""
        for name, label, value, count in samples:
            if name not in self._metrics:
                continue
            metric, made = self._metrics[name]
            child = made.labels(self._model_name, *([label] if metric.labels else []))
            for _ in range(count):
                child.observe(value) if metric.kind == "histogram" else child.inc(value)


def wrap_init_metrics(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """For `Monitor.init_metrics`: round metrics beside LightLLM's own."""

    @functools.wraps(original)
    def init_metrics(monitor: Any, args: Any) -> None:
        original(monitor, args)
        config = options.current()
        if config is not None and config.observe.metrics:
            exposition = Exposition(monitor.registry, config.planner.max_draft_steps)
            exposition.labels(model_name=monitor.model_name)  # zeros are shown before the first round
            monitor.monitor_registry[PUSH_NAME] = exposition

    return init_metrics


class MetricServer:
    """LightLLM's metric server as a rank sees it; connected at the first call, from the reporter's thread."""

    def __init__(self) -> None:
        self._client: Any = None

    def push(self, samples: tuple[Sample, ...]) -> None:
        """Hand samples over. Raises whatever keeps the server from being reached."""
        if self._client is None:
            from lightllm.server.metrics.manager import MetricClient
            from lightllm.utils.shm_port_args import get_shm_port_args

            client = MetricClient(get_shm_port_args().metric_port)
            if names.ROUNDS.name.encode() not in asyncio.run(client.generate_latest()):
                raise HostError("the metric server was started without this package; start the server with it")
            self._client = client
        self._client.counter_inc_by(PUSH_NAME, samples)
