// What the planner decided: all at once, and over time.

import { faded, heat } from "./palette.js";
import { axis, layout } from "./plots.js";
import { ratio, slices, sum } from "./sums.js";
import { ago, number, percent } from "./words.js";

const range = (first, last, step = 1) =>
  Array.from({ length: Math.round((last - first) / step) + 1 }, (_, at) => first + at * step);

const SMALL = 8; // most draft steps up to which budgets are told by halves of a row, and cells have room for figures

/** The budgets that are told apart, in verify rows per request. */
const budgetsFor = (most) => range(1, 1 + most, most <= SMALL ? 0.5 : 1);
const budgetOf = (half, most) => (most <= SMALL ? half / 2 : Math.round(half / 2));

/** Rounds by "budget,steps". */
function counted(total, most) {
  const found = new Map();
  for (const [key, rounds] of total.decisions) {
    const [half, steps] = key.split(",").map(Number);
    const into = `${budgetOf(half, most)},${steps}`;
    found.set(into, (found.get(into) ?? 0) + rounds);
  }
  return found;
}

/** Heat map of the shares of rounds by draft steps (across) and verify rows per request (up). */
export function decisionMap({ total, most }, colours) {
  const steps = range(0, most);
  const budgets = budgetsFor(most);
  const decisions = counted(total, most);
  const share = budgets.map((rows) =>
    steps.map((d) => (decisions.get(`${rows},${d}`) ?? 0) / Math.max(total.rounds, 1)));
  const shown = share.map((line) => line.map((value) => value || null));
  const top = Math.max(...share.flat(), 0.01);
  const best = [...decisions].sort((a, b) => b[1] - a[1])[0];
  let note = "No rounds in the time shown.";
  if (best) {
    const [rows, d] = best[0].split(",").map(Number);
    note = `${percent(best[1] / total.rounds)} of ${number(total.rounds, 0)} rounds: `
      + `about ${rows} ${rows === 1 ? "row" : "rows"} per request, ${d} draft ${d === 1 ? "step" : "steps"}.`;
  }
  return {
    traces: [{
      type: "heatmap", x: steps, y: budgets, z: shown, zmin: 0, zmax: top, colorscale: heat(colours), showscale: false,
      xgap: 1.5, ygap: 1.5, hoverongaps: false, texttemplate: "%{text}",
      text: share.map((line) => line.map((value) => (value >= 0.02 && most <= SMALL ? percent(value) : ""))),
      textfont: { size: 11 },
      hovertemplate: "%{y} rows per request, %{x} steps<br>%{z:.1%} of rounds<extra></extra>",
    }],
    layout: layout(colours, {
      xaxis: axis(colours, { title: { text: "Draft steps" }, dtick: most <= SMALL ? 1 : 3, range: [-0.5, most + 0.5], showgrid: false }),
      yaxis: axis(colours, { title: { text: "Verify rows per request" }, tick0: 1, dtick: most <= SMALL ? 1 : 3, range: [0.4, 1.6 + most], showgrid: false }),
    }),
    note,
  };
}

/** Three charts above each other on one axis of time: verify rows per request, draft steps, requests. */
export function timeline({ buckets, total, most, end, seconds }, colours) {
  const width = seconds <= 60 ? 1 : seconds <= 180 ? 2 : 5;
  const begin = end + 1 - seconds;
  const parts = slices(buckets, begin, end + 1, width).map(({ from, buckets: some }) => ({ from, some, ...sum(some) }));
  const x = parts.map(({ from }) => from + width / 2 - end - 1);
  const when = parts.map(({ from }) => ago(end + 1 - from));
  const share = (values, pick) => values.map((value) => parts.map((part) => {
    let rounds = 0;
    for (const [key, count] of part.decisions) if (pick(key.split(",").map(Number)) === value) rounds += count;
    return rounds ? rounds / part.rounds : null;
  }));
  const mean = (name, by) => parts.map((part) => ratio(part[name], part[by]));
  const last = (name) => parts.map(({ some }) => (some.length ? some.at(-1)[name] : null));
  const budgets = budgetsFor(most);
  const steps = range(0, most);
  const map = (y, z, axisName, unit) => ({
    type: "heatmap", x, y, z, yaxis: axisName, zmin: 0, zmax: 1, colorscale: heat(colours), showscale: false,
    hoverongaps: false, customdata: y.map(() => when),
    hovertemplate: `%{customdata}: %{z:.0%} of rounds<br>%{y} ${unit}<extra></extra>`,
  });
  const line = (y, axisName, colour, name, more = {}) => ({
    type: "scatter", mode: "lines", x, y, yaxis: axisName, name, customdata: when, connectgaps: false,
    line: { color: colour, width: 2, ...(more.line ?? {}) },
    hovertemplate: `%{customdata}<br>${name}: %{y:.2f}<extra></extra>`, ...(more.trace ?? {}),
  });
  const label = (text, y) => ({
    text, x: 0, y, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false,
    font: { color: colours.muted, size: 12 },
  });
  const mostRequests = Math.max(1, ...last("running"), ...last("waiting"));
  const marks = { 60: [60, 45, 30, 15], 180: [180, 120, 60], 600: [600, 480, 360, 240, 120] }[seconds];
  const strip = (domain, more) => axis(colours, { domain, showgrid: false, nticks: 4, ...more });
  return {
    traces: [
      map(budgets, share(budgets, ([half]) => budgetOf(half, most)), "y", "rows per request"),
      line(mean("rows", "requests"), "y", colours.rose, "mean rows per request"),
      map(steps, share(steps, ([, d]) => d), "y2", "draft steps"),
      line(mean("made", "rounds"), "y2", colours.rose, "mean draft steps"),
      line(last("running"), "y3", colours.teal, "running requests",
        { trace: { fill: "tozeroy", fillcolor: faded(colours.teal, 0.15), hovertemplate: "%{customdata}<br>%{y} running<extra></extra>" }, line: { shape: "hv" } }),
      line(last("waiting"), "y3", colours.amber, "waiting requests",
        { trace: { hovertemplate: "%{customdata}<br>%{y} waiting<extra></extra>" }, line: { shape: "hv", dash: "dot" } }),
    ],
    layout: layout(colours, {
      margin: { l: 36, r: 22, t: 20, b: 32 },
      xaxis: axis(colours, {
        range: [-seconds, 0], anchor: "y3", showgrid: false, tickvals: [...marks.map((mark) => -mark), 0],
        ticktext: [...marks.map((mark) => (seconds <= 60 ? `−${mark} s` : `−${mark / 60} min`)), ago(0)],
      }),
      yaxis: strip([0.68, 1], { dtick: Math.ceil(most / 4), tick0: 1, range: [0.75, 1.25 + most] }),
      yaxis2: strip([0.32, 0.6], { dtick: Math.ceil(most / 4), range: [-0.5, 0.5 + most] }),
      yaxis3: strip([0, 0.24], { range: [0, 1.15 * mostRequests], ...(mostRequests < 4 ? { dtick: 1 } : {}) }),
      annotations: [
        label("Verify rows per request", 1), label("Draft steps", 0.6),
        label("Requests: running (filled), waiting (dotted)", 0.24),
      ],
    }),
    note: total.rounds
      ? `On average ${number(ratio(total.rows, total.requests))} rows per request and ${number(ratio(total.steps, total.rounds))} `
        + `draft steps made, ${number(ratio(total.steps, total.rounds))} planned; ${number(total.probes, 0)} probes.`
      : "No rounds in the time shown.",
  };
}
