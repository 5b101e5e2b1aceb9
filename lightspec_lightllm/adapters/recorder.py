"""Asks a drafter at every position of finished texts, as it would be asked while they were written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lightspec_lightllm.drafters import Drafter
from lightspec_lightllm.engine import Engine, SamplingParams
from lightspec_lightllm.engine import Sequence as EngineSequence
from lightspec_lightllm.errors import RequestError

BATCH = 16
"""Texts that are drafted for at the same time."""


@dataclass(frozen=True, slots=True)
class Written:
    """A finished text.

    Attributes:
        prompt: token ids.
        answer: token ids, at least 2.
        max_tokens: the most that the answer could have had; a host keeps no drafts past it.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Found:
    """Drafts of one text; see `recording.RecordedRequest` for the positions.

    Attributes:
        drafts: int[G - 1], how many wait.
        right: int[G - 1], how many of them are right before the first wrong one.
        confidence: float[G - 1, drafts].
    """

    drafts: tuple[int, ...]
    right: tuple[int, ...]
    confidence: tuple[tuple[float, ...], ...]


class _Growing:
    """A request that only the drafter sees; its text grows a token at a time."""

    def __init__(self, request_id: int, text: Written, hidden: torch.Tensor) -> None:
        self.request_id = request_id
        self.tokens = [*text.prompt, text.answer[0]]
        self.prompt_length = len(text.prompt)
        self.text = text
        self.hidden = hidden
        self.found: list[tuple[int, int, tuple[float, ...]]] = []

    @property
    def position(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_length

    def take(self, tokens: list[int], confidence: list[float]) -> None:
        """Compare drafts with the text."""
        text, position = self.text, self.position
        kept = min(len(tokens), text.max_tokens - position - 1)
        right = 0
        while right < kept and position + right < len(text.answer) and tokens[right] == text.answer[position + right]:
            right += 1
        self.found.append((kept, right, tuple(confidence[:kept])))

    def result(self) -> Found:
        """All of them, once the text has grown to its end."""
        drafts, right, confidence = zip(*self.found, strict=True)
        return Found(drafts, right, confidence)


def find_drafts(
    engine: Engine,
    drafter: Drafter,
    texts: Sequence[Written],
    max_draft_steps: int,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Found]:
    """The drafter's ``max_draft_steps`` proposals from every position of each text.

    A drafter that reads hidden states gets those of one prefill of the whole text: what the target computes of a
    position depends on the tokens before it, not on the round that computed it.

    Args:
        engine: idle; its hosts' listeners are as before afterwards.
        progress: hears how many texts are done.

    Raises:
        RequestError: the engine has work, or an answer has fewer than 2 tokens.
    """
    if engine.has_work:
        raise RequestError("drafts are recorded while the engine has no work; wait until every request has finished")
    if any(len(text.answer) < 2 for text in texts):
        raise RequestError("expected answers of at least 2 tokens: the first one comes with the prompt")
    out: list[Found] = []
    for first in range(0, len(texts), BATCH):
        batch = texts[first : first + BATCH]
        hidden = [_hidden_states(engine, drafter, text) for text in batch]
        growing = [_Growing(-1 - at, *pair) for at, pair in enumerate(zip(batch, hidden, strict=True))]
        _grow(drafter, growing, max_draft_steps)
        out += [seq.result() for seq in growing]
        progress(len(out))
    return out


def _grow(drafter: Drafter, texts: list[_Growing], max_draft_steps: int) -> None:
    try:
        for seq in texts:
            drafter.prefill(seq, 0, seq.hidden[: seq.prompt_length])
        live = texts
        while live:
            proposals = drafter.propose(live, max_draft_steps)
            for row, seq in enumerate(live):
                length = int(proposals.lengths[row])
                seq.take(proposals.tokens[row, :length].tolist(), proposals.confidence[row, :length].tolist())
            live = [seq for seq in live if seq.position + 1 < len(seq.text.answer)]
            if live:
                rows = [seq.hidden[len(seq.tokens) - 1 : len(seq.tokens)] for seq in live]
                for seq in live:
                    seq.tokens.append(seq.text.answer[seq.position])
                ones = np.ones(len(live), dtype=np.int64)
                drafter.observe(live, torch.cat(rows), ones, ones)
    finally:
        for seq in texts:
            drafter.release(seq.request_id)


def _hidden_states(engine: Engine, drafter: Drafter, text: Written) -> torch.Tensor:
    """float32 [P + G - 1, C * D], of all but the last token; no columns for a drafter that reads none."""
    tokens = [*text.prompt, *text.answer[:-1]]
    if not drafter.capture_layers:
        return torch.zeros(len(tokens), 0)
    chunks: list[torch.Tensor] = []

    def take(_: EngineSequence, start: int, hidden: torch.Tensor) -> None:
        if start == 0:
            chunks.clear()  # paused in the middle and begun again
        chunks.append(hidden.clone())

    before = engine.prefill_listener, engine.release_listener, engine.model.capture_layers
    engine.prefill_listener, engine.release_listener = take, None
    engine.model.capture_layers = drafter.capture_layers
    try:
        sequence = engine.submit(tokens, SamplingParams(max_tokens=1, ignore_eos=True))
        while sequence.status != "finished":
            engine.schedule(rows=1)
    finally:
        engine.prefill_listener, engine.release_listener, engine.model.capture_layers = before
    return torch.cat(chunks)
