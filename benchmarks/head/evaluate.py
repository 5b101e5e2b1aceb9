"""Acceptance and calibration of a draft head on recorded responses of the target.

    python -m benchmarks.head.evaluate --record code=humaneval.jsonl --record chat=questions.jsonl --data data/eval
    python -m benchmarks.head.evaluate --data data/eval --weights head.npz

The first form records first: each file has one JSON object per line with a ``prompt``, the served user's message, which
the target answers greedily. Then every position of every response is drafted from, teacher-forced, as if the round
began there.
"""

import argparse
import json
from pathlib import Path

import torch

from benchmarks.head.acceptance import measure
from benchmarks.head.generate import CAPTURE_LAYERS, Job, Recorder, record
from benchmarks.head.network import DraftHead
from benchmarks.head.recording import Recording, load_shard, save_shard, shards
from lightspec_lightllm.drafters.checkpoint import SHIPPED, load_weights
from lightspec_lightllm.engine import Engine, EngineOptions, SamplingParams, Sequence, load_model
from lightspec_lightllm.engine.checkpoint import open_checkpoint
from lightspec_lightllm.engine.fetch import default_model_path


def record_answers(sources: list[str], folder: Path, model_path: Path | None, limit: int, max_tokens: int) -> None:
    """Answer the prompts of ``kind=file`` sources greedily and store the recordings."""
    model, tokenizer = load_model(model_path, "float32")
    model.capture_layers = CAPTURE_LAYERS
    engine = Engine(model, tokenizer, EngineOptions(weights="float32", max_requests=32))
    jobs: list[Job] = []
    for source in sources:
        kind, _, file = source.partition("=")
        prompts = [json.loads(line)["prompt"] for line in Path(file).read_text().splitlines()]
        for index in range(min(limit, len(prompts))):
            prompt = prompts[index * len(prompts) // min(limit, len(prompts))]
            jobs.append(Job(tokenizer.chat(prompt), SamplingParams(max_tokens), kind))
    done: list[Recording] = []

    def finished(job: Job, seq: Sequence) -> None:
        done.append(record(job, seq))

    Recorder(engine, cut_loops=False).run(jobs, finished)
    folder.mkdir(parents=True, exist_ok=True)
    save_shard(folder / "shard-eval-0000.npz", done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of recordings")
    parser.add_argument("--record", action="append", default=[], metavar="KIND=FILE", help="record these first")
    parser.add_argument("--limit", type=int, default=40, help="prompts per file, spread evenly over it")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--model", type=Path, default=None, help="the target's file; by default it is downloaded once")
    options = parser.parse_args()
    if options.record:
        record_answers(options.record, options.data, options.model, options.limit, options.max_tokens)
    checkpoint = open_checkpoint(options.model or default_model_path())
    embedding = torch.from_numpy(checkpoint.tensor("embedding"))
    weights = load_weights(options.weights)
    head = DraftHead.load(weights)
    vocabulary = torch.from_numpy(weights.draft_vocab).long()
    recordings = [each for path in shards(options.data) for each in load_shard(path)]
    for kind in sorted({each.kind for each in recordings}):
        chosen = [each for each in recordings if each.kind == kind]
        found = measure(
            head, chosen, vocabulary, embedding,
            steps=options.steps, temperature=weights.geometry.confidence_temperature,
        )  # fmt: skip
        responses = torch.cat([torch.from_numpy(each.tokens[each.prompt_length :]).long() for each in chosen])
        covered = float(torch.isin(responses, vocabulary).float().mean())
        print(f"{kind}: {len(chosen)} responses, draft vocabulary covers {covered:.1%} of their tokens")
        print("  conditional acceptance " + " ".join(f"{chance:.3f}" for chance in found.conditional))
        print(f"  accepted per round of {options.steps}: {found.mean_accepted:.2f}")
        for step in (0, 2):
            deciles = " ".join(f"{sure:.2f}/{hit:.2f}" for _, sure, hit in found.calibration(step))
            print(f"  step {step + 1}, confidence/hit rate by decile: {deciles}")


if __name__ == "__main__":
    main()
