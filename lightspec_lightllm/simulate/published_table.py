"""The published comparison beside the model's, and what the differences hang on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lightspec_lightllm.adapters.roofline import Roofline
from lightspec_lightllm.simulate.comparison import Spread
from lightspec_lightllm.simulate.published import (
    ASSUMPTIONS,
    MODELLED,
    MOST,
    NUM_REQUESTS,
    WORLD_SEEDS,
    Claim,
    Comparison,
    LoadResult,
    outside_share,
)
from lightspec_lightllm.simulate.table import spread


def published_table(results: Sequence[LoadResult], model: Roofline, *, num_seeds: int, rounds: int) -> RenderableType:
    """Everything `lightspec simulate --reference` found."""
    head = (
        f"Qwen3-14B with Eagle3 on one H200, {NUM_REQUESTS} requests at a time: MODELLED, NOT MEASURED. A round takes "
        f"{model.floor_ms:.2f} ms or {model.row_ms():.4f} ms per row, knee at {model.knee_rows:.0f} rows. "
        f"Median [lowest-highest] of {num_seeds} seeds, {rounds} rounds each from a cold start; plan: time charged."
    )
    worlds = f"medians; other worlds than the modelled one on {min(num_seeds, WORLD_SEEDS)} of the seeds"
    parts: list[RenderableType] = [Text(head), arms_table(results), Text("best static: " + _best(results), style="dim")]
    parts += [
        Text(f"\nDynamic against {MOST} fixed steps, published and modelled", style="bold"),
        claims_table(results),
        Text(f"\nThe same in other worlds ({worlds}): gain, times fewer rows, points of acceptance", style="bold"),
        worlds_table(results),
        Text("\n".join(verdicts(results))),
    ]
    return Group(*parts)


def _best(results: Sequence[LoadResult]) -> str:
    return "; ".join(f"{result.load.name} {result.best}" for result in results)


def arms_table(results: Sequence[LoadResult]) -> Table:
    """Acceptance, rows and relative throughput of every arm."""
    out = _table(
        "load",
        "MTP",
        "arm",
        "accepted/\nverified",
        "rows/\nround",
        "x\noff",
        "x best\nstatic",
        f"x {MOST}\nfixed",
        "plan\nus",
    )
    for result in results:
        for number, line in enumerate(result.lines):
            out.add_row(
                result.load.name if number == 0 else "",
                "" if line.steps is None or line.arm == "dynamic" else f"{line.steps}",
                Text(line.arm, style="bold" if line.arm == "dynamic" else ""),
                spread(line.accepted, ".2f"),
                spread(line.rows, ".0f"),
                *(spread(value, ".2f") for value in (line.to_off, line.to_static, line.to_most)),
                f"{line.charged_us.median:.0f}" if line.arm == "dynamic" else "",
                end_section=number == len(result.lines) - 1,
            )
    return out


def claims_table(results: Sequence[LoadResult]) -> Table:
    """Published figures beside the model's."""
    out = _table(
        "load",
        "requests/s\npublished",
        "\nmodelled",
        "fewer rows\npublished",
        "\nmodelled",
        "points\npublished",
        "\nmodelled",
    )
    for result in results:
        claim, own = result.load.claim, result.compared[MODELLED.name]
        out.add_row(
            result.load.name,
            f"{claim.gain:+.1%}",
            spread(own.gain, "+.0%"),
            f"{claim.fewer_rows:.1f}x",
            spread(own.fewer_rows, ".1f"),
            f"{100 * claim.more_accepted:+.0f}",
            spread(_points(own.more_accepted), "+.0f"),
        )
    return out


def worlds_table(results: Sequence[LoadResult]) -> Table:
    """The sensitivity of the three figures, a row per assumption."""
    out = _table("assumption", *(result.load.name for result in results))
    out.add_row("published", *(_claim(result.load.claim) for result in results), end_section=True)
    for world in ASSUMPTIONS:
        out.add_row(world.name, *(_figures(result.compared[world.name]) for result in results))
    return out


