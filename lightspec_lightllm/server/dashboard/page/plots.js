// What all charts share: layout, axes and how they are drawn.

import { palette } from "./palette.js";

const CONFIG = { displayModeBar: false, doubleClick: false, showTips: false };

export function axis(colours, more = {}) {
  return {
    gridcolor: colours.line, linecolor: colours.line, zeroline: false, fixedrange: true, ticks: "",
    tickfont: { color: colours.muted, size: 12 }, automargin: true, ...more,
    title: { font: { color: colours.muted, size: 12 }, standoff: 8, ...(more.title ?? {}) },
  };
}

export function layout(colours, more = {}) {
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, hovermode: "closest",
    margin: { l: 44, r: 12, t: 8, b: 48 }, showlegend: false,
    font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", color: colours.text, size: 12 },
    hoverlabel: { bgcolor: colours.card, bordercolor: colours.line, font: { color: colours.text } },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: colours.muted } },
    ...more,
  };
}

/** A chart: `figure(view, colours)` gives { traces, layout, note }, and `note` is its content in one line. */
export class Plot {
  #element;
  #figure;
  #note;
  #visible = false;
  #view = null;
  #drawn = false;

  constructor(name, figure, whenSeen) {
    this.#element = document.getElementById(name);
    this.#figure = figure;
    this.#note = document.getElementById(`${name}-note`);
    whenSeen.observe(this.#element);
    new ResizeObserver(() => this.#drawn && window.Plotly.Plots.resize(this.#element)).observe(this.#element);
    this.#element.addEventListener("seen", (event) => {
      this.#visible = event.detail;
      if (this.#visible && this.#view) this.#draw();
    });
  }

  show(view) {
    this.#view = view;
    if (this.#visible) this.#draw();
  }

  #draw() {
    const { traces, layout: shape, note } = this.#figure(this.#view, palette());
    window.Plotly.react(this.#element, traces, shape, CONFIG);
    this.#drawn = true;
    if (this.#note && note !== undefined && this.#note.textContent !== note) this.#note.textContent = note;
    this.#element.setAttribute("aria-label", note ?? "");
  }
}

/** Tells charts whether they are on the screen; the others are not drawn. */
export function whenSeen() {
  return new IntersectionObserver(
    (entries) => entries.forEach(({ target, isIntersecting }) =>
      target.dispatchEvent(new CustomEvent("seen", { detail: isIntersecting }))),
    { rootMargin: "200px" },
  );
}
