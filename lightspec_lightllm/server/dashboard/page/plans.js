// The last plans that were explained, newest first.

import { clock, milliseconds, number } from "./words.js";

const SHOWN = 10;

function cell(label, text, note) {
  const made = document.createElement("td");
  made.dataset.label = label;
  made.append(text);
  if (note) {
    const small = document.createElement("small");
    small.textContent = note;
    made.append(small);
  }
  return made;
}

function row(plan) {
  const made = document.createElement("tr");
  const per = plan.rows / plan.requests;
  const why = cell("Why", "");
  if (plan.probe) {
    const badge = document.createElement("span");
    badge.className = "badge";
    badge.textContent = "probe";
    why.append(badge);
  }
  for (const [name, text] of [["Rows", plan.budget_reason], ["Steps", plan.steps_reason]]) {
    const line = document.createElement("p");
    const strong = document.createElement("b");
    strong.textContent = `${name}: `;
    line.append(strong, text);
    why.append(line);
  }
  made.append(
    cell("Time", clock(plan.time)),
    cell("Verify rows", number(plan.rows, 0), `${number(per, 1)} × ${plan.requests} ${plan.requests === 1 ? "request" : "requests"}`),
    cell("Draft steps", number(plan.steps, 0)),
    cell("Tokens", number(plan.committed, 0), plan.predicted_tokens ? `${number(plan.predicted_tokens, 1)} expected` : ""),
    cell("Round", milliseconds(plan.measured_ms), plan.predicted_ms ? `${milliseconds(plan.predicted_ms)} expected` : ""),
    why,
  );
  return made;
}

/** The function returned fills the table. */
export function makePlans(table) {
  const body = table.tBodies[0];
  let newest = null;
  return ({ buckets }) => {
    const plans = buckets.map(({ plan }) => plan).filter(Boolean).slice(-SHOWN).reverse();
    const key = `${plans[0]?.time},${plans.length}`;
    if (key === newest) return;
    newest = key;
    body.replaceChildren(...plans.map(row));
    if (!plans.length) {
      const none = document.createElement("td");
      none.colSpan = 6;
      none.className = "muted";
      none.textContent = "No plan in the time shown.";
      const only = document.createElement("tr");
      only.append(none);
      body.append(only);
    }
  };
}
