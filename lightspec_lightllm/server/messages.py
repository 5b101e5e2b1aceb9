"""What the front and the engine tell each other. Plain data: it is pickled between two processes."""

from __future__ import annotations

from dataclasses import dataclass

from lightspec_lightllm.engine.options import SamplingParams
from lightspec_lightllm.engine.sampling import TokenLogprob
from lightspec_lightllm.engine.tokenizer import Tokenizer
from lightspec_lightllm.server.round_event import RoundEvent

# --- to the engine ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submit:
    """Serve one sequence.

    Attributes:
        request_id: chosen by the front, never used again.
        prompt: token ids.
        params: how its tokens are chosen.
        top_logprobs: likeliest tokens to report with each generated one; None: report no probabilities.
        detail: whether to report what every round did for it.
    """

    request_id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    top_logprobs: int | None = None
    detail: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for these any more: free what they hold."""

    request_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """End now; what is in flight is cancelled."""


# --- to the front -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The engine is ready; what it serves and its limits.

    Attributes:
        model: name of the model's file, without its ending.
        max_context: tokens of a prompt and its answer together.
        num_slots: token positions of the KV cache.
        max_requests: sequences that decode at the same time.
        pid: its process, which is the front's own where it runs in a thread.
    """

    model: str
    tokenizer: Tokenizer
    vocab_size: int
    max_context: int
    num_slots: int
    max_requests: int
    max_draft_steps: int
    strategy: str
    drafter: str
    weights: str
    threads: int
    pid: int


@dataclass(frozen=True, slots=True)
class Loading:
    """A step of the start that takes long; a total of 0 means unknown."""

    step: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The engine cannot start; it ends after this."""

    message: str


@dataclass(frozen=True, slots=True)
class RoundDetail:
    """What the rounds of one sequence did, in their order.

    Attributes:
        drafted: drafts that were waiting.
        verified: of them had a row.
        accept_lengths: tokens committed, the target's own included; with the first token, which comes of the prompt,
            they sum up to the sequence's.
    """

    drafted: tuple[int, ...]
    verified: tuple[int, ...]
    accept_lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """What one sequence gained.

    Attributes:
        tokens: generated tokens.
        text: characters that are certain: complete, and no beginning of a stop string.
        logprobs: of ``tokens``, where they were asked for.
        finish_reason: ``stop``, ``length`` or ``cancelled``; None while it goes on.
        num_rounds: rounds it took part in, once it has finished.
        detail: once it has finished, where it was asked for.
    """

    request_id: int
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    num_rounds: int = 0
    detail: RoundDetail | None = None


@dataclass(frozen=True, slots=True)
class Deltas:
    """Of one round."""

    deltas: tuple[Delta, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine does not take this sequence."""

    request_id: int
    message: str


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine holds: sequences that decode, sequences that wait or read their prompt, free slots."""

    running: int
    waiting: int
    free_slots: int


@dataclass(frozen=True, slots=True)
class RoundCounts:
    """Sums over rounds that a `RoundEvent` has no place for.

    Attributes:
        drafts: requests that had a proposal.
        accepted_per_position: K counts.
        verified_per_position: K counts.
        refused_feedback: rounds whose feedback the planner refused.
    """

    drafts: int
    accepted_per_position: tuple[int, ...]
    verified_per_position: tuple[int, ...]
    refused_feedback: int


@dataclass(frozen=True, slots=True)
class Report:
    """The rounds since the last report, about ten times a second, and whenever the engine falls idle.

    Attributes:
        fallback: why planning was given up, or None.
    """

    rounds: tuple[RoundEvent, ...]
    counts: RoundCounts
    load: Load
    fallback: str | None


Command = Submit | Cancel | Stop
Event = EngineInfo | Loading | NotStarted | Deltas | Refused | Report
