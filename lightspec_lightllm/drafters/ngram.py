"""Prompt lookup: the text that followed the last occurrence of the current suffix is the draft.

No weights and no forward. The index of a request maps every n-gram to the place right after its latest occurrence, and
counts what followed each token and pair of tokens; so a proposal costs a few dictionary look-ups per draft, however
long the context is.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lightspec_lightllm.drafters.base import DrafterKind, Hidden, IntArray, Proposals, SequenceView, StepRule
from lightspec_lightllm.errors import ConfigError

MAX_MATCH = 4
"""Longest suffix looked up; the latest place where it occurred is taken."""

MAX_COUNTED = 32
"""A looked-up suffix is followed back to here to tell how long the match really is."""

_KNOWN = {
    1: 0.21,
    2: 0.49,
    3: 0.61,
    4: 0.67,
    5: 0.72,
    6: 0.78,
    8: 0.83,
    10: 0.86,
    14: 0.88,
    20: 0.92,
    26: 0.96,
    32: 0.97,
}

HIT_RATES: tuple[float, ...] = tuple(np.interp(range(1, MAX_COUNTED + 1), list(_KNOWN), list(_KNOWN.values())).tolist())
"""P(the next token is right) by match length 1, 2, .., the last value for all longer ones.

Measured on 250 answers of the default model to code, maths and chat prompts (`benchmarks/head/generate.py` makes such).
A draft that is accepted makes the match one longer, so the value for length L + j - 1 is that of draft j.
"""

_HIT_ODDS = [math.log(rate / (1.0 - rate)) for rate in HIT_RATES]

BASE, OF_MATCH, OF_SHARE, OF_UNANIMITY = -0.3, 0.8, 0.4, 0.8
"""Weights of a draft's log-odds, see `NgramIndex.confidences`.

By logistic regression on the drafts of 583 answers of the default model, 2.4e5 drafts all before which were right; on
120 other answers the mean log-loss is 0.328, and 0.369 by the length of the match alone.
"""

HALF = 0.4
"""Added to how often a token followed and to how often it did not, so that a single time does not make it sure."""


@dataclass(frozen=True)
class Match:
    """The longest suffix of the tokens that occurred before, and the index right after that occurrence.

    length   how long the two agree, up to MAX_COUNTED
    """

    length: int
    start: int


@dataclass(slots=True)
class Followers:
    """How often each token followed one or two others."""

    total: int = 0
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, token: int) -> None:
        self.total += 1
        self.counts[token] = self.counts.get(token, 0) + 1


@dataclass(frozen=True, slots=True)
class Lookup:
    """What was found for one request.

    tokens       the drafts
    confidence   P(draft j is right | the drafts before it are)
    """

    tokens: list[int]
    confidence: list[float]


@dataclass
class NgramIndex:
    """Where each n-gram of one request last occurred, for n = ``min_match..max_match``; what followed tokens and pairs.

    An n-gram enters once a token follows it, so the current suffix never finds itself.
    """

    min_match: int
    max_match: int
    num_indexed: int = 0
    """n-grams that end before this index are in."""
    after: dict[tuple[int, ...], int] = field(default_factory=dict)
    followers: defaultdict[tuple[int, ...], Followers] = field(default_factory=lambda: defaultdict(Followers))
    """By token and by pair."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Index what was committed since the last call: O(new tokens)."""
        for end in range(self.num_indexed + 1, len(tokens)):
            for n in range(self.min_match, min(self.max_match, end) + 1):
                self.after[tuple(tokens[end - n : end])] = end
            for n in range(1, min(2, end) + 1):
                self.followers[tuple(tokens[end - n : end])].add(tokens[end])
        self.num_indexed = max(self.num_indexed, len(tokens) - 1)

    def longest(self, tokens: Sequence[int]) -> Match | None:
        """The longest suffix that occurred before, at its latest occurrence; None when none of at least min_match."""
        total = len(tokens)
        for n in range(min(self.max_match, total - 1), self.min_match - 1, -1):
            start = self.after.get(tuple(tokens[total - n :]))
            if start is not None:
                return Match(_agreement(tokens, start, n), start)
        return None

    def confidences(self, tokens: Sequence[int], draft: Sequence[int], match_length: int) -> list[float]:
        """P(draft j is right | the drafts before it are) for each of a ``draft`` after a match of this length.

        A looked-up token is the likelier the longer the match is, the larger its share was of what followed the token
        before it, and the pair before it, in this text; the more so if nothing else ever followed the pair::

            log-odds = BASE + OF_MATCH odds(hit rate of the match's length)
                     + OF_SHARE (odds(share after the token) + odds(share after the pair))
                     + OF_UNANIMITY log(n) if all n that followed the pair are this token
        """
        text = [*tokens[-2:], *draft]
        first = len(text) - len(draft)
        found = []
        for step, token in enumerate(draft):
            odds = BASE + OF_MATCH * _HIT_ODDS[min(match_length + step, MAX_COUNTED) - 1]
            for n in range(1, min(2, first + step) + 1):
                followers = self.followers.get(tuple(text[first + step - n : first + step]))
                if followers is not None:
                    same = followers.counts.get(token, 0)
                    odds += OF_SHARE * math.log((same + HALF) / (followers.total - same + HALF))
                    if n == 2 and same == followers.total:
                        odds += OF_UNANIMITY * math.log(same)
            found.append(1.0 / (1.0 + math.exp(-odds)))
        return found


