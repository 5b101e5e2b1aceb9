"""What a server's /metrics counted of speculative decoding between two readings.

The counters are the server's: what other clients ask for meanwhile is in them. Three families are known:

* ``lightspec_*``, of this package's servers (`metric_names`);
* ``vllm:spec_decode_*``, where every draft token is verified;
* ``lightllm_request_mtp_avg_token_per_step``, LightLLM's histogram of tokens per step and request: a mean over requests
  rather than over steps, and no counts of drafts.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field

from lightspec_lightllm import metric_names as ours

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? +(\S+)(?: +\d+)?$")
_POSITION = re.compile(r'(?:^|,)\s*position="(\d+)"')
_VLLM = "vllm:spec_decode_num_"
_LIGHTLLM = "lightllm_request_mtp_avg_token_per_step"


@dataclass(frozen=True)
class Reading:
    """A page of /metrics: every sample's value by name, summed over its labels, and by position where it has one."""

    totals: dict[str, float]
    positions: dict[str, dict[int, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, page: str) -> "Reading":
        """Reads Prometheus' text format; lines of another form are comments and are skipped."""
        totals: dict[str, float] = defaultdict(float)
        positions: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for line in page.splitlines():
            match = _SAMPLE.match(line.strip())
            if match is None:
                continue
            name, labels, value = match[1], match[2] or "", _number(match[3])
            totals[name] += value
            if found := _POSITION.search(labels):
                positions[name][int(found[1])] += value
        return cls(dict(totals), {name: dict(by) for name, by in positions.items()})

    def since(self, before: "Reading") -> "Reading":
        """What was counted after ``before``. A counter that went down belongs to a server that has started again."""
        return Reading(
            {name: _grown(value, before.totals.get(name, 0.0)) for name, value in self.totals.items()},
            {
                name: {at: _grown(value, before.positions.get(name, {}).get(at, 0.0)) for at, value in by.items()}
                for name, by in self.positions.items()
            },
        )


@dataclass(frozen=True)
class Speculation:
    """Speculative decoding during a run. None: the server does not say, or nothing was drafted."""

    source: str
    mean_accept_length: float | None
    """Tokens a request commits per round, the target's own included."""
    num_drafts: int | None = None
    """Proposals: one per request and round that had one."""
    draft_tokens: int | None = None
    verified_tokens: int | None = None
    accepted_tokens: int | None = None
    acceptance_length: float | None = None
    """vLLM's: 1 + accepted / proposals; rounds without a proposal do not count."""
    per_position_acceptance_rates: tuple[float, ...] = ()
    """Accepted at each position, over proposals."""

    @property
    def accepted_per_verified(self) -> float | None:
        return _ratio(self.accepted_tokens, self.verified_tokens)

    @property
    def accepted_per_drafted(self) -> float | None:
        return _ratio(self.accepted_tokens, self.draft_tokens)


def speculation_between(before: Reading | None, after: Reading | None) -> Speculation | None:
    """None where the server has no such counters."""
    if before is None or after is None:
        return None
    grown = after.since(before)
    if f"{ours.DRAFTS.name}_total" in grown.totals:
        rounds = grown.totals.get(f"{ours.REQUEST_ROUNDS.name}_total")
        committed = grown.totals.get(f"{ours.COMMITTED_TOKENS.name}_total")
        verified = grown.totals.get(f"{ours.VERIFIED_TOKENS.name}_total")
        return _counted(
            "lightspec", grown, ours.DRAFTS.name.removesuffix("drafts"), verified, _ratio(committed, rounds)
        )
    if f"{_VLLM}drafts_total" in grown.totals:
        return _counted("vllm", grown, _VLLM, grown.totals.get(f"{_VLLM}draft_tokens_total"), None)
    if f"{_LIGHTLLM}_count" in grown.totals:
        steps = _ratio(grown.totals.get(f"{_LIGHTLLM}_sum"), grown.totals[f"{_LIGHTLLM}_count"])
        return Speculation("lightllm", steps)
    return None


def _counted(
    source: str, grown: Reading, prefix: str, verified: float | None, mean_accept_length: float | None
) -> Speculation:
    """From counters of vLLM's names after ``prefix``."""
    totals = grown.totals
    drafts = totals[f"{prefix}drafts_total"]
    accepted = totals.get(f"{prefix}accepted_tokens_total", 0.0)
    length = 1 + accepted / drafts if drafts else None
    positions = grown.positions.get(f"{prefix}accepted_tokens_per_pos_total", {})
    return Speculation(
        source=source,
        mean_accept_length=length if mean_accept_length is None else mean_accept_length,
        num_drafts=round(drafts),
        draft_tokens=round(totals.get(f"{prefix}draft_tokens_total", 0.0)),
        verified_tokens=None if verified is None else round(verified),
        accepted_tokens=round(accepted),
        acceptance_length=length,
        per_position_acceptance_rates=tuple(positions[at] / drafts for at in sorted(positions)) if drafts else (),
    )


def _grown(after: float, before: float) -> float:
    return after - before if after >= before else after


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
