// Whether drafts are right, and whether it is known beforehand.

import { faded } from "./palette.js";
import { axis, layout } from "./plots.js";
import { calibrationError, ratio } from "./sums.js";
import { count, percent } from "./words.js";

const LEAST = 10; // drafts below which the accepted share says too little to be drawn

/** By draft position: accepted if all before were (bars); accepted at all, foretold and observed (lines). */
export function positions({ total, most }, colours) {
  const x = Array.from({ length: most }, (_, at) => at + 1);
  const known = (some, all) => (all >= LEAST ? some / all : null);
  const share = x.map((_, at) => known(total.right[at] ?? 0, total.tried[at] ?? 0));
  const [verified, foretold, right] = total.by_depth ?? [[], [], []];
  const line = (list, name, colour, dash) => ({
    type: "scatter", mode: "lines+markers", name, x, y: x.map((_, at) => known(list[at] ?? 0, verified[at] ?? 0)),
    customdata: x.map((_, at) => count(verified[at] ?? 0)), line: { color: colour, width: 2, dash }, marker: { size: 7 },
    hovertemplate: `Draft %{x}, ${name}: %{y:.1%}<br>of %{customdata} with a row<extra></extra>`,
  });
  const tried = total.tried.some((number) => number > 0);
  return {
    traces: [
      { type: "bar", name: "if all before were accepted", x, y: share, marker: { color: faded(colours.slate, 0.3) },
        customdata: x.map((_, at) => count(total.tried[at] ?? 0)),
        hovertemplate: "Draft %{x}: %{y:.1%} accepted<br>of %{customdata} whose predecessors were<extra></extra>" },
      line(right, "observed", colours.blue, "solid"),
      line(foretold, "predicted", colours.amber, "dot"),
    ],
    layout: layout(colours, {
      showlegend: true, bargap: 0.45, margin: { l: 48, r: 16, t: 28, b: 48 },
      xaxis: axis(colours, { title: { text: "Position of the draft" }, dtick: 1, range: [0.4, most + 0.6], showgrid: false }),
      yaxis: axis(colours, { range: [0, 1.02], tickformat: ".0%", nticks: 6 }),
    }),
    note: tried
      ? `First drafts are accepted in ${percent(ratio(total.right[0], total.tried[0]))} of ${count(total.tried[0])} trials; a draft with a row in ${percent(ratio(total.accepted, total.verified))}.`
      : total.rounds ? "No draft was verified in the time shown." : "No rounds in the time shown.",
  };
}

/** Reliability of what is foretold of a draft: the planner's survival and the drafter's confidence. */
export function calibration({ total }, colours) {
  const line = (tally, name, colour) => {
    const [counts, foretold, right] = tally ?? [[], [], []];
    const used = counts.map((_, at) => at).filter((at) => counts[at] >= LEAST);
    const top = Math.max(...counts, 1);
    return {
      type: "scatter", mode: "lines+markers", name, x: used.map((at) => foretold[at] / counts[at]),
      y: used.map((at) => right[at] / counts[at]), customdata: used.map((at) => count(counts[at])),
      line: { color: colour, width: 2 }, marker: { size: used.map((at) => 5 + 11 * Math.sqrt(counts[at] / top)), opacity: 0.85 },
      hovertemplate: `${name} %{x:.0%}: %{y:.1%} accepted<br>%{customdata} drafts<extra></extra>`,
    };
  };
  const errors = [["planner's survival", total.survival], ["drafter's confidence", total.confidence]]
    .filter(([, tally]) => tally)
    .map(([name, tally]) => `${name} by ${percent(calibrationError(tally), 1)}`);
  return {
    traces: [
      { type: "scatter", mode: "lines", x: [0, 1], y: [0, 1], hoverinfo: "skip", showlegend: false, line: { color: colours.slate, width: 1, dash: "dot" } },
      line(total.survival, "planner's survival", colours.blue),
      line(total.confidence, "drafter's confidence", colours.amber),
    ],
    layout: layout(colours, {
      showlegend: true, margin: { l: 48, r: 16, t: 28, b: 48 },
      xaxis: axis(colours, { title: { text: "Foretold" }, range: [-0.02, 1.03], tickformat: ".0%", nticks: 6 }),
      yaxis: axis(colours, { range: [-0.02, 1.05], tickformat: ".0%", nticks: 6 }),
    }),
    note: errors.length ? `Off on average: ${errors.join(", ")}.` : total.rounds ? "Nothing was foretold in the time shown." : "No rounds in the time shown.",
  };
}
