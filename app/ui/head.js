/** The head of one deliberation: seats, task, state and figures. */

import { Messages } from "./actions.js";
import { messagesOf } from "./conversation.js";
import { Stored } from "./files.js";
import { html, useState } from "./html.js";
import { Chips, Copy, counted, Icon, Seats, Status } from "./parts.js";
import { address, of } from "./router.js";
import { at, age, duration, money, number, plural, question, tokensOf } from "./words.js";
import { now, roles } from "./state.js";

const LINE_CHARS_MAX = 160;
/** As the command line shortens ids. */
const ID_CHARS = 10;

export function Head({ resource, seats, label, actions }) {
  const [whole, setWhole] = useState(false);
  const { task, task_file: wholeTask, agents, strategy, rounds, usage, evidence, workspace } = resource;
  const line = question(task);
  const messages = messagesOf(resource);
  const cut = line.length > LINE_CHARS_MAX ? `${line.slice(0, LINE_CHARS_MAX)}…` : line;
  const more = line !== task.trim() || cut !== line || evidence.length > 0 || wholeTask;
  const ended = resource.ended_at !== null;
  const pretended = new Set(roles.value.filter(({ live }) => live?.simulated).map(({ name }) => name));
  return html`<div class="head council"><${Seats} seats=${seats} label=${label} /><div><nav class="crumbs" aria-label="Path"><a href=${address("deliberations")}>Deliberations</a><${Icon} name="right" /><span class="mono">${resource.id.slice(0, ID_CHARS)}</span></nav>
      <h1 dir="auto">${cut}</h1>
      <div class="meta"><${Status} of=${resource} /><${Chips} agents=${counted(agents)} /><span>${strategy}${rounds > 1 ? `, ${plural(rounds, "round")}` : ""}</span>
        ${workspace ? html`<span class="mono" title=${workspace.git ?? workspace.files.map(({ path }) => path).join(", ")}>${workspace.git ? `${workspace.git.split("/").filter(Boolean).at(-1)} at ${workspace.commit.slice(0, 8)}` : plural(workspace.files.length, "file")}</span>` : ""}
        ${agents.some(({ role }) => pretended.has(role)) ? html`<span class="sim" title="No model wrote these texts">Simulated</span>` : ""}
        ${ended ? html`<span>${duration(at(resource.ended_at) - at(resource.started_at ?? resource.created_at))}</span><span>${number(tokensOf(usage))} tokens</span>${usage.cost ? html`<span>${money(usage.cost)}</span>` : ""}<span class="muted">${age(resource.ended_at, now.value)} ago</span>` : ""}
        ${more ? html`<button class="linked" aria-expanded=${whole} onClick=${() => setWhole(!whole)}>whole ${messages ? "conversation" : "task"}${evidence.length ? " and evidence" : ""}</button>` : ""}</div>
      ${whole ? html`${messages ? html`<${Messages} messages=${messages} />` : html`<pre class="sh" tabindex="0" dir="auto">${task}</pre>`}${wholeTask ? html`<p class="small">This is its beginning and its end. The whole task is stored as a file:</p><${Stored} file=${wholeTask} />` : ""}
        ${evidence.map(({ id, title, text, file, source }) => html`<details key=${id} open=${Boolean(file)}><summary class="anywhere">${title}</summary>${file ? html`<${Stored} file=${file} />` : ""}${text || source ? html`<pre class="sh" tabindex="0" dir="auto">${text ?? source}</pre>` : ""}</details>`)}` : ""}</div>
    <div class="acts"><${Copy} small=${false} icon="link" text=${() => `${location.origin}/${of(resource.id)}`}>Copy link<//>${actions}</div></div>`;
}
