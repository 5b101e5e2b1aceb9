// The page: follows the feed, shows the chosen stretch of time, and says when it is not up to date.

import { calibration, positions } from "./acceptance.js";
import { decisionMap, timeline } from "./decisions.js";
import { Feed } from "./feed.js";
import { makePlans } from "./plans.js";
import { Plot, whenSeen } from "./plots.js";
import { STAGE_COLOURS } from "./palette.js";
import { prediction, stageFigures, stageRidges } from "./rounds.js";
import { sum } from "./sums.js";
import { makeTiles } from "./tiles.js";
import { ago, clock, milliseconds, percent } from "./words.js";

const at = (id) => document.getElementById(id);
const feed = new Feed();
const seen = whenSeen();
const plots = [
  new Plot("decisions", decisionMap, seen),
  new Plot("timeline", timeline, seen),
  new Plot("stages", stageRidges, seen),
  new Plot("prediction", prediction, seen),
  new Plot("positions", positions, seen),
  new Plot("calibration", calibration, seen),
];
const fillTiles = makeTiles(at("tiles"));
const fillPlans = makePlans(at("plans"));

const REST = 4; // charts are left alone for so many times as long as they took to draw: slow devices stay usable

let seconds = 60;
let until = null; // the last second shown, or null: the newest there is
let drawAgain = 0; // when the charts may be drawn again, by performance.now()

function view() {
  const newest = feed.buckets.at(-1)?.t ?? Math.floor(Date.now() / 1000);
  const end = until ?? newest;
  const buckets = feed.buckets.filter(({ t }) => t > end - seconds && t <= end);
  return { buckets, total: sum(buckets), end, seconds, most: feed.about?.max_draft_steps ?? 1, newest };
}

function render() {
  drawAgain = 0;
  follow();
}

function follow() {
  showState();
  if (document.hidden || !feed.about) return;
  const shown = view();
  const idle = !feed.buckets.some(({ rounds }) => rounds > 0);
  at("empty").hidden = !idle;
  fillTiles(shown);
  fillPlans(shown);
  fillStages(shown);
  showScrub(shown);
  const began = performance.now();
  if (began < drawAgain) return;
  for (const plot of plots) plot.show(shown);
  drawAgain = performance.now() + REST * (performance.now() - began);
}

function showState() {
  const words = { connecting: "Connecting", live: until === null ? "Live" : "Live, held", lost: "Disconnected" };
  at("status").dataset.state = feed.state;
  at("status").lastElementChild.textContent = words[feed.state];
  const lines = [];
  if (feed.state === "lost") {
    lines.push("The server does not answer. Trying again"
      + (feed.heard ? `; shown is what it told until ${feed.heard.toLocaleTimeString("en-GB")}.` : "."));
  }
  if (feed.state === "live" && feed.notice) lines.push(feed.notice);
  if (feed.state === "live" && feed.buckets.findLast(({ rounds }) => rounds > 0)?.fallback) {
    lines.push("Planning has failed: requests are served on with a fixed number of draft steps. The server's log says why.");
  }
  const text = lines.join(" ");
  if (at("notice").textContent !== text) at("notice").textContent = text;
  at("notice").hidden = !text;
  if (feed.about) {
    const { model, drafter, strategy, engine, device } = feed.about;
    at("about").textContent = `${model} · drafter ${drafter} · strategy ${strategy} · ${engine}, ${device}`;
    document.title = `lightspec · ${model}`;
  }
}

function fillStages(shown) {
  at("stages-table").tBodies[0].replaceChildren(...stageFigures(shown).map(([stage, share, median, high]) => {
    const row = document.createElement("tr");
    const name = document.createElement("th");
    name.scope = "row";
    name.textContent = stage;
    name.style.setProperty("--swatch", `var(--${STAGE_COLOURS[stage]})`);
    row.append(name, ...[percent(share, 1), milliseconds(median), milliseconds(high)].map((text) => {
      const made = document.createElement("td");
      made.textContent = text;
      return made;
    }));
    return row;
  }));
}

// --- controls ---------------------------------------------------------------------------------------------------------

/** The slider counts seconds back from the newest, negative, so that it moves to the right with time. */
function showScrub({ end, newest }) {
  const slider = at("until");
  const oldest = feed.buckets[0]?.t ?? newest;
  const reach = Math.max(0, newest - oldest - 1);
  slider.min = -reach;
  slider.disabled = reach === 0;
  slider.value = Math.max(end - newest, -reach);
  const text = until === null ? "now" : `${clock(end)}, ${ago(newest - end)}`;
  at("until-text").textContent = text;
  slider.setAttribute("aria-valuetext", text);
  at("live").hidden = until === null;
}

at("until").addEventListener("input", (event) => {
  const back = Number(event.target.value);
  until = back === 0 ? null : (feed.buckets.at(-1)?.t ?? 0) + back;
  render();
});
at("live").addEventListener("click", () => {
  until = null;
  render();
});
for (const button of document.querySelectorAll("[data-window]")) {
  button.addEventListener("click", () => {
    seconds = Number(button.dataset.window);
    for (const other of document.querySelectorAll("[data-window]")) other.ariaPressed = String(other === button);
    render();
  });
}
at("theme").addEventListener("click", () => window.lightspecTheme.toggle());
document.addEventListener("themechange", render);
document.addEventListener("visibilitychange", render);

const curl = `curl ${location.origin}/v1/completions -H 'Content-Type: application/json' \\\n  -d '{"prompt": "Count from one to fifty:", "max_tokens": 200}'`;
at("curl").textContent = curl;
at("copy").hidden = !navigator.clipboard; // browsers offer it on secure origins only
at("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(curl);
  at("copy").textContent = "Copied";
  setTimeout(() => { at("copy").textContent = "Copy"; }, 2000);
});

feed.addEventListener("change", follow);
feed.connect();
