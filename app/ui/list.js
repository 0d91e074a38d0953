/** The list of the tenant's newest deliberations, updated live. */

import { ENDS, follow } from "./gateway.js";

const SHOWN_MAX = 200;
const TYPES = ["accepted", "cancelling", "deleted", ...ENDS].map((name) => `deliberation.${name}`);

/** Shows the list in `body` and highlights `current()`. Returns functions that end it and that update the highlight. */
export function showList(body, current, onStatus, onLogout) {
  const rows = new Map();

  const cell = (row, text) => {
    row.insertCell().textContent = text;
  };
  const mark = () => {
    for (const [id, row] of rows) row.toggleAttribute("aria-current", id === current());
  };
  const setStatus = (id, status) => {
    const row = rows.get(id);
    if (row === undefined || ENDS.includes(row.lastChild.dataset.status)) return;
    row.lastChild.textContent = row.lastChild.dataset.status = status;
  };
  const put = (id, task, strategy, agents, status) => {
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
    setStatus(id, status);
    mark();
    while (rows.size > SHOWN_MAX) remove(body.lastChild.dataset.id);
    row.dataset.id = id;
  };
  const remove = (id) => {
    rows.get(id)?.remove();
    rows.delete(id);
  };

  const handlers = {
    "deliberations.snapshot": ({ items }) => {
      for (const id of [...rows.keys()]) remove(id);
      for (const each of items.toReversed()) {
        // A summary has one entry for each role.
        const agents = each.agents.reduce((sum, { count }) => sum + count, 0);
        put(each.id, each.task, each.strategy, agents, each.status);
      }
    },
    "deliberation.accepted": ({ deliberation_id, specification }) => {
      put(deliberation_id, specification.task, specification.strategy, specification.agents.length, "pending");
    },
    "stage.opened": ({ deliberation_id, stage }) => {
      if (stage === 1) setStatus(deliberation_id, "in_progress");
    },
    "deliberation.deleted": ({ deliberation_id }) => remove(deliberation_id),
  };
  for (const name of ["cancelling", ...ENDS]) {
    handlers[`deliberation.${name}`] = ({ deliberation_id }) => setStatus(deliberation_id, name);
  }
  const end = follow(`/events?types=${[...TYPES, "stage.opened"].join(",")}`, handlers, onStatus, onLogout);
  return { end, mark };
}
