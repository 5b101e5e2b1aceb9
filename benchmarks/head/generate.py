"""Training data for the draft head: the target writes prompts, answers them, and its hidden states are kept.

    python -m benchmarks.head.generate --out data/train --tokens 500000

Prompts are sampled from the target itself out of the openings of ``openings.py``; answers come from the same float32
engine that serves, 60 % greedy and 40 % at temperature 0.8. A response that loops is cut after the second repetition.
Several runs with different ``--seed`` may write into one folder.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from benchmarks.head.openings import Opening, chat_messages, chat_openings, code_openings, maths_openings
from benchmarks.head.recording import Recording, save_shard
from lightspec_lightllm.engine import Engine, EngineOptions, SamplingParams, Sequence, load_model

CAPTURE_LAYERS = (2, 15, 27, 30)
"""Low, middle, high, and the stream that leaves the last of 30 layers."""
CODE = "Complete this Python function:\n```python\n"
MATHS = "Solve this problem step by step.\n\n"
LONGEST_PROMPT = 190
LONGEST_RESPONSE = 200
SHARD_TOKENS = 20_000


def wrap(kind: str, message: str) -> str:
    """A user's message as the benchmarks serve it."""
    if kind == "code":
        return f"{CODE}{message.rstrip()}\n```"
    return MATHS + message if kind == "maths" else message


@dataclass
class Job:
    """One request to the engine, and where its streams collect."""

    tokens: list[int]
    params: SamplingParams
    kind: str = ""
    text: str = ""
    streams: list[torch.Tensor] = field(default_factory=list)


class Recorder:
    """Runs jobs through the engine, as many at once as it admits, one row per request and round."""

    def __init__(self, engine: Engine, *, cut_loops: bool = True) -> None:
        self._engine = engine
        self._cut_loops = cut_loops

    def run(self, jobs: Iterable[Job], finished: Callable[[Job, Sequence], None]) -> None:
        """Call ``finished`` for every job, in the order in which they end."""
        engine, queue = self._engine, iter(jobs)
        live: dict[int, Job] = {}
        engine.prefill_listener = lambda seq, _, hidden: live[seq.request_id].streams.append(hidden.half())
        exhausted = False
        while live or not exhausted:
            while not exhausted and len(live) < engine.options.max_requests:
                job = next(queue, None)
                exhausted = job is None
                if job is not None:
                    live[engine.submit(job.tokens, job.params).request_id] = job
            seqs = engine.schedule(1)
            if seqs:
                ones = np.ones(len(seqs), dtype=np.int64)
                forward = engine.forward(seqs, np.array([[seq.tokens[-1]] for seq in seqs]), ones)
                sampled = engine.sample(forward, seqs, ones)
                engine.commit(seqs, sampled[:, None], ones)
                for row, seq in enumerate(seqs):
                    if forward.hidden is not None:
                        live[seq.request_id].streams.append(forward.hidden[row : row + 1].half())
                    if self._cut_loops and seq.num_generated % 10 == 0 and loops(seq.tokens[seq.prompt_length :]):
                        engine.cancel(seq.request_id)
            for seq in engine.take_finished():
                finished(live.pop(seq.request_id), seq)


