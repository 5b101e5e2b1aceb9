"""The command line: parse, build, print. Everything it can do can be called without it."""

import argparse
import dataclasses
import errno
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from lightspec_lightllm import __version__
from lightspec_lightllm.bench.options import BenchOptions
from lightspec_lightllm.client.arguments import add_arguments, hands_over
from lightspec_lightllm.config import STRATEGIES, Config, check_strategy, load_config
from lightspec_lightllm.drafters.names import DRAFTER_NAMES
from lightspec_lightllm.errors import ConfigError, LightspecError
from lightspec_lightllm.machine import REPOSITORY
from lightspec_lightllm.server import arguments as server_arguments
from lightspec_lightllm.simulate.options import MAX_SEEDS, PlanTime, SimulateOptions

_COSTS = Path("costs") / "h200-qwen3-14b.yaml"
_INSTALLED_COSTS = Path(__file__).parent / _COSTS
REFERENCE_COSTS = _INSTALLED_COSTS if _INSTALLED_COSTS.exists() else REPOSITORY / "configs" / _COSTS
"""A wheel carries the file; a checkout has it among its configurations."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns 0, 1 if a check finds a problem, 2 after an error to act on, 130 after Ctrl-C."""
    started = time.perf_counter()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == ["bench"] and hands_over(words):
            return bench_server(words[1:])
        arguments = build_parser().parse_args(words)
        if arguments.command == "bench":
            return bench(arguments, started)
        run = {"simulate": simulate, "plan": plan, "generate": generate, "serve": serve}
        run |= {"doctor": doctor, "patch": patch}
        return run[arguments.command](arguments)
    except LightspecError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_ERROR
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        print(
            f"error: cannot write all of it ({error.strerror}); make room, or give another place",
            file=sys.stderr,
        )
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