def _agreement(tokens: Sequence[int], start: int, length: int) -> int:
    """How long the suffix and what precedes ``start`` are the same, given that ``length`` tokens are."""
    most = min(MAX_COUNTED, start)
    while length < most and tokens[start - length - 1] == tokens[-length - 1]:
        length += 1
    return length


class NgramDrafter:
    """Drafts by prompt lookup over each request's own tokens; abstains where no suffix occurred before."""

    name = "ngram"
    kind: DrafterKind = "free"
    capture_layers: tuple[int, ...] = ()

    def __init__(self, *, max_draft_steps: int = 8, min_match: int = 1, max_match: int = MAX_MATCH) -> None:
        """``min_match`` and ``max_match`` bound the suffix length, 1 <= min_match <= max_match <= 4."""
        if not 1 <= min_match <= max_match <= MAX_MATCH:
            msg = (
                f"expected 1 <= min_match <= max_match <= {MAX_MATCH}, got min_match={min_match} and "
                f"max_match={max_match}"
            )
            raise ConfigError(msg)
        self.max_draft_steps = max_draft_steps
        self._min_match = min_match
        self._max_match = max_match
        self._indexes: dict[int, NgramIndex] = {}

    def prefill(self, seq: SequenceView, start: int, hidden: Hidden) -> None:
        """Nothing to do: the tokens are indexed when the request first proposes."""

    def observe(self, seqs: Sequence[SequenceView], hidden: Hidden, rows: IntArray, accepted: IntArray) -> None:
        """Nothing to do: committed tokens are indexed when the request next proposes."""

    def lookup(self, seq: SequenceView, steps: int) -> Lookup | None:
        """``steps`` drafts for a request whose suffix occurred before, else None; brings its index up to date."""
        index = self._indexes.get(seq.request_id)
        if index is None:
            index = self._indexes[seq.request_id] = NgramIndex(self._min_match, self._max_match)
        index.extend(seq.tokens)
        match = index.longest(seq.tokens)
        if match is None:
            return None
        draft = continuation(seq.tokens, match.start, steps)
        return Lookup(draft, index.confidences(seq.tokens, draft, match.length))

    def propose(
        self,
        seqs: Sequence[SequenceView],
        steps: int,
        rule: StepRule | None = None,  # noqa: ARG002 - steps are free
    ) -> Proposals:
        """See `Drafter.propose`; a request with a match always gets all ``steps``."""
        proposals = Proposals.empty(len(seqs), steps)
        for row, seq in enumerate(seqs):
            found = self.lookup(seq, steps)
            if found is not None:
                proposals.put(row, found.tokens, found.confidence)
        return proposals

    def backlog(self, seqs: Sequence[SequenceView]) -> int:  # noqa: ARG002 - the protocol's signature
        """Always 0: bringing an index up to date costs no forward."""
        return 0

    def release(self, request_id: int) -> None:
        """See `Drafter.release`."""
        self._indexes.pop(request_id, None)


def continuation(tokens: Sequence[int], start: int, steps: int) -> list[int]:
    """``steps`` tokens from ``start`` on, reading on into the draft itself where the tokens end.

    Reading on continues a repetition with its own period, which is what a text that loops does.
    """
    draft: list[int] = []
    total = len(tokens)
    for index in range(start, start + steps):
        draft.append(tokens[index] if index < total else draft[index - total])
    return draft
