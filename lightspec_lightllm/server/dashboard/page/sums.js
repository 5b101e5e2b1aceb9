// Adding up seconds.

const SCALARS = [
  "rounds", "requests", "rows", "steps", "made", "drafted", "verified", "accepted", "committed", "predicted_tokens",
  "predicted_ms", "plain", "plain_requests", "plain_committed", "measured_ms", "off_ms", "planner_us", "probes", "timed", "timed_ms", "error",
];
const TALLIES = ["by_depth", "survival", "confidence"];

const addInto = (into, list) => list.forEach((value, at) => { into[at] = (into[at] ?? 0) + value; });

/** The sum of some buckets; fields as of a bucket, `decisions` and the bins of `stages` as maps from key to count. */
export function sum(buckets) {
  const total = { decisions: new Map(), stages: {}, stage_ms: {}, tried: [], right: [], points: [] };
  for (const name of SCALARS) total[name] = 0;
  for (const name of TALLIES) total[name] = null;
  for (const bucket of buckets) {
    for (const name of SCALARS) total[name] += bucket[name] ?? 0;
    for (const [half, steps, count] of bucket.decisions) {
      const key = `${half},${steps}`;
      total.decisions.set(key, (total.decisions.get(key) ?? 0) + count);
    }
    for (const [stage, bins] of Object.entries(bucket.stages)) {
      const into = (total.stages[stage] ??= new Map());
      for (const [bin, count] of bins) into.set(bin, (into.get(bin) ?? 0) + count);
      total.stage_ms[stage] = (total.stage_ms[stage] ?? 0) + bucket.stage_ms[stage];
    }
    addInto(total.tried, bucket.tried);
    addInto(total.right, bucket.right);
    for (const name of TALLIES) {
      if (!bucket[name]) continue;
      const into = (total[name] ??= [[], [], []]);
      bucket[name].forEach((list, at) => addInto(into[at], list));
    }
    total.points.push(...bucket.points);
  }
  return total;
}

/** [first, last] buckets of every `seconds` between two moments: [{ from, buckets }]; times without any are empty. */
export function slices(buckets, begin, end, seconds) {
  const found = [];
  for (let from = begin; from < end; from += seconds) found.push({ from, buckets: [] });
  for (const bucket of buckets) found[Math.floor((bucket.t - begin) / seconds)]?.buckets.push(bucket);
  return found;
}

export const ratio = (a, b) => (b > 0 ? a / b : null);

/** Speed over no speculation: tokens per millisecond against those that the same requests would have made, by the cost table;
 * in rounds that read no prompts. */
export const speedup = (total) =>
  total.off_ms > 0 ? ratio(ratio(total.plain_committed, total.measured_ms) ?? 0, total.plain_requests / total.off_ms) : null;

/** Expected calibration error, 0..1. */
export function calibrationError(tally) {
  if (!tally) return null;
  const [count, foretold, right] = tally;
  const all = count.reduce((a, b) => a + b, 0);
  return all ? count.reduce((sofar, _, at) => sofar + Math.abs(foretold[at] - right[at]), 0) / all : null;
}

export const BINS_PER_DECADE = 16;
/** Milliseconds at which a bin of a stage's times begins. */
export const binStart = (bin) => 10 ** (bin / BINS_PER_DECADE) / 1000;

/** Milliseconds below which a share of the rounds lies; linear in the logarithm within a bin. */
export function quantile(bins, share) {
  const sorted = [...bins].sort((a, b) => a[0] - b[0]);
  const all = sorted.reduce((sofar, [, count]) => sofar + count, 0);
  if (!all) return null;
  let left = share * all;
  for (const [bin, count] of sorted) {
    if (left <= count) return binStart(bin + left / count);
    left -= count;
  }
  return binStart(sorted.at(-1)[0] + 1);
}
