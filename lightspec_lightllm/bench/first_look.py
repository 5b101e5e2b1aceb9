"""A benchmark without arguments: answers as long as a first look has time for on this machine."""

import dataclasses

from lightspec_lightllm.bench.datasets import Dataset
from lightspec_lightllm.bench.experiment import Host, fitting_prompts
from lightspec_lightllm.bench.options import BenchOptions
from lightspec_lightllm.planner import CostModel

SECONDS = 120.0
"""What the runs of a first look may take in all."""

LEAST_TOKENS = 12
"""Answers are not shortened below this, however slow the machine is: a plan needs rounds to show anything."""

PROMPT_ROW = 0.8
"""What a token of a prompt takes, over a row that is verified: it has no use for the vocabulary's product."""

UNEVEN = 1.3
"""What runs take over full batches and prompts one after the other: batches fill and drain, and drafts are made."""


def is_default(options: BenchOptions) -> bool:
    """Whether nothing was asked for that says how much to run."""
    return options == BenchOptions(temperature=options.temperature, seed=options.seed)


def predicted_seconds(options: BenchOptions, costs: CostModel, prompt_tokens: dict[str, list[int]]) -> float:
    """About what all runs take together.

    Args:
        prompt_tokens: lengths of the prompts of each dataset, as many as the largest run has.
    """
    most = max(options.concurrency)
    row_ms = PROMPT_ROW * (costs.target_ms(8 * most, most, 0.0) - costs.target_ms(most, most, 0.0)) / (7 * most)
    ms = 0.0
    for lengths in prompt_tokens.values():
        for concurrency in options.concurrency:
            count = options.prompts_in(concurrency)
            context = sum(lengths) / len(lengths)
            ms += row_ms * sum(lengths[index % len(lengths)] for index in range(count))
            ms += options.max_tokens * count / concurrency * costs.target_ms(concurrency, concurrency, context)
    return UNEVEN * 1e-3 * ms * len(options.arms) * options.repetitions


def fitted(options: BenchOptions, host: Host, costs: CostModel, datasets: list[Dataset]) -> BenchOptions:
    """The same with answers that are shortened until the runs take `SECONDS`, or to `LEAST_TOKENS`."""
    count = max(map(options.prompts_in, options.concurrency))
    lengths = {
        dataset.name: [len(tokens) for _, tokens in fitting_prompts(host, dataset, count, options)[0]]
        for dataset in datasets
    }
    for max_tokens in range(options.max_tokens, LEAST_TOKENS, -1):
        shorter = dataclasses.replace(options, max_tokens=max_tokens)
        if predicted_seconds(shorter, costs, lengths) <= SECONDS:
            return shorter
    return dataclasses.replace(options, max_tokens=min(options.max_tokens, LEAST_TOKENS))
