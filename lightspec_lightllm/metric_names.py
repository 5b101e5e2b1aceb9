"""What `/metrics` calls things: one list for every host, without a metrics library.

Counters follow vLLM's ``spec_decode`` semantics under a prefix of their own. Names are those a registry is given; its
exposition appends ``_total`` to counters and ``_bucket``, ``_sum`` and ``_count`` to histograms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "lightspec_"

POSITION = "position"
"""Label of what is counted per draft: ``"0"`` is the first draft of a round."""

STAGE = "stage"
"""Label of a round's stage."""

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
STEPS = tuple(range(16))
LENGTHS = tuple(1 + 0.5 * half for half in range(31))
SECONDS = tuple(share * 2**step / 1000 for step in range(15) for share in (1, 1.5))
"""Upper bounds of buckets: rows, draft steps, tokens, seconds."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: as a registry is given it.
        kind: ``counter``, ``histogram`` or ``gauge``.
        help: one line.
        labels: beside those that a host puts on everything.
        buckets: upper bounds of a histogram's buckets, ascending; the last, infinite one is not among them.
    """

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


DRAFTS = Metric(f"{PREFIX}spec_decode_num_drafts", "counter", "Requests that had a proposal, summed over rounds")
DRAFT_TOKENS = Metric(f"{PREFIX}spec_decode_num_draft_tokens", "counter", "Drafts that waited when a round began")
VERIFIED_TOKENS = Metric(f"{PREFIX}spec_decode_num_verified_tokens", "counter", "Drafts that had a row of the target")
TRIMMED_TOKENS = Metric(f"{PREFIX}spec_decode_num_trimmed_tokens", "counter", "Drafts that waited and had no row")
ACCEPTED_TOKENS = Metric(f"{PREFIX}spec_decode_num_accepted_tokens", "counter", "Drafts that were accepted")
ACCEPTED_PER_POSITION = Metric(
    f"{PREFIX}spec_decode_num_accepted_tokens_per_pos", "counter", "Drafts accepted at each position", (POSITION,)
)
VERIFIED_PER_POSITION = Metric(
    f"{PREFIX}spec_decode_num_verified_tokens_per_pos", "counter", "Drafts verified at each position", (POSITION,)
)

ROUNDS = Metric(f"{PREFIX}rounds", "counter", "Decode rounds")
REQUEST_ROUNDS = Metric(f"{PREFIX}request_rounds", "counter", "Requests of the batch, summed over rounds")
COMMITTED_TOKENS = Metric(f"{PREFIX}committed_tokens", "counter", "Tokens of rounds, the target's own included")
WASTED_ROWS = Metric(f"{PREFIX}wasted_rows", "counter", "Rows of the target that gave no token: rejected and padding")
VERIFY_ROWS = Metric(f"{PREFIX}verify_rows", "histogram", "Rows of the target per round without padding", buckets=ROWS)
DRAFT_STEPS = Metric(f"{PREFIX}draft_steps", "histogram", "Draft steps per round", buckets=STEPS)
ROUND_SECONDS = Metric(
    f"{PREFIX}round_seconds", "histogram", "Measured time of rounds that read no prompts", buckets=SECONDS
)
PREDICTED_SECONDS = Metric(
    f"{PREFIX}predicted_round_seconds", "histogram", "What was predicted for the measured rounds", buckets=SECONDS
)
PLANNER_SECONDS = Metric(f"{PREFIX}planner_seconds", "counter", "Time spent planning and learning")
PROBES = Metric(f"{PREFIX}probes", "counter", "Rounds made to learn rather than to gain")
FALLBACKS = Metric(f"{PREFIX}fallbacks", "counter", "Times that dynamic planning was given up")
FALLBACK_ROUNDS = Metric(f"{PREFIX}fallback_rounds", "counter", "Rounds of fixed steps since planning was given up")
REFUSED_FEEDBACK = Metric(f"{PREFIX}refused_feedback", "counter", "Rounds whose feedback the planner refused")
REQUEST_ACCEPT_LENGTH = Metric(
    f"{PREFIX}request_accept_length", "histogram", "Mean tokens per round of a request", buckets=LENGTHS
)
UNREPORTED_ROUNDS = Metric(f"{PREFIX}unreported_rounds", "counter", "Rounds that the other metrics lack")

ROUND_METRICS = (
    DRAFTS,
    DRAFT_TOKENS,
    VERIFIED_TOKENS,
    TRIMMED_TOKENS,
    ACCEPTED_TOKENS,
    ACCEPTED_PER_POSITION,
    VERIFIED_PER_POSITION,
    ROUNDS,
    REQUEST_ROUNDS,
    COMMITTED_TOKENS,
    WASTED_ROWS,
    VERIFY_ROWS,
    DRAFT_STEPS,
    ROUND_SECONDS,
    PREDICTED_SECONDS,
    PLANNER_SECONDS,
    PROBES,
    FALLBACKS,
    FALLBACK_ROUNDS,
    REFUSED_FEEDBACK,
    REQUEST_ACCEPT_LENGTH,
    UNREPORTED_ROUNDS,
)
"""Of rounds: every host has them, or those of them that it can know."""

STAGE_SECONDS = Metric(
    f"{PREFIX}stage_seconds", "histogram", "Time of each stage of a round", (STAGE,), buckets=SECONDS
)
CALIBRATION_ERROR = Metric(
    f"{PREFIX}calibration_error", "gauge", "Mean distance of predicted from observed acceptance, in probability"
)
REASON = "reason"
"""Label of how a request ended: stop, length, cancelled (its client went away) or error."""

REQUESTS_FINISHED = Metric(f"{PREFIX}requests_finished", "counter", "Sequences that ended", (REASON,))
PROMPT_TOKENS = Metric(f"{PREFIX}prompt_tokens", "counter", "Tokens of the prompts of sequences")
GENERATION_TOKENS = Metric(f"{PREFIX}generation_tokens", "counter", "Tokens generated for sequences that ended")
FREE_SLOTS = Metric(f"{PREFIX}free_slots", "gauge", "Token positions of the KV cache that are free")
ENGINE_RESTARTS = Metric(f"{PREFIX}engine_restarts", "counter", "Times that the engine was started again")
REQUESTS_RUNNING = Metric(f"{PREFIX}requests_running", "gauge", "Requests in the batch")
REQUESTS_WAITING = Metric(f"{PREFIX}requests_waiting", "gauge", "Requests in the queue")
TIME_TO_FIRST_TOKEN = Metric(
    f"{PREFIX}time_to_first_token_seconds", "histogram", "From a request's arrival to its first token", buckets=SECONDS
)
INTER_TOKEN = Metric(f"{PREFIX}inter_token_seconds", "histogram", "Between tokens of a request", buckets=SECONDS)

SERVER_METRICS = (
    STAGE_SECONDS,
    CALIBRATION_ERROR,
    REQUESTS_FINISHED,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    FREE_SLOTS,
    ENGINE_RESTARTS,
    REQUESTS_RUNNING,
    REQUESTS_WAITING,
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN,
)
"""Of a server of this package's own; LightLLM has its own names for most of them."""
