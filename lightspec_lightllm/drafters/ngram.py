"""Prompt lookup: the text that followed the last occurrence of the current suffix is the draft.

No weights and no forward. The index of a request maps every n-gram to the place right after its latest occurrence, so a
proposal costs a few dictionary look-ups and a copy, however long the context is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lightspec_lightllm.drafters.base import DrafterKind, Hidden, IntArray, Proposals, SequenceView
from lightspec_lightllm.errors import ConfigError

MAX_MATCH = 4
"""Longest suffix looked up."""

HIT_RATES: tuple[tuple[float, ...], ...] = (
    (0.20,),
    (0.51,),
    (0.57,),
    (0.80,),
)
"""P(draft is right | the drafts before it are), by match length 1..4 and draft step; the last value of a row holds for
all later steps."""


@dataclass(frozen=True)
class Match:
    """The longest suffix of the tokens that occurred before: its length, and the index right after that occurrence."""

    length: int
    start: int


@dataclass
class NgramIndex:
    """Where each n-gram of one request last occurred, for n = ``min_match..max_match``.

    An n-gram enters once a token follows it, so the current suffix never finds itself.
    """

    min_match: int
    max_match: int
    num_indexed: int = 0
    """n-grams that end before this index are in."""
    after: dict[tuple[int, ...], int] = field(default_factory=dict)

    def extend(self, tokens: Sequence[int]) -> None:
        """Index what was committed since the last call: O(new tokens)."""
        for end in range(self.num_indexed + 1, len(tokens)):
            for n in range(self.min_match, min(self.max_match, end) + 1):
                self.after[tuple(tokens[end - n : end])] = end
        self.num_indexed = max(self.num_indexed, len(tokens) - 1)

    def longest(self, tokens: Sequence[int]) -> Match | None:
        """The longest suffix that occurred before, at its latest occurrence; None when none of at least min_match."""
        total = len(tokens)
        for n in range(min(self.max_match, total - 1), self.min_match - 1, -1):
            start = self.after.get(tuple(tokens[total - n :]))
            if start is not None:
                return Match(n, start)
        return None


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
                f"max_match={max_match}; hit rates are known for these lengths only"
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

    def match(self, seq: SequenceView) -> Match | None:
        """Bring the request's index up to date and look its suffix up."""
        index = self._indexes.get(seq.request_id)
        if index is None:
            index = self._indexes[seq.request_id] = NgramIndex(self._min_match, self._max_match)
        index.extend(seq.tokens)
        return index.longest(seq.tokens)

    def propose(self, seqs: Sequence[SequenceView], steps: int) -> Proposals:
        """See `Drafter.propose`; a request with a match always gets all ``steps``."""
        proposals = Proposals.empty(len(seqs), steps)
        for row, seq in enumerate(seqs):
            match = self.match(seq)
            if match is not None:
                proposals.put(row, continuation(seq.tokens, match.start, steps), confidences(match.length, steps))
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


def confidences(match_length: int, steps: int) -> list[float]:
    """The measured hit rates for one match length, ``steps`` of them."""
    rates = HIT_RATES[match_length - 1]
    return [rates[min(step, len(rates) - 1)] for step in range(steps)]
