// The figures at the top, each with its course over the time shown.

import { ratio, slices, speedup, sum } from "./sums.js";
import { count, figures, milliseconds, number, percent } from "./words.js";

const NOW_SECONDS = 5; // rates "now" are over so many seconds: a slow round may span more than one

const TILES = [
  { name: "Tokens per second", value: ({ now }) => figures(now.rate), note: ({ rate }) => `${figures(rate)} on average`,
    course: (part, seconds) => part.committed / seconds },
  { name: "Accept length", value: ({ total }) => number(ratio(total.accepted + total.requests, total.requests)), note: () => "per request and round",
    course: (part) => ratio(part.accepted + part.requests, part.requests) },
  { name: "Accepted / verified", value: ({ total }) => percent(ratio(total.accepted, total.verified)), note: ({ total }) => `of ${count(total.verified)} with a row`,
    course: (part) => ratio(part.accepted, part.verified) },
  { name: "Accepted / drafted", value: ({ total }) => percent(ratio(total.accepted, total.drafted)), note: ({ total }) => `of ${count(total.drafted)} drafts`,
    course: (part) => ratio(part.accepted, part.drafted) },
  { name: "Running", value: ({ last }) => number(last?.running ?? 0, 0), note: ({ last }) => `${number(last?.waiting ?? 0, 0)} waiting`,
    course: (part) => ratio(part.requests, part.rounds) ?? 0 },
  { name: "Speed-up", value: ({ total }) => (speedup(total) === null ? number(null) : `${number(speedup(total))}×`), note: () => "by the cost table",
    course: (part) => speedup(part) },
  { name: "Round", value: ({ total }) => milliseconds(ratio(total.measured_ms, total.plain)), note: ({ total }) => (total.rounds ? `${number(ratio(total.rounds, total.seconds), 1)} a second` : "none in the time shown"),
    course: (part) => ratio(part.measured_ms, part.plain) },
  { name: "Planner", value: ({ total }) => milliseconds(ratio(total.planner_us / 1000, total.rounds)), note: ({ total }) => (total.rounds ? `${percent(ratio(total.planner_us / 1000 / total.rounds, ratio(total.measured_ms, total.plain) ?? 0), 2)} of the round` : "per round"),
    course: (part) => ratio(part.planner_us, part.rounds) },
];

const COURSE_POINTS = 60;
const [WIDTH, HEIGHT] = [120, 28];

/** Makes the tiles; the function returned fills them. */
export function makeTiles(section) {
  const parts = TILES.map(({ name }) => {
    const tile = document.createElement("div");
    tile.className = "tile card";
    tile.innerHTML = `<h2></h2><p class="value"></p><p class="muted"></p>
      <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" aria-hidden="true"><path fill="none"/></svg>`;
    const [title, value, note, drawing] = tile.children;
    title.textContent = name;
    section.append(tile);
    return { value, note, path: drawing.firstElementChild };
  });
  return (view) => {
    const { buckets, end, seconds } = view;
    const width = Math.max(1, Math.round(seconds / COURSE_POINTS));
    const recent = buckets.filter(({ t }) => t > end - NOW_SECONDS);
    const span = Math.max(1, Math.min(seconds, end - (buckets[0]?.t ?? end) + 1));
    const known = {
      ...view,
      total: { ...view.total, seconds: span },
      now: { rate: sum(recent).committed / NOW_SECONDS },
      rate: view.total.committed / span,
      last: buckets.at(-1),
    };
    const course = slices(buckets, end + 1 - seconds, end + 1, width).map(({ buckets: some }) => (some.length ? sum(some) : null));
    TILES.forEach((tile, at) => {
      parts[at].value.textContent = tile.value(known);
      parts[at].note.textContent = tile.note(known);
      parts[at].path.setAttribute("d", path(course.map((part) => part && tile.course(part, width))));
    });
  };
}

/** An SVG path through numbers, with gaps where there are none. */
function path(values) {
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  if (!known.length) return "";
  const [low, high] = [Math.min(...known), Math.max(...known)];
  let pen = "M";
  return values.map((value, at) => {
    if (value === null || !Number.isFinite(value)) {
      pen = "M";
      return "";
    }
    const x = (WIDTH * at) / Math.max(values.length - 1, 1);
    const y = high > low ? HEIGHT - 3 - ((HEIGHT - 6) * (value - low)) / (high - low) : HEIGHT / 2;
    const command = `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
    return command;
  }).join("");
}
