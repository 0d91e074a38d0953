/** The tenant's newest deliberations, as they come and end. */

import { ENDS, followed } from "./gateway.js";

const SHOWN_MAX = 200;
const TYPES = ["accepted", "cancelling", "deleted", ...ENDS].map((name) => `deliberation.${name}`);

/** Shows them in `body`, and marks the one that is `current()`. Returns what ends it, and what marks anew. */
export function listed(body, current, said, refused) {
  const rows = new Map();

  const cell = (row, text) => {
    const made = row.insertCell();
    made.textContent = text;
    return made;
  };
  const mark = () => {
    for (const [id, row] of rows) row.toggleAttribute("aria-current", id === current());
  };
  const status = (id, told) => {
    const row = rows.get(id);
    if (row === undefined || ENDS.includes(row.lastChild.dataset.status)) return;
    row.lastChild.textContent = row.lastChild.dataset.status = told;
  };
  const put = (id, task, strategy, agents, told) => {
    if (rows.has(id)) return;
    const row = body.insertRow(0);
    rows.set(id, row);
    const link = document.createElement("a");
    link.href = `#${id}`;
    link.textContent = task.length > 120 ? `${task.slice(0, 120)}…` : task;
    row.insertCell().append(link);
    cell(row, strategy);
    cell(row, agents);
    cell(row, "");
    status(id, told);
    mark();
    while (rows.size > SHOWN_MAX) remove(body.lastChild.dataset.id);
    row.dataset.id = id;
  };
  const remove = (id) => {
    rows.get(id)?.remove();
    rows.delete(id);
  };

  const heard = {
    "deliberations.snapshot": ({ items }) => {
      for (const id of [...rows.keys()]) remove(id);
      for (const each of items.toReversed()) {
        put(each.id, each.task, each.strategy, each.agents.length, each.status);
      }
    },
    "deliberation.accepted": ({ deliberation_id, specification }) => {
      put(deliberation_id, specification.task, specification.strategy, specification.agents.length, "pending");
    },
    "stage.opened": ({ deliberation_id, stage }) => {
      if (stage === 1) status(deliberation_id, "in_progress");
    },
    "deliberation.deleted": ({ deliberation_id }) => remove(deliberation_id),
  };
  for (const name of ["cancelling", ...ENDS]) {
    heard[`deliberation.${name}`] = ({ deliberation_id }) => status(deliberation_id, name);
  }
  const end = followed(`/events?types=${[...TYPES, "stage.opened"].join(",")}`, heard, said, refused);
  return { end, mark };
}
