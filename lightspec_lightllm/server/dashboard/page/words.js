// Numbers and times as they are read.

const NONE = "–";

export function number(value, digits = 2) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** Three figures, whatever the size. */
export function figures(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  return number(value, size >= 100 || value === 0 ? 0 : size >= 10 ? 1 : 2);
}

export const percent = (share, digits = 0) =>
  share === null || !Number.isFinite(share) ? NONE : `${number(100 * share, digits)}%`;

/** 1234567 as 1.2M. */
export const count = (value) => new Intl.NumberFormat("en", { notation: "compact" }).format(value);

export function milliseconds(value) {
  if (value === null || !Number.isFinite(value)) return NONE;
  return value < 1 ? `${figures(1000 * value)} µs` : `${figures(value)} ms`;
}

export const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");

export function ago(seconds) {
  if (seconds <= 0) return "now";
  return seconds < 60 ? `${seconds} s ago` : `${Math.floor(seconds / 60)} min ${String(seconds % 60).padStart(2, "0")} s ago`;
}
