"""What a measurement of a server asks for, checked before anything is sent."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightspec_lightllm.bench.datasets import FORMATS
from lightspec_lightllm.errors import ConfigError

API_NAMES = ("openai-chat", "openai", "lightllm")
LATENCIES = ("ttft", "tpot", "itl", "e2el", "client_queue_time")
"""Of ``--percentile-metrics``: time to first token, per output token, between events, of a whole request, unsent."""
SLO_NAMES = ("ttft", "tpot", "e2el")
DEFAULT_CONCURRENCY = (1, 8, 32)


@dataclass(frozen=True)
class SamplingOptions:
    """How every answer is sampled. ``top_p`` None is left to the server."""

    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float | None = None
    seed: int = 0
    """Of the first request; the next have the next. Sent only where the temperature is above 0."""
    ignore_eos: bool = False
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Fields put into every request as they are (for LightLLM's API: into its ``parameters``)."""


@dataclass(frozen=True)
class Load:
    """How requests are offered. Open loop: Poisson arrivals at ``request_rate``. Closed loop: a rate of infinity."""

    request_rate: float = math.inf
    """Requests per second."""
    max_concurrency: int | None = None
    """Requests in flight at most; what arrives beyond waits in the client."""

    def __str__(self) -> str:
        rate = "" if math.isinf(self.request_rate) else f"{self.request_rate:g} requests/s"
        in_flight = "" if self.max_concurrency is None else f"{self.max_concurrency} in flight"
        return ", ".join(part for part in (rate, in_flight) if part)

    @property
    def stem(self) -> str:
        """For names of files."""
        rate = "" if math.isinf(self.request_rate) else f".rate{self.request_rate:g}"
        return rate + ("" if self.max_concurrency is None else f".c{self.max_concurrency}")


@dataclass(frozen=True)
class ClientOptions:
    """One command: every dataset under every load. Raises ConfigError for a value that cannot be measured."""

    url: str
    api: str = "openai-chat"
    model: str | None = None
    """None: the first that the server names."""
    label: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    datasets: tuple[str, ...] = ("humaneval", "gsm8k", "sharegpt")
    dataset_path: Path | None = None
    prompt_template: str | None = None
    concurrency: tuple[int, ...] = ()
    """Empty: 1, 8 and 32 in a closed loop, no limit with a request rate."""
    request_rates: tuple[float, ...] = (math.inf,)
    num_prompts: int | None = None
    """Per run; None: twice the requests in flight, at least 8 (64 without a limit)."""
    num_warmups: int | None = None
    """Before each run; None: the requests in flight, at most 8."""
    seed: int = 0
    sampling: SamplingOptions = SamplingOptions()
    tokenizer: Path | None = None
    goodput: dict[str, float] = field(default_factory=dict)
    """The most milliseconds that a good request takes, by name of `SLO_NAMES`; empty: goodput is not asked for."""
    percentile_metrics: tuple[str, ...] = ("ttft", "tpot", "itl", "e2el")
    percentiles: tuple[float, ...] = (50.0, 90.0, 99.0)
    timeout: float = 600.0
    """Seconds that a request may take in all."""
    max_retries: int = 0
    """Of a request that the server was too busy for (429, 503)."""
    wait: float = 0.0
    """Seconds to wait for a server that is not up yet."""
    flush_path: str | None = None
    """POSTed before every run, so that no run is answered out of the prefix cache that another filled."""
    run_code: bool = False

    def __post_init__(self) -> None:
        self._check_server()
        for name in self.datasets:
            if name not in FORMATS:
                raise ConfigError(f"--dataset: {name!r} is unknown; expected one of {', '.join(FORMATS)}")
        if self.dataset_path is not None and len(self.datasets) != 1:
            raise ConfigError("--dataset-path: say which kind of file it is with exactly one --dataset")
        if self.prompt_template is not None and "{prompt}" not in self.prompt_template:
            raise ConfigError(f"--prompt-template: expected a text with {{prompt}} in it, got {self.prompt_template!r}")
        if self.run_code and "humaneval" not in self.datasets:
            raise ConfigError("--run-code: only the answers to humaneval are code; leave it out")
        self._check_numbers()
        for label, names, known in (
            ("--goodput", tuple(self.goodput), SLO_NAMES),
            ("--percentile-metrics", self.percentile_metrics, LATENCIES),
        ):
            for name in names:
                if name not in known:
                    raise ConfigError(f"{label}: {name!r} is unknown; expected some of {', '.join(known)}")

    def _check_server(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"--url: expected http://HOST:PORT, got {self.url!r}")
        if self.api not in API_NAMES:
            raise ConfigError(f"--api: {self.api!r} is unknown; expected one of {', '.join(API_NAMES)}")

    def _check_numbers(self) -> None:
        sampling = self.sampling
        whole: tuple[tuple[str, Sequence[int | None], int], ...] = (
            ("--concurrency", self.concurrency, 1),
            ("--num-prompts", (self.num_prompts,), 1),
            ("--num-warmups", (self.num_warmups,), 0),
            ("--max-tokens", (sampling.max_tokens,), 1),
            ("--max-retries", (self.max_retries,), 0),
        )
        for label, counts, least in whole:
            for count in counts:
                if count is not None and count < least:
                    raise ConfigError(f"{label}: expected at least {least}, got {count}")
        real: tuple[tuple[str, Sequence[float | None], float, float], ...] = (
            ("--temperature", (sampling.temperature,), 0.0, math.inf),
            ("--top-p", (sampling.top_p,), 0.0, 1.0),
            ("--goodput", tuple(self.goodput.values()), 0.0, math.inf),
            ("--metric-percentiles", self.percentiles, 0.0, 100.0),
            ("--wait", (self.wait,), 0.0, math.inf),
        )
        for label, values, low, high in real:
            for value in values:
                if value is not None and not low <= value <= high:
                    raise ConfigError(f"{label}: expected {low:g} to {high:g}, got {value:g}")
        for label, values in (("--request-rate", self.request_rates), ("--timeout", (self.timeout,))):
            for value in values:
                if not value > 0:
                    raise ConfigError(f"{label}: expected more than 0, got {value:g}")
        for label, given in (
            ("--dataset", self.datasets),
            ("--request-rate", self.request_rates),
            ("--metric-percentiles", self.percentiles),
            ("--percentile-metrics", self.percentile_metrics),
            ("--concurrency", self.concurrency),
        ):
            if len(set(given)) != len(given):
                raise ConfigError(f"{label}: a value is given twice in {' '.join(map(str, given))}")

    @property
    def base_url(self) -> str:
        """Without a slash or ``/v1`` at its end, both of which people paste."""
        return self.url.rstrip("/").removesuffix("/v1")

    def loads(self) -> list[Load]:
        """Every load, in the order in which they are run."""
        return [
            Load(rate, concurrency)
            for rate in self.request_rates
            for concurrency in self.concurrency or (DEFAULT_CONCURRENCY if math.isinf(rate) else (None,))
        ]

    def prompts_in(self, load: Load) -> int:
        if self.num_prompts is not None:
            return self.num_prompts
        return 64 if load.max_concurrency is None else max(2 * load.max_concurrency, 8)

    def warmups_in(self, load: Load) -> int:
        return min(load.max_concurrency or 8, 8) if self.num_warmups is None else self.num_warmups