def loops(response: list[int]) -> bool:
    """Whether a response ends in two turns of a cycle, over 60 tokens at least."""
    count = len(response)
    for period in range(1, min(100, count // 2) + 1):
        span = max(2 * period, 60)
        if count >= span and response[count - span : count - period] == response[count - span + period :]:
            return True
    return False


def write_prompts(engine: Engine, openings: list[Opening], seed: int) -> list[tuple[str, str]]:
    """(kind, message) of every opening that the target completes to a usable message."""
    tokenizer = engine.tokenizer
    messages: list[tuple[str, str]] = []
    by_job: dict[int, Opening] = {}

    def jobs() -> Iterable[Job]:
        for index, opening in enumerate(openings):
            prefix = {"code": CODE, "maths": MATHS, "chat": ""}[opening.kind] + opening.text
            warmth = {"code": 0.8, "maths": 0.7, "chat": 0.9}[opening.kind]
            params = SamplingParams(max_tokens=80, temperature=warmth, seed=seed * 1_000_003 + index)
            job = Job(user_turn(engine, prefix), params, opening.kind, opening.text)
            by_job[id(job)] = opening
            yield job

    def finished(job: Job, seq: Sequence) -> None:
        opening = by_job.pop(id(job))
        message = tidy(opening, opening.text + tokenizer.decode(seq.tokens[seq.prompt_length :]))
        if message:
            messages.append((opening.kind, message))

    Recorder(engine).run(jobs(), finished)
    return messages


def user_turn(engine: Engine, text: str) -> list[int]:
    """The chat template up to and into the user's turn, which stays open after ``text``."""
    tokenizer = engine.tokenizer
    empty = tokenizer.decode(tokenizer.chat("\0"))
    return tokenizer.encode(empty[: empty.index("\0")] + text)


def tidy(opening: Opening, text: str) -> str:
    """The message without what the target wrote past its end; empty when it has none."""
    text = text.split("<|im_end|>", maxsplit=1)[0]
    if opening.kind == "code":
        parts = text.split('"""')
        return f'{parts[0]}"""{parts[1].rstrip()}\n    """'
    if opening.kind == "maths":
        question, mark, _ = text.partition("?")
        return question.strip() + mark if mark and len(question) >= 40 else ""
    return text.strip() if len(text.strip()) >= 12 else ""


def answer_jobs(engine: Engine, prompts: list[tuple[str, str]], rng: random.Random) -> list[Job]:
    """One or two responses per prompt: about 60 % greedy, the others at temperature 0.8."""
    jobs: list[Job] = []
    for kind, message in prompts:
        tokens = engine.tokenizer.chat(wrap(kind, message))
        if len(tokens) > LONGEST_PROMPT:
            continue
        greedy, sampled = rng.random() < 0.75, rng.random() < 0.5
        for temperature in (0.0,) * (greedy or not sampled) + (0.8,) * sampled:
            params = SamplingParams(LONGEST_RESPONSE, temperature, seed=rng.getrandbits(32))
            jobs.append(Job(list(tokens), params, kind))
    rng.shuffle(jobs)
    return jobs


def record(job: Job, seq: Sequence) -> Recording:
    """The finished job as a training record; the last token's own hidden state does not exist."""
    hidden = torch.cat(job.streams)[: len(seq.tokens) - 1].numpy()
    tokens = np.array(seq.tokens, dtype=np.int32)
    return Recording(job.kind, job.params.temperature, seq.prompt_length, tokens, hidden)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the shards and prompts")
    parser.add_argument("--tokens", type=int, default=500_000, help="response tokens to aim at")
    parser.add_argument("--requests", type=int, default=96, help="requests at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, default=None, help="the target's file; by default it is downloaded once")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(options.seed)
    model, tokenizer = load_model(options.model, "float32")
    engine = Engine(
        model,
        tokenizer,
        EngineOptions(weights="float32", max_requests=options.requests, num_slots=512 * options.requests),
    )
    scale = options.tokens / 1000
    openings = [
        *code_openings(rng, int(3.4 * scale) + 1),
        *maths_openings(rng, int(3.6 * scale) + 1),
        *chat_openings(rng, int(1.0 * scale) + 1),
    ]
    rng.shuffle(openings)
    prompts = write_prompts(engine, openings, options.seed)
    prompts += [("chat", message) for message in chat_messages(rng, min(2000, int(1.1 * scale) + 1))]
    prompts = list(dict.fromkeys(prompts))
    (options.out / f"prompts-{options.seed}.json").write_text(json.dumps(prompts, indent=0))
    print(f"{len(prompts)} prompts", flush=True)

    model.capture_layers = CAPTURE_LAYERS
    done: list[Recording] = []
    totals = {"tokens": 0, "shards": 0}
    begin = time.monotonic()

    def flush() -> None:
        if done:
            save_shard(options.out / f"shard-{options.seed}-{totals['shards']:04d}.npz", done)
            totals["shards"] += 1
            rate = totals["tokens"] / (time.monotonic() - begin)
            print(f"{totals['tokens']} response tokens, {rate:.0f} per second", flush=True)
            done.clear()

    def finished(job: Job, seq: Sequence) -> None:
        recording = record(job, seq)
        if recording.response_length >= 4:
            done.append(recording)
            totals["tokens"] += recording.response_length
            if sum(each.response_length for each in done) >= SHARD_TOKENS:
                flush()

    Recorder(engine).run(answer_jobs(engine, prompts, rng), finished)
    flush()


if __name__ == "__main__":
    main()
