"""Mixed load on a server for as long as one likes: do slots come back, does memory stay, do texts stay the same?

    python benchmarks/soak.py --minutes 30 -- --threads 1

starts ``lightspec serve`` with what follows ``--``, keeps ``--clients`` busy with streams and whole answers of both
APIs, with stops, several choices and log probabilities, with clients that go away and requests that are wrong, and
reports JSON. Some prompts have a fixed seed: their texts are compared with those of the idle server.
"""

import argparse
import asyncio
import collections
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

QUESTIONS = [
    "Write a haiku about rivers.",
    "Count from one to twenty.",
    "Write a Python function that reverses a list.",
    "What is the capital of France? Explain in two sentences.",
    "Repeat after me: the quick brown fox jumps over the lazy dog.",
    "List five fruits and say é, ü and €.",
]
WRONG = [
    b"{",
    b"[1]",
    b"{}",
    b'{"prompt": ""}',
    b'{"prompt": "a", "max_tokens": -1}',
    b'{"prompt": "%s"}' % (b"x" * 10**6),
]


@dataclass
class Tally:
    """What happened."""

    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    tokens: int = 0
    surprises: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)


def known(index: int) -> dict[str, Any]:
    """A request whose text is known beforehand; greedy and sampled ones take turns."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTIONS[index % len(QUESTIONS)]}]}
    return body | {"max_tokens": 32, "seed": index, "temperature": 0.9 * (index % 2)}


async def text_of(session: aiohttp.ClientSession, index: int, *, stream: bool) -> str:
    async with session.post("/v1/chat/completions", json=known(index) | {"stream": stream}) as reply:
        reply.raise_for_status()
        if not stream:
            return str((await reply.json())["choices"][0]["message"]["content"])
        pieces = []
        async for line in reply.content:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(event["error"]["message"])
                pieces.append(event["choices"][0]["delta"].get("content", ""))
        return "".join(pieces)


async def act(session: aiohttp.ClientSession, rng: random.Random, expected: list[str], tally: Tally) -> None:
    """One request of some kind."""
    kind = rng.choices(["known", "leave", "wrong", "lightllm", "many"], [5, 3, 2, 2, 1])[0]
    tally.counts[kind] += 1
    if kind == "known":
        index = rng.randrange(len(expected))
        text = await text_of(session, index, stream=rng.random() < 0.5)
        if text != expected[index]:
            tally.differing.append(f"{index}: {text!r} is not {expected[index]!r}")
    elif kind == "leave":
        body = {"prompt": rng.choice(QUESTIONS), "max_tokens": 200, "ignore_eos": True, "stream": rng.random() < 0.7}
        task = asyncio.ensure_future(session.post("/v1/completions", json=body))
        await asyncio.sleep(rng.random() * 3)
        if not task.done():
            task.cancel()
        else:
            task.result().close()
        await asyncio.gather(task, return_exceptions=True)
    elif kind == "wrong":
        data = rng.choice(WRONG)
        headers = {"Content-Type": "application/json"}
        async with session.post("/v1/completions", data=data, headers=headers) as reply:
            if not 400 <= reply.status < 500 or "error" not in await reply.json():
                tally.surprises.append(f"{data[:40]!r} got {reply.status}")
    elif kind == "lightllm":
        parameters = {"max_new_tokens": 24, "do_sample": True, "stop_sequences": ["\n\n"], "return_details": True}
        async with session.post("/generate", json={"inputs": rng.choice(QUESTIONS), "parameters": parameters}) as reply:
            answer = await reply.json()
            tally.tokens += answer["count_output_tokens"]
    else:
        body = {"prompt": [QUESTIONS[0], QUESTIONS[1]], "n": 2, "max_tokens": 16, "logprobs": 2, "temperature": 1.0}
        async with session.post("/v1/completions", json=body) as reply:
            if reply.status == 429:
                tally.counts["429"] += 1
                return
            answer = await reply.json()
            tally.tokens += answer["usage"]["completion_tokens"]
            if len(answer["choices"]) != 4:
                tally.surprises.append(f"4 choices were asked for, {len(answer['choices'])} came")


async def client(session: aiohttp.ClientSession, seed: int, expected: list[str], tally: Tally, until: float) -> None:
    rng = random.Random(seed)
    while time.monotonic() < until:
        try:
            await act(session, rng, expected, tally)
        except (aiohttp.ClientError, RuntimeError, KeyError, ValueError) as error:
            tally.surprises.append(f"{type(error).__name__}: {error}")


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


async def status_of(session: aiohttp.ClientSession) -> dict[str, Any]:
    async with session.get("/lightspec/status") as reply:
        answer: dict[str, Any] = await reply.json()
        return answer


async def soak(url: str, front: int, *, clients: int, minutes: float) -> dict[str, Any]:
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=connector) as session:
        expected = [await text_of(session, index, stream=False) for index in range(12)]
        engine = (await status_of(session))["engine"]["pid"]
        tally, began = Tally(), time.monotonic()
        until = began + 60 * minutes
        working = [asyncio.ensure_future(client(session, seed, expected, tally, until)) for seed in range(clients)]
        memory: list[dict[str, float]] = []
        while time.monotonic() < until:
            await asyncio.sleep(min(30, max(0.1, until - time.monotonic())))
            memory.append(
                {
                    "minute": round((time.monotonic() - began) / 60, 2),
                    "front_mb": resident_mb(front),
                    "engine_mb": resident_mb(engine),
                }
            )
            print(memory[-1], dict(tally.counts), flush=True, file=sys.stderr)
        await asyncio.gather(*working)
        for _ in range(100):
            status = await status_of(session)
            if status["in_flight"] == 0 and status["load"]["running"] == status["load"]["waiting"] == 0:
                break
            await asyncio.sleep(0.2)
        return {
            "minutes": minutes,
            "clients": clients,
            "requests": dict(tally.counts),
            "ended": status["ended"],
            "rounds": status["totals"]["rounds"],
            "committed_tokens": status["totals"]["committed"],
            "all_slots_free": status["load"]["free_slots"] == status["engine"]["num_slots"],
            "load": status["load"],
            "engine_restarts": status["engine_restarts"],
            "known_texts": tally.counts["known"],
            "differing_texts": tally.differing[:20],
            "num_differing_texts": len(tally.differing),
            "surprises": tally.surprises[:20],
            "num_surprises": len(tally.surprises),
            "memory": memory,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    parser.add_argument("serve", nargs="*", help="arguments of lightspec serve, after --")
    arguments = parser.parse_args()
    words = [sys.executable, "-m", "lightspec_lightllm.cli", "serve", "--port", "0", *arguments.serve]
    with (
        tempfile.NamedTemporaryFile("ab") as log,
        subprocess.Popen(words, stderr=log) as server,  # noqa: S603 - this package's own command
    ):

        def lines() -> list[str]:
            return Path(log.name).read_text(encoding="utf-8").splitlines()

        try:
            url = None
            while url is None:
                if server.poll() is not None:
                    print("\n".join(lines()), file=sys.stderr)
                    return 1
                time.sleep(0.5)
                url = next(
                    (found[1] for line in lines() if (found := re.search(r"served at (http://\S+)", line))), None
                )
            report = asyncio.run(soak(url, server.pid, clients=arguments.clients, minutes=arguments.minutes))
        finally:
            server.terminate()
            code = server.wait(120)
        errors = [line for line in lines() if re.search(r"ERROR|CRITICAL|Traceback|WARNING", line)]
    report |= {"exit_code": code, "log_errors": errors}
    text = json.dumps(report, indent=1)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    good = report["all_slots_free"] and not (errors or report["num_surprises"] or code)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
