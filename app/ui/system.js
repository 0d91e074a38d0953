/** The house by one survey: its faults, engines, cluster, streams, queues, webhooks and keys. */

import { request } from "./gateway.js";
import { html, useEffect, useState } from "./html.js";
import { Keys } from "./keys.js";
import { Block, Copy, Icon, Table } from "./parts.js";
import { of, useTitle } from "./router.js";
import { may, now, poll, readiness } from "./state.js";
import { age, number, NONE, plural, size } from "./words.js";

const EVERY_MS = 3_000;
const SLOTS_SHOWN = 24;

/** The state of the installation, asked for again and again; null before the first answer, and without the scope admin. */
function useInstallation() {
  const [installation, setInstallation] = useState(null);
  useEffect(() => {
    if (!may("admin")) return () => {};
    return poll(async () => setInstallation(await request("/status")), EVERY_MS);
  }, []);
  return installation;
}

const ok = (word) => html`<span class="st ok"><${Icon} name="check" />${word}</span>`;
const warn = (word) => html`<span class="st warn"><${Icon} name="alert" />${word}</span>`;
const TONES = { error: "bad", warning: "warn", info: "" };
// What a reader can paste into a terminal.
const COMMANDS = /`((?:deliberate|python -m|openssl) [^`]+)`/g;

function Findings({ findings }) {
  if (findings.length === 0) return null;
  return html`<ul class="finds" aria-label="Findings">${findings.map(({ part, severity, detail, why, remedy }) => html`<li class="find" key=${`${part}${detail}`}><span class=${`st ${TONES[severity]}`}><${Icon} name=${severity === "info" ? "clock" : "alert"} />${part}</span><div class="what"><p><b>${detail}</b></p><p>${why}</p></div><div class="fix"><p>${remedy}</p>${[...remedy.matchAll(COMMANDS)].map(([, command]) => html`<${Copy} key=${command} text=${command}>Copy ${command}<//>`)}</div></li>`)}</ul>`;
}

function Engines({ engines }) {
  return html`<${Block} id="eh" head="Engines" words="What writes. Cached share and first token are those of the last answers."><${Table} name="Engines" head=${[["Engine"], ["Models"], ["Circuit"], ["What is wrong"], ["Running", "num"], ["Waiting", "num"], ["Cached", "num"], ["First token", "num"], ["Version", "num"]]}>${engines.map((engine) => html`<tr key=${engine.url}><th scope="row" class="cell2">${engine.name ?? "engine"}${engine.simulated ? html` <span class="sim">Simulated</span>` : ""}<small>${engine.url}</small></th><td class="cell2">${engine.models.join(", ") || NONE}<small>${engine.roles.map((each) => each.toLowerCase()).join(", ")}</small></td><td>${engine.circuit === "closed" ? ok("closed") : warn(engine.circuit.replace("_", " "))}</td><td>${engine.trouble ? html`<span class="fault">${engine.trouble.detail}, for ${age(engine.trouble.since, now.value)}</span>` : html`<span class="muted">nothing</span>`}</td><td class="num">${number(engine.in_flight)}</td><td class="num">${number(engine.waiting)}</td><td class="num">${engine.cached_share === null ? NONE : `${Math.round(100 * engine.cached_share)} %`}</td><td class="num">${engine.ttft_s === null ? NONE : `${engine.ttft_s.toFixed(2)} s`}</td><td class="num muted">${engine.version ?? NONE}</td></tr>`)}<//><//>`;
}

function Parts({ parts }) {
  return html`<${Block} id="pa" head="Parts"><${Table} name="Parts" head=${[["Part"], ["Answer", "num"], ["Up for", "num"]]}>${parts.map(({ part, replicas, started_at: since }) => html`<tr key=${part}><th scope="row">${part.toLowerCase()}</th><td class="num">${replicas ? number(replicas) : html`<span class="muted">not started</span>`}</td><td class="num">${since ? age(since, now.value) : NONE}</td></tr>`)}<//><//>`;
}

function Slots({ running, waiting, bound }) {
  const shown = Math.min(SLOTS_SHOWN, bound ?? running + waiting);
  const scale = shown / Math.max(bound ?? 1, running + waiting, 1);
  const full = Math.ceil(running * scale);
  const held = Math.ceil(waiting * scale);
  return html`<span class="slots" aria-hidden="true">${Array.from({ length: shown }, (_, index) => html`<i class=${index < full ? "f" : index < full + held ? "w" : ""} />`)}</span>`;
}

function Nodes({ installation }) {
  const nodes = new Map();
  const put = (node, row) => nodes.set(node ?? "here", [...(nodes.get(node ?? "here") ?? []), row]);
  for (const { id, node, in_hand: held, bound } of installation.coordinators) put(node, { key: id, name: "coordinator", running: held, waiting: 0, bound });
  for (const { id, node, role, running, waiting, concurrency, counts } of installation.agents) put(node, { key: `${id}${role}`, name: role.toLowerCase(), running, waiting, bound: concurrency, counts });
  return html`<${Block} id="ch" head="Cluster" words="Filled: at work. Hatched: waits for an engine."><div class="nodes">${[...nodes].map(([node, rows]) => html`<div class="node" key=${node}><h3>${node}<span>${plural(rows.length, "part")}</span></h3><ul>${rows.map(({ key, name, running, waiting, bound, counts }) => html`<li key=${key} title=${counts ? Object.entries(counts).map(([word, count]) => `${word} ${count}`).join(", ") : ""}><span>${name}</span><${Slots} running=${running - waiting} waiting=${waiting} bound=${bound} /><span>${number(running)}${bound === null ? "" : `/${number(bound)}`}</span></li>`)}</ul></div>`)}</div>
    ${installation.applications.length ? html`<${Table} name="Deployments" head=${[["Deployment"], ["Answer", "num"], ["Wanted", "num"], ["Version", "num"]]}>${installation.applications.flatMap(({ name: app, deployments }) => deployments.map(({ name, answered, wanted, product }) => html`<tr key=${`${app}${name}`}><th scope="row">${name}</th><td class="num">${wanted !== null && answered < wanted ? warn(number(answered)) : number(answered)}</td><td class="num">${number(wanted)}</td><td class="num muted">${product.join(", ")}</td></tr>`))}<//>` : ""}<//>`;
}


function Streams({ streams, consumers }) {
  return html`<${Block} id="sh" head="Streams and consumers"><${Table} name="Streams" head=${[["Stream"], ["Consumer"], ["Lag", "num"], ["In hand", "num"], ["Again", "num"], ["Messages", "num"], ["Size", "num"]]}>${streams.flatMap((stream) => {
    const readers = consumers.filter((each) => each.stream === stream.name);
    return (readers.length ? readers : [null]).map((consumer, index) => html`<tr key=${`${stream.name}${consumer?.name}`}><th scope="row" class="mono small">${index ? html`<span class="vh">${stream.name}</span>` : stream.name}</th><td class="mono small">${consumer?.name ?? html`<span class="muted">${NONE}</span>`}</td><td class="num">${consumer ? (consumer.lag && consumer.pulls === 0 ? warn(`${number(consumer.lag)}, nobody pulls`) : number(consumer.lag)) : NONE}</td><td class="num">${number(consumer?.unacknowledged)}</td><td class="num">${number(consumer?.redelivered)}</td><td class="num muted">${index ? "" : number(stream.messages)}</td><td class="num muted">${index ? "" : size(stream.bytes)}</td></tr>`);
  })}<//><//>`;
}

function Queues({ queue }) {
  return html`<${Block} id="qh" head="Queues" words=${`${number(queue.in_hand)} begun, ${number(queue.waiting)} wait, room for ${number(queue.depth_max)}.`}><${Table} name="Queues" head=${[["Role"], ["Unfinished", "num"], ["Ended a minute", "num"], ["Admits", "num"]]}>${queue.roles.map(({ role, depth, ended_per_s: rate, admitted }) => html`<tr key=${role}><th scope="row">${role.toLowerCase()}</th><td class="num">${number(depth)}</td><td class="num">${rate === null ? NONE : (60 * rate).toFixed(1)}</td><td class="num muted">${number(admitted)}</td></tr>`)}<//><//>`;
}

/** Deliveries of the newest deliberations; one that failed can be sent again. */
function Webhooks({ senders }) {
  const [deliveries, setDeliveries] = useState([]);
  const [fault, setFault] = useState("");
  const load = async () => {
    const { items } = await request("/deliberations?limit=20");
    const pages = await Promise.all(items.map(({ id }) => request(`/deliberations/${encodeURIComponent(id)}/deliveries`).then((page) => page.items.map((each) => ({ ...each, of: id })), () => [])));
    setDeliveries(pages.flat());
  };
  useEffect(() => poll(load, 15_000), []);
  const again = async ({ links }) => {
    try {
      await request(links.redeliver, { method: "POST" });
      await load();
    } catch (error) {
      setFault(error.message);
    }
  };
  return html`<${Block} id="wh" head="Webhooks" words=${senders === null ? "Webhooks are off." : `${plural(senders.length, "sender")}, ${number(senders.reduce((sum, { in_flight: out }) => sum + out, 0))} under way.`}>${fault ? html`<p class="fault" role="alert">${fault}</p>` : ""}
    ${deliveries.length === 0 ? html`<p class="quiet">The twenty newest deliberations have no deliveries.</p>` : html`<${Table} name="Webhooks" head=${[["State"], ["Event"], ["Answer"], ["", "num"]]}>${deliveries.map((each) => {
      const last = each.attempts.at(-1);
      return html`<tr key=${`${each.of}${each.id}`}><td>${each.status === "delivered" ? ok(each.status) : warn(each.status)}</td><td class="cell2"><code>${each.type}</code><small><a href=${of(each.of)}>${each.of.slice(-8)}</a></small></td><td class="cell2">${last ? `${last.status_code ?? last.problem?.detail ?? NONE}, attempt ${last.number}` : NONE}<small>${last ? `${age(last.at, now.value)} ago` : ""}</small></td><td class="num">${may("submit") && ["failed", "retrying"].includes(each.status) && !each.redelivering ? html`<button class="btn sm" onClick=${() => again(each)}>Redeliver</button>` : ""}</td></tr>`;
    })}<//>`}<//>`;
}

export function System() {
  useTitle("System");
  const installation = useInstallation();
  const ready = readiness.value;
  const findings = installation?.findings ?? (ready?.faults ?? []).map(({ pointer, detail, remedy }) => ({ part: pointer, severity: "warning", detail, why: "", remedy }));
  const faults = findings.filter(({ severity }) => severity !== "info").length;
  const well = ready?.ready && faults === 0;
  const versions = installation?.versions;
  const newest = installation?.parts.map(({ started_at: since }) => since).filter(Boolean).sort().at(-1);
  const words = !ready ? "Asking …" : well ? "Every part answers" : ready.ready ? `Works, with ${plural(faults, "finding")}` : "Not ready";
  return html`<div class="wrap"><div class="health"><h1 class=${well ? "well" : ""}><${Icon} name=${well ? "check" : ready ? "alert" : "clock"} large />${words}</h1>
      ${installation ? html`<p class="body quiet">Asked ${age(installation.at, now.value)} ago. ${plural(installation.queue.in_hand, "deliberation")} under way, ${number(installation.queue.waiting)} wait. ${newest ? `The newest part has run for ${age(newest, now.value)}.` : ""}</p>` : ""}
      <span class="row body end"><span class="muted">${versions ? [`gateway ${versions.gateway}`, versions.nats_server ? `NATS ${versions.nats_server}` : "", versions.replicas.find(({ ray }) => ray) ? `Ray ${versions.replicas.find(({ ray }) => ray).ray}` : ""].filter(Boolean).join(", ") : ""}</span>${installation ? html`<${Copy} text=${() => JSON.stringify({ ready, installation }, null, 2)}>Copy report<//>` : ""}</span></div>
    <${Findings} findings=${findings} />
    ${installation ? html`<${Engines} engines=${installation.engines} /><${Nodes} installation=${installation} /><div class="sys"><${Parts} parts=${installation.parts} /><${Queues} queue=${installation.queue} /><${Streams} streams=${installation.streams} consumers=${installation.consumers} /><${Webhooks} senders=${installation.webhooks} /><${Keys} /></div>` : may("admin") ? html`<p class="quiet">Asking the parts …</p>` : html`<p class="quiet">More stands here for keys with the scope admin.</p>`}</div>`;
}