class Parser(argparse.ArgumentParser):
    """Reports a bad command line as every other error is reported: one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="lightspec", description="Dynamic speculative decoding on real text, on this machine.")
    parser.add_argument("--version", action="version", version=f"lightspec {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_bench(commands.add_parser("bench", help="measure strategies against each other on real prompts"))
    _add_generate(commands.add_parser("generate", help="answer one prompt, streamed"))
    _add_serve(commands.add_parser("serve", help="serve OpenAI's and LightLLM's API, metrics and a dashboard"))
    _add_plan(commands.add_parser("plan", help="explain one decision of the planner"))
    _add_simulate(commands.add_parser("simulate", help="plan a simulated workload; compare arms with the optimum"))
    _add_doctor(commands.add_parser("doctor", help="check that dynamic MTP would start on a LightLLM"))
    _add_patch(commands.add_parser("patch", help="let LightLLM itself load this package, or undo that"))
    return parser


def _add_bench(parser: argparse.ArgumentParser) -> None:
    default = BenchOptions()
    parser.description = (
        "Runs every arm on the same prompts, alternating, and prints a table; JSON and plots go to --out. "
        "Without arguments: a first look in about three minutes on two cores. For numbers to rely on, raise "
        "--output-tokens, --max-tokens and --repetitions."
    )
    parser.epilog = (
        "With --url URL a running server is measured instead, and with --compare PATH PATH results are compared, both "
        "with options of their own: see lightspec bench --url URL --help."
    )
    add = parser.add_argument
    add("--dataset", action="extend", nargs="+", metavar="NAME", help="humaneval, gsm8k, sharegpt (default: all three)")
    add("--dataset-path", type=Path, metavar="FILE", help="the set's public file instead of the fetched one")
    add("--concurrency", type=int, nargs="+", default=default.concurrency, metavar="N", help="requests in flight")
    add("--arms", nargs="+", default=default.arms, metavar="ARM", help=f"fixed:K, {', '.join(STRATEGIES)}")
    add(
        "--num-prompts",
        type=int,
        metavar="N",
        help="prompts per run (default: the requests in flight, at least 2; more with --output-tokens)",
    )
    add(
        "--output-tokens",
        type=int,
        metavar="N",
        help="end a run after N generated tokens and keep it full until then: prompts begin anew where they run out, "
        "and what is not finished is given up (default: a run ends with its last answer, its batch draining)",
    )
    add("--repetitions", type=int, default=default.repetitions, metavar="N", help="runs of each arm in each cell")
    add(
        "--interleave",
        action="store_true",
        help="arms take turns of half a second, each on an engine of its own: precise on a machine whose speed changes",
    )
    add("--out", type=Path, default=Path("bench-results"), metavar="DIR", help="folder for JSON and plots")
    add(
        "--max-tokens",
        type=int,
        metavar="N",
        help=f"tokens per answer at most (default: {default.max_tokens}; without arguments fewer on a slow machine)",
    )
    add("--temperature", type=float, default=default.temperature, help="0: greedy")
    add("--seed", type=int, default=default.seed, help="chooses the prompts and seeds the sampling")
    add(
        "--record",
        action="store_true",
        help="also write a trace: the drafts at every position of the texts, which lightspec simulate replays under "
        "any plan (trace_file in a scenario)",
    )
    _add_engine(parser)


def _add_generate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("prompt", metavar="PROMPT", help="the user's message")
    add("--compare", action="store_true", help="answer again with speculation off; show both times")
    add("--strategy", help=f"fixed:K, {', '.join(STRATEGIES)}")
    add("--max-tokens", type=int, metavar="N", help="tokens of the answer at most")
    add("--temperature", type=float, help="0: greedy")
    add("--top-k", type=int, metavar="N", help="sample among the N likeliest tokens; 0: all")
    add("--top-p", type=float, metavar="P", help="sample among the likeliest tokens that sum up to P")
    add("--seed", type=int, help="makes sampling repeatable")
    add("--stop", action="append", metavar="TEXT", help="end the answer before this text (repeatable)")
    _add_engine(parser)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    server_arguments.add_arguments(parser)
    _add_engine(parser)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Plans one round of a batch that a YAML file describes. Prints every budget and every number of draft steps "
        "that was compared, with gain, time and value, what was chosen and why not the next."
    )
    parser.epilog = (
        "Keys of the file: num_requests, max_draft_steps, proposed (drafts waiting: a number, or one per request), "
        "acceptance (per depth) or confidence (a list per request), drafter (serial, serial_no_kv, chained, block, "
        "free), draft_steps (by now), context_tokens, draft_backlog, speedup or price (of time), options (of the "
        "strategy), and costs (tables), costs_file or roofline_file. configs/states/chat-64.yaml explains them."
    )
    parser.add_argument("--explain", type=Path, required=True, metavar="STATE", help="YAML file of the batch")
    parser.add_argument("--all", action="store_true", help="show every budget, not only those near the chosen one")


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    default = SimulateOptions()
    parser.description = (
        "Serves a simulated workload with every arm, on the same text, and prints how far each is from the best static "
        "setting and from the optimum; JSON and plots go to --out. Several values of --requests, --max-draft-steps or "
        "--drafter-kind make a variant each. A scenario with a trace_file replays what lightspec bench --record wrote "
        "(see configs/scenarios/replay.yaml)."
    )
    add = parser.add_argument
    add("scenario", type=Path, nargs="?", metavar="SCENARIO", help="YAML, such as configs/scenarios/stationary.yaml")
    add(
        "--reference",
        type=Path,
        nargs="?",
        const=REFERENCE_COSTS,
        metavar="COSTS",
        help="instead of a scenario: the published comparison with 3, 7 and 11 fixed steps, on a modelled GPU "
        "(default: configs/costs/h200-qwen3-14b.yaml); heeds --seeds, --plan-time, --rounds and --out",
    )
    add("--arms", nargs="+", default=default.arms, metavar="ARM", help=f"default: {' '.join(default.arms)}")
    add("--seeds", type=int, default=len(default.seeds), metavar="N", help="runs of each arm, one per seed")
    add("--plan-time", default="measured", metavar="TIME", help="charged per round: measured, none or microseconds")
    add("--requests", type=int, nargs="+", default=(), metavar="N", help="requests at a time")
    add("--max-draft-steps", type=int, nargs="+", default=(), metavar="K", help="the most drafts per request and round")
    add("--drafter-kind", nargs="+", default=(), metavar="KIND", help="serial, serial_no_kv, chained, block, free")
    add("--confidence", metavar="WHEN", help="live, late or none")
    add("--rounds", type=int, metavar="N", help="rounds of every segment")
    add(
        "--search-rounds",
        type=int,
        default=default.search_rounds,
        metavar="N",
        help="rounds of each run by which static settings and prices of time are found",
    )
    add("--out", type=Path, default=Path("simulate-results"), metavar="DIR", help="folder for JSON and plots")


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Prints one line for each thing that dynamic MTP depends on, with the remedy where it is wrong. Needs no GPU "
        "and imports nothing of LightLLM."
    )
    parser.usage = "lightspec doctor [-h] [--lightllm DIR] [-- LIGHTLLM-ARGUMENT ...] | --draft DIR"
    parser.add_argument(
        "--lightllm", type=Path, metavar="DIR", help="what holds the package lightllm (default: the installed one)"
    )
    parser.add_argument(
        "--draft", type=Path, metavar="DIR", help="say instead what a drafter is and which targets it fits"
    )
    parser.add_argument("options", nargs="*", metavar="LIGHTLLM-ARGUMENT", help="as they are given to the server")


def _add_patch(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "With the patch, python -m lightllm.server.api_server takes --dynamic_mtp; without it, "
        "python -m lightspec_lightllm.api_server does. A tree that it was not made for is refused."
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="say whether the patch is in the tree")
    action.add_argument("--apply", action="store_true", help="add it")
    action.add_argument("--revert", action="store_true", help="take it out")
    parser.add_argument("folder", type=Path, metavar="LIGHTLLM_DIR", help="what holds the package lightllm")


def _add_engine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="YAML; flags win over it (see configs/embedded.yaml)")
    add("--drafter", choices=DRAFTER_NAMES, help="what proposes tokens")
    add("--max-draft-steps", type=int, metavar="K", help="the most drafts per request and round, 1 to 15")
    add("--weights", choices=("float16", "float32"), help="how the target's weights are kept")
    add("--threads", type=int, metavar="N", help="engine threads; 0: measure at start")
    add("--model", metavar="PATH", help="a GGUF file instead of the downloaded model")


def resolve(arguments: argparse.Namespace) -> Config:
    """The configuration file, or the defaults, with the flags that were given on top."""
    config = Config() if arguments.config is None else load_config(arguments.config)

    def override(section: str, **flags: object) -> None:
        nonlocal config
        given = {name: value for name, value in flags.items() if value is not None}
        if given:
            config = dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **given)})

    override("model", path=arguments.model)
    override("engine", weights=arguments.weights, threads=arguments.threads)
    override("drafter", name=arguments.drafter)
    override("planner", max_draft_steps=arguments.max_draft_steps)
    return config


def bench(arguments: argparse.Namespace, started: float) -> int:
    options = BenchOptions(
        datasets=tuple(arguments.dataset or BenchOptions().datasets),
        dataset_path=arguments.dataset_path,
        concurrency=tuple(arguments.concurrency),
        arms=tuple(arguments.arms),
        num_prompts=arguments.num_prompts,
        output_tokens=arguments.output_tokens,
        max_tokens=BenchOptions.max_tokens if arguments.max_tokens is None else arguments.max_tokens,
        repetitions=arguments.repetitions,
        seed=arguments.seed,
        temperature=arguments.temperature,
        interleave=arguments.interleave,
        record=arguments.record,
    )
    config = resolve(arguments)
    for arm in options.arms:
        check_strategy(arm, config.planner, key="--arms")

    from lightspec_lightllm.bench.command import run_bench
    from lightspec_lightllm.bench.first_look import is_default

    experiment = run_bench(
        config,
        options,
        arguments.out,
        date=datetime.now().astimezone(),
        started=started,
        shorten=arguments.max_tokens is None and is_default(options),
    )
    return EXIT_INTERRUPTED if experiment.interrupted else 0


def bench_server(words: Sequence[str]) -> int:
    parser = Parser(prog="lightspec bench")
    add_arguments(parser)
    arguments = parser.parse_args(words)

    from lightspec_lightllm.client.command import run_command

    return run_command(arguments)


def plan(arguments: argparse.Namespace) -> int:
    from lightspec_lightllm.explain.command import run_explain

    return 0 if run_explain(arguments.explain, everything=arguments.all) else 1


def doctor(arguments: argparse.Namespace) -> int:
    from lightspec_lightllm.adapters.lightllm.doctor import examine
    from lightspec_lightllm.adapters.lightllm.drafters.doctor import examine_draft

    found = 0
    findings = examine(arguments.lightllm, arguments.options or None)
    for finding in findings if arguments.draft is None else examine_draft(arguments.draft):
        print(finding)
        found += finding.level == "problem"
    return 1 if found else 0


def patch(arguments: argparse.Namespace) -> int:
    from lightspec_lightllm.adapters.lightllm import patching

    addition = patching.read_patch()
    file = arguments.folder / addition.file
    if arguments.check:
        found = patching.state(arguments.folder, addition)
        print(f"{file}: the patch {'is applied' if found == 'applied' else 'fits'}")
    elif arguments.apply:
        before = patching.apply(arguments.folder, addition)
        print(f"{file}: {'applied' if before == 'absent' else 'the patch was applied already'}")
    else:
        before = patching.revert(arguments.folder, addition)
        print(f"{file}: {'reverted' if before == 'applied' else 'the patch was not applied'}")
    return 0


def serve(arguments: argparse.Namespace) -> int:
    if arguments.engine == "lightllm":
        server_arguments.hand_over(arguments)
    options, config = server_arguments.server_options(arguments), resolve(arguments)
    if arguments.strategy is not None:
        check_strategy(arguments.strategy, config.planner, key="--strategy")
        config = dataclasses.replace(config, planner=dataclasses.replace(config.planner, strategy=arguments.strategy))

    from lightspec_lightllm.server.command import run_serve

    return run_serve(config, options)


def simulate(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.seeds <= MAX_SEEDS:
        raise ConfigError(f"--seeds: expected 1 to {MAX_SEEDS}, got {arguments.seeds}")
    options = SimulateOptions(
        arms=tuple(arguments.arms),
        seeds=tuple(range(arguments.seeds)),
        plan_time=PlanTime.parse(arguments.plan_time),
        counts=tuple(arguments.requests),
        max_draft_steps=tuple(arguments.max_draft_steps),
        kinds=tuple(arguments.drafter_kind),
        confidence=arguments.confidence,
        rounds=arguments.rounds,
        search_rounds=arguments.search_rounds,
    )
    if (arguments.scenario is None) == (arguments.reference is None):
        raise ConfigError("simulate: expected either a SCENARIO or --reference (see lightspec simulate --help)")
    if arguments.reference is not None:
        from lightspec_lightllm.simulate.reference import run_reference

        run_reference(arguments.reference, options, arguments.out, date=datetime.now().astimezone())
        return 0

    from lightspec_lightllm.simulate.command import run_simulate

    run_simulate(arguments.scenario, options, arguments.out, date=datetime.now().astimezone())
    return 0


def generate(arguments: argparse.Namespace) -> int:
    config = resolve(arguments)
    flags = {
        "max_tokens": arguments.max_tokens,
        "temperature": arguments.temperature,
        "top_k": arguments.top_k,
        "top_p": arguments.top_p,
        "seed": arguments.seed,
        "stop": tuple(arguments.stop) if arguments.stop else None,
    }
    params = dataclasses.replace(config.sampling, **{name: v for name, v in flags.items() if v is not None})
    strategy = arguments.strategy or config.planner.strategy
    check_strategy(strategy, config.planner, key="--strategy")

    from lightspec_lightllm.bench.generate import run_generate

    run_generate(config, arguments.prompt, params, strategy, compare=arguments.compare)
    return 0


if __name__ == "__main__":
    sys.exit(main())
