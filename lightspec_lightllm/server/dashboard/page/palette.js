// Colours come from the style sheet, so that there is one palette for both.

const NAMES = ["text", "muted", "line", "card", "blue", "teal", "amber", "violet", "slate", "rose", "heat-0", "heat-1", "heat-2", "heat-3"];

export function palette() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

export const STAGE_COLOURS = { schedule: "slate", plan: "violet", target: "blue", commit: "teal", draft: "amber" };

export const heat = (colours) => [0, 1, 2, 3].map((step) => [step / 3, colours[`heat-${step}`]]);

/** A colour of the style sheet (#rrggbb) with some of it taken away; plotly knows no color-mix(). */
export function faded(colour, opacity) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${opacity})`;
}
