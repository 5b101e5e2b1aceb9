// What rounds took: by stage, and against what was predicted.

import { STAGE_COLOURS, faded } from "./palette.js";
import { axis, layout } from "./plots.js";
import { BINS_PER_DECADE, binStart, quantile, ratio } from "./sums.js";
import { milliseconds, percent } from "./words.js";

const STAGES = Object.keys(STAGE_COLOURS);
const MAX_DOTS = 500;

/** One ridge per stage: how its times are distributed, on a logarithmic axis. */
export function stageRidges({ total }, colours) {
  const bins = STAGES.flatMap((stage) => [...(total.stages[stage]?.keys() ?? [])]);
  const first = Math.min(...bins, BINS_PER_DECADE * 2);
  const final = Math.max(...bins, BINS_PER_DECADE * 5) + 1;
  const traces = STAGES.map((stage, at) => {
    const found = total.stages[stage] ?? new Map();
    const top = Math.max(...found.values(), 1);
    const base = STAGES.length - 1 - at;
    const x = [binStart(first)];
    const y = [base];
    for (let bin = first; bin < final; bin += 1) {
      const height = base + (0.82 * (found.get(bin) ?? 0)) / top;
      x.push(binStart(bin), binStart(bin + 1));
      y.push(height, height);
    }
    x.push(binStart(final), binStart(first));
    y.push(base, base);
    return {
      type: "scatter", mode: "lines", x, y, fill: "toself", fillcolor: faded(colours[STAGE_COLOURS[stage]], 0.35),
      line: { color: colours[STAGE_COLOURS[stage]], width: 1.25 }, hoverinfo: "skip",
    };
  });
  const parts = STAGES.map((stage) => `${stage} ${milliseconds(quantile(total.stages[stage] ?? [], 0.5))}`);
  return {
    traces,
    layout: layout(colours, {
      margin: { l: 64, r: 16, t: 8, b: 32 },
      xaxis: axis(colours, {
        type: "log", range: [Math.log10(binStart(first)), Math.log10(binStart(final))],
        tickvals: [0.001, 0.01, 0.1, 1, 10, 100, 1000, 10000],
        ticktext: ["1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s", "10 s"],
      }),
      yaxis: axis(colours, {
        range: [-0.1, STAGES.length], tickvals: STAGES.map((_, at) => STAGES.length - 1 - at + 0.2), ticktext: STAGES,
        showgrid: false,
      }),
    }),
    note: total.rounds ? `Median of each stage: ${parts.join(", ")}` : "No rounds in the time shown.",
  };
}

/** The rows of the table below the ridges: [stage, share of all time, median, 95th percentile]. */
export function stageFigures({ total }) {
  const all = Object.values(total.stage_ms).reduce((a, b) => a + b, 0);
  return STAGES.map((stage) => [
    stage,
    ratio(total.stage_ms[stage] ?? 0, all),
    quantile(total.stages[stage] ?? [], 0.5),
    quantile(total.stages[stage] ?? [], 0.95),
  ]);
}

/** Dots on a diagonal: what a round was expected to take, and what it took. */
export function prediction({ total }, colours) {
  const points = total.points.slice(-MAX_DOTS);
  const times = points.flatMap(([predicted, measured]) => [predicted, measured]).sort((a, b) => a - b);
  const low = 0.9 * times[0];
  const high = 1.15 * times[Math.floor(0.985 * times.length)]; // a round that was held up must not dwarf the others
  const beyond = points.filter(([predicted, measured]) => Math.max(predicted, measured) > high).length;
  const limits = points.length ? [low, high] : [0, 1];
  return {
    traces: [
      { type: "scatter", mode: "lines", x: [...limits, limits[1], limits[0]], hoverinfo: "skip", fill: "toself",
        y: [0.9 * limits[0], 0.9 * limits[1], 1.1 * limits[1], 1.1 * limits[0]], line: { width: 0 }, fillcolor: faded(colours.slate, 0.14) },
      { type: "scatter", mode: "lines", x: limits, y: limits, hoverinfo: "skip", line: { color: colours.slate, width: 1, dash: "dot" } },
      { type: "scatter", mode: "markers", x: points.map((point) => point[0]), y: points.map((point) => point[1]),
        customdata: points.map((point) => point[2]), marker: { color: faded(colours.blue, 0.45), size: 6 },
        hovertemplate: "%{customdata} requests<br>predicted %{x:.1f} ms, measured %{y:.1f} ms<extra></extra>" },
    ],
    layout: layout(colours, {
      xaxis: axis(colours, { title: { text: "Predicted ms" }, range: limits, nticks: 6 }),
      yaxis: axis(colours, { title: { text: "Measured ms" }, range: limits, nticks: 6 }),
    }),
    note: total.timed
      ? `Off by ${percent(total.error / total.timed, 1)} on average; in sum, measured is ${percent(ratio(total.timed_ms, total.predicted_ms))} of predicted.`
        + (beyond ? ` ${beyond} of ${points.length} dots lie beyond.` : "")
      : "No rounds in the time shown.",
  };
}