def _claim(claim: Claim) -> str:
    return f"{claim.gain:+.0%}  {claim.fewer_rows:.1f}x  {100 * claim.more_accepted:+.0f}"


def _figures(own: Comparison) -> str:
    points = "-" if own.more_accepted is None else f"{100 * own.more_accepted.median:+.0f}"
    return f"{own.gain.median:+.0%}  {own.fewer_rows.median:.1f}x  {points}"


def verdicts(results: Sequence[LoadResult]) -> list[str]:
    """Which published figures the model reaches, what it takes where it does not, and what explains the rest."""
    lines = []
    for result in results:
        claim, name = result.load.claim, result.load.name
        own = result.compared[MODELLED.name]
        for what, published, read in FIGURES:
            wanted, reached = published(claim), read(own)
            if reached is None or reached < wanted:
                lines.append(_missed(f"{name}: {what}", wanted, reached, result, read))
        lines.append(f"{name}: nearest to all three published figures is {nearest(result)!r}{_outside(own, claim)}")
    lines += [f"Lowest of dynamic over {what}: {_lowest(results, of)}" for what, of in BASES]
    return lines


FIGURES: tuple[tuple[str, Callable[[Claim], float], Callable[[Comparison], float | None]], ...] = (
    ("gain", lambda claim: claim.gain, lambda own: own.gain.median),
    ("fewer rows", lambda claim: claim.fewer_rows, lambda own: own.fewer_rows.median),
    (
        "acceptance",
        lambda claim: claim.more_accepted,
        lambda own: None if own.more_accepted is None else own.more_accepted.median,
    ),
)
BASES = (("off", "to_off"), ("best static", "to_static"), ("3 fixed steps", "to_fewest"))


def _missed(
    what: str, wanted: float, reached: float | None, result: LoadResult, read: Callable[[Comparison], float | None]
) -> str:
    values = {name: value for name, own in result.compared.items() if (value := read(own)) is not None}
    would = [name for name, value in values.items() if value >= wanted]
    shown = "nothing" if reached is None else f"{reached:.3g}"
    tail = f"reached with: {'; '.join(would)}" if would else "reached with none of the assumptions tried"
    return f"{what}: the model gives {shown} of the published {wanted:.3g}; {tail}"


def nearest(result: LoadResult) -> str:
    """The assumption whose three figures are closest to the published ones: summed squares of log ratios and of points
    over 20."""
    claim = result.load.claim

    def distance(own: Comparison) -> float:
        gain = math.log((1 + own.gain.median) / (1 + claim.gain))
        rows = math.log(own.fewer_rows.median / claim.fewer_rows)
        points = 5 * ((own.more_accepted.median if own.more_accepted else 0.0) - claim.more_accepted)
        return gain**2 + rows**2 + points**2

    return min(result.compared, key=lambda name: distance(result.compared[name]))


def _outside(own: Comparison, claim: Claim) -> str:
    share = outside_share(own.gain.median, claim.gain)
    if share is None:
        return ""
    return (
        f"; as modelled, its gain is the published one if a server with {MOST} fixed steps spends {share:.2f} times as "
        "long outside decode rounds (prompts, waiting) as in them"
    )


def _lowest(results: Sequence[LoadResult], of: str) -> str:
    found: list[tuple[float, str]] = []
    for result in results:
        fewest = next(line.to_most.median for line in result.lines if line.arm == "fixed")
        for line in result.lines:
            if line.arm == "dynamic":
                ratio = line.to_most.median / fewest if of == "to_fewest" else getattr(line, of).median
                found.append((ratio, f"{result.load.name}, MTP {line.steps}"))
    ratio, where = min(found)
    return f"{ratio:.3f} ({where})"


def _points(shares: Spread | None) -> Spread | None:
    return None if shares is None else Spread(100 * shares.median, 100 * shares.low, 100 * shares.high)


def _table(*headings: str) -> Table:
    out = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in headings:
        left = heading in ("load", "arm", "assumption")
        out.add_column(
            f"\n{heading}" if "\n" not in heading else heading, justify="left" if left else "right", no_wrap=True
        )
    return out
