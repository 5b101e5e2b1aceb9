"""The options of ``lightspec bench --url``, in the names of ``vllm bench serve`` where it has them."""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

from lightspec_lightllm.client.options import API_NAMES, LATENCIES, SLO_NAMES, ClientOptions, SamplingOptions
from lightspec_lightllm.errors import ConfigError

DESCRIPTION = (
    "Measures a running server: any that speaks OpenAI's API or LightLLM's. Every dataset is run under every load; a "
    "table is printed and a JSON file per run goes to --out. With --compare: result files against each other."
)
EPILOG = (
    "Ends with 0; 1 when all requests of a run failed; 2 after an error to act on; 130 after Ctrl-C, which still shows "
    "and writes what was measured. The key in the environment variable OPENAI_API_KEY is sent where it is set."
)


def hands_over(arguments: Sequence[str]) -> bool:
    """Whether a command line of ``lightspec bench`` is about a server rather than the embedded engine."""
    return any(word.partition("=")[0] in ("--url", "--compare") for word in arguments)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default, sampling = ClientOptions("http://localhost"), SamplingOptions()
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    add = parser.add_argument_group("server").add_argument
    add("--url", metavar="URL", help="http://HOST:PORT of the server")
    add("--api", default=default.api, metavar="API", help=f"{', '.join(API_NAMES)} (default: {default.api})")
    add("--model", metavar="NAME", help="as requests name it (default: the first in /v1/models)")
    add("--header", nargs="+", default=(), metavar="NAME=VALUE", help="sent with every request")
    add("--wait", type=float, default=default.wait, metavar="S", help="seconds to wait for a server that is starting")
    add("--timeout", type=float, default=default.timeout, metavar="S", help="seconds for a request in all")
    add("--max-retries", type=int, default=0, metavar="N", help="times to ask a busy server (429, 503) again")
    add("--flush-path", metavar="PATH", help="POST this before every run, to empty a prefix cache (/flush_cache, ...)")
    add = parser.add_argument_group("load").add_argument
    add("--concurrency", type=int, nargs="+", default=(), metavar="N", help="requests in flight (default: 1 8 32)")
    add(
        "--request-rate",
        type=float,
        nargs="+",
        default=(math.inf,),
        metavar="R",
        help="requests per second, Poisson; inf (default): the next as soon as one is answered",
    )
    add("--num-prompts", type=int, metavar="N", help="requests of a run (default: twice those in flight, at least 8)")
    add("--num-warmups", type=int, metavar="N", help="before each run (default: those in flight, at most 8)")
    add("--seed", type=int, default=0, help="chooses prompts and arrivals; seeds the sampling")
    add = parser.add_argument_group("prompts and answers").add_argument
    add("--dataset", action="extend", nargs="+", metavar="NAME", help="humaneval, gsm8k, sharegpt (default: all three)")
    add("--dataset-path", type=Path, metavar="FILE", help="the set's public file instead of the fetched one")
    add(
        "--prompt-template",
        metavar="TEXT",
        help="text around {prompt}, such as a chat template for the APIs that apply none (openai, lightllm)",
    )
    add("--max-tokens", type=int, default=sampling.max_tokens, metavar="N", help="tokens per answer at most")
    add("--temperature", type=float, default=sampling.temperature, help="0: greedy")
    add("--top-p", type=float, metavar="P", help="sample among the likeliest tokens that sum up to P")
    add("--ignore-eos", action="store_true", help="let every answer have --max-tokens tokens, if the server can")
    add("--extra-body", default="{}", metavar="JSON", help="fields for every request (lightllm: for its parameters)")
    add(
        "--run-code",
        action="store_true",
        help="check the answers to HumanEval with its official checker. This RUNS CODE THAT THE MODEL WROTE on this "
        "machine, as this user, with limits of time and memory and, where possible, without network",
    )
    add = parser.add_argument_group("numbers").add_argument
    add(
        "--goodput",
        nargs="+",
        default=(),
        metavar="NAME:MS",
        help=f"the most that a good request takes, such as ttft:500 tpot:50 ({', '.join(SLO_NAMES)})",
    )
    add(
        "--percentile-metrics",
        default=",".join(default.percentile_metrics),
        metavar="NAMES",
        help=f"of {', '.join(LATENCIES)}, separated by commas",
    )
    add("--metric-percentiles", default="50,90,99", metavar="NUMBERS", help="separated by commas")
    add(
        "--tokenizer", type=Path, metavar="PATH", help="tokenizer.json (or its folder) for servers that count no tokens"
    )
    add = parser.add_argument_group("results").add_argument
    add("--label", metavar="TEXT", help="what a comparison calls this")
    add("--out", type=Path, default=Path("bench-results"), metavar="DIR", help="folder for JSON and plots")
    add("--compare", type=Path, nargs="+", metavar="PATH", help="result files, or folders of them, to compare")


def read_arguments(given: argparse.Namespace) -> ClientOptions:
    """Raises ConfigError for what cannot be read or measured."""
    sampling = SamplingOptions(
        max_tokens=given.max_tokens,
        temperature=given.temperature,
        top_p=given.top_p,
        seed=given.seed,
        ignore_eos=given.ignore_eos,
        extra_body=_json_object("--extra-body", given.extra_body),
    )
    objectives = [_split("--goodput", word, ":") for word in given.goodput]
    return ClientOptions(
        url=given.url,
        api=given.api,
        model=given.model,
        label=given.label,
        headers=dict(_split("--header", word, "=") for word in given.header),
        datasets=tuple(given.dataset or ClientOptions.datasets),
        dataset_path=given.dataset_path,
        prompt_template=given.prompt_template,
        concurrency=tuple(given.concurrency),
        request_rates=tuple(given.request_rate),
        num_prompts=given.num_prompts,
        num_warmups=given.num_warmups,
        seed=given.seed,
        sampling=sampling,
        tokenizer=given.tokenizer,
        goodput={name: _number("--goodput", most) for name, most in objectives},
        percentile_metrics=tuple(given.percentile_metrics.split(",")),
        percentiles=tuple(_number("--metric-percentiles", word) for word in given.metric_percentiles.split(",")),
        timeout=given.timeout,
        max_retries=given.max_retries,
        wait=given.wait,
        flush_path=given.flush_path,
        run_code=given.run_code,
    )


def _split(label: str, word: str, by: str) -> tuple[str, str]:
    name, found, value = word.partition(by)
    if not found or not name:
        raise ConfigError(f"{label}: expected NAME{by}VALUE, got {word!r}")
    return name.strip(), value.strip()


def _number(label: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ConfigError(f"{label}: expected a number, got {word!r}") from None


def _json_object(label: str, text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{label}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{label}: expected a JSON object, got {text}")
    return found
