"""Long runs without a clock: recorded answers of the target, drafted by lookup and planned anew, timed by a cost table.

    python benchmarks/replay_texts.py COSTS.json [--texts TEXTS.json] [--concurrency 1 4 8 16]

Greedy text does not depend on how it is decoded, so once the target has answered, every arm can be replayed on the
answers: drafts come from the real n-gram drafter, accept lengths from comparing them with the text, time from the
measured table (``~/.cache/lightspec/costs``). Without ``--texts`` the answers to 40 prompts each of HumanEval, GSM8K
and MT-bench are generated first (some ten minutes) and kept in the file that ``--keep`` names.

Prints tokens/s of each arm over that of ``off``, lightspec's over the best static arm's, and the geometric mean.
"""

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.at_table_costs import load_costs
from lightspec_lightllm.adapters.embedded import EmbeddedRuntime
from lightspec_lightllm.bench.datasets import load_dataset
from lightspec_lightllm.config import Config
from lightspec_lightllm.decode import Round, Verdict
from lightspec_lightllm.decode.host import IntArray, StepRule
from lightspec_lightllm.drafters import NgramDrafter
from lightspec_lightllm.engine import SamplingParams
from lightspec_lightllm.planner import BatchView, CostModel, make_planner

ARMS = ("off", "fixed:1", "fixed:3", "fixed:7", "fixed:11")
MAX_DRAFT_STEPS = 15


@dataclass
class Recorded:
    """A request whose whole text is known; ``tokens`` is what has been committed."""

    request_id: int
    text: list[int]
    prompt_length: int
    tokens: list[int]


class ReplayHost:
    """Serves recorded answers in a closed loop; the clock is the cost table's."""

    max_draft_steps = MAX_DRAFT_STEPS

    def __init__(self, costs: CostModel, texts: list[tuple[int, list[int]]], concurrency: int) -> None:
        self.num_tokens = 0
        self.seconds = 0.0
        self._costs = costs
        self._concurrency = concurrency
        # The first generated token comes with the prompt.
        waiting = [Recorded(i, ids, start, ids[: start + 1]) for i, (start, ids) in enumerate(texts)]
        self._waiting = waiting[::-1]
        self._live: list[Recorded] = []
        self._drafter = NgramDrafter(max_draft_steps=MAX_DRAFT_STEPS)
        self._drafts: dict[int, tuple[list[int], np.ndarray]] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._live or self._waiting)

    def now(self) -> float:
        return self.seconds

    def check_slots(self) -> None:
        """There are none."""

    def schedule(self) -> BatchView:
        while self._waiting and len(self._live) < self._concurrency:
            self._live.append(self._waiting.pop())
        count = len(self._live)
        proposed, confidence = np.zeros(count, dtype=np.int64), np.zeros((count, MAX_DRAFT_STEPS))
        for row, request in enumerate(self._live):
            drafts, sure = self._drafts.get(request.request_id, ([], np.zeros(0)))
            proposed[row] = len(drafts)
            confidence[row, : len(drafts)] = sure
        return BatchView(
            count,
            proposed,
            np.array([len(request.tokens) for request in self._live]),
            confidence=confidence,
            request_ids=np.array([request.request_id for request in self._live]),
        )

    def verify(self, verified: IntArray) -> Verdict:
        count = len(self._live)
        context = statistics.fmean(len(request.tokens) for request in self._live)
        self.seconds += self._costs.target_ms(count + int(verified.sum()), count, context) / 1e3
        accepted = np.ones(count, dtype=np.int64)
        for row, request in enumerate(self._live):
            ahead = request.text[len(request.tokens) :]
            drafts = self._drafts.get(request.request_id, ([], None))[0][: verified[row]]
            for draft, right in zip(drafts, ahead, strict=False):
                if draft != right:
                    break
                accepted[row] += 1
        return Verdict(accepted, np.zeros((count, 1), dtype=np.int64))

    def commit(self, verdict: Verdict) -> IntArray:
        kept = []
        for request, accepted in zip(self._live, verdict.accepted.tolist(), strict=True):
            before = len(request.tokens)
            request.tokens = request.text[: before + accepted]
            kept.append(len(request.tokens) - before)
            if len(request.tokens) == len(request.text):
                self._drafter.release(request.request_id)
        self._live = [request for request in self._live if len(request.tokens) < len(request.text)]
        self.num_tokens += sum(kept)
        return np.array(kept)

    def draft(self, steps: int, chain: StepRule | None = None) -> int:
        self._drafts.clear()
        if steps and self._live:
            proposals = self._drafter.propose(self._live, steps, chain)
            for row, request in enumerate(self._live):
                length = min(int(proposals.lengths[row]), len(request.text) - len(request.tokens) - 1)
                if length > 0:
                    drafts = proposals.tokens[row, :length].tolist()
                    self._drafts[request.request_id] = (drafts, proposals.confidence[row, :length])
        return steps


def rate(arm: str, costs: CostModel, texts: list[tuple[int, list[int]]], concurrency: int) -> float:
    """Decode tokens per second of one arm."""
    host = ReplayHost(costs, texts, concurrency)
    rounds = Round(host, make_planner(arm, costs, max_draft_steps=MAX_DRAFT_STEPS, drafter="free"))
    while host.has_work:
        rounds.step()
    return host.num_tokens / host.seconds


def record(prompts: int, max_tokens: int) -> dict[str, list[tuple[int, list[int]]]]:
    """Let the target answer the first prompts of every set: (prompt length, prompt and answer) each."""
    runtime = EmbeddedRuntime.open(Config(), "ngram")
    texts = {}
    for name in ("humaneval", "gsm8k", "sharegpt"):
        rounds = runtime.round("lightspec")
        chosen = [runtime.engine.tokenizer.chat(prompt.text) for prompt in load_dataset(name).prompts[:prompts]]
        answers = [runtime.submit(ids, SamplingParams(max_tokens=max_tokens)) for ids in chosen]
        while runtime.engine.has_work:
            rounds.step()
        texts[name] = [(answer.prompt_length, answer.tokens) for answer in answers]
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("costs", type=Path)
    parser.add_argument("--texts", type=Path, help="recorded answers: {set: [[prompt length, [token ids]], ..]}")
    parser.add_argument("--keep", type=Path, help="where to keep the answers that are generated")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 8, 16])
    args = parser.parse_args()
    costs = load_costs(args.costs)
    texts = json.loads(args.texts.read_text(encoding="utf-8")) if args.texts else record(40, 160)
    if args.keep:
        args.keep.write_text(json.dumps(texts), encoding="utf-8")
    ratios = []
    for name, answers in texts.items():
        for concurrency in args.concurrency:
            rates = {arm: rate(arm, costs, answers, concurrency) for arm in ARMS}
            dynamic, best = rate("lightspec", costs, answers, concurrency), max(rates, key=rates.__getitem__)
            ratios.append(dynamic / rates[best])
            over_off = "  ".join(f"{arm} {value / rates['off']:.2f}" for arm, value in rates.items())
            print(
                f"{name:10} {concurrency:3} in flight  {over_off}  lightspec {dynamic / rates['off']:.2f}   "
                f"lightspec / {best} {ratios[-1]:.3f}, / fixed:11 {dynamic / rates['fixed:11']:.2f}",
                flush=True,
            )
    print(f"geometric mean {statistics.geometric_mean(ratios):.3f}, lowest {min(ratios):.3f}")


if __name__ == "__main__":
    main()
