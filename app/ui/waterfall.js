/** The waterfall of calls, its table, and the log of recorded events. */

import { asked, fateOf, repeats } from "./council.js";
import { save, Icon } from "./parts.js";
import { html, useState } from "./html.js";
import { compared } from "./reading.js";
import { stageInWords } from "./sentences.js";
import { at, cachedShare, duration, family, NONE, number, plural, sentence } from "./words.js";

const CACHED = 0.8;
const FATES = { answered: "answered", late: "answered too late", stopped: "stopped", unanswered: "without an answer", open: "open" };
const percent = (share) => `${(100 * Math.max(0, Math.min(1, share))).toFixed(2)}%`;

/** The parts of a call's bar as [kind, from, to, words]; the uses of tools lie over them. */
function parts(call, until) {
  const end = call.finishedAt ?? until;
  const { finished } = call;
  const uses = call.uses.map(({ name, endedAt, duration_ms: took, arguments: passed }) => ["tool", endedAt - took, endedAt, `${name} ${passed}, ${duration(took)}`]);
  // The starts of attempts expire before the outcome, which has the call's duration.
  const attempts = call.attempts.length === 0 && finished && asked(finished) ? [end - finished.duration_ms] : call.attempts;
  if (attempts.length === 0) return [["wait", call.openedAt, end, "waits"]];
  const bars = [];
  const first = attempts[0];
  if (first > call.openedAt) bars.push(["wait", call.openedAt, first, `waiting ${duration(first - call.openedAt)}`]);
  attempts.slice(0, -1).forEach((from, index) => {
    const to = attempts[index + 1];
    const turn = call.uses.some(({ endedAt }) => endedAt >= from && endedAt <= to);
    bars.push(turn ? ["wr", from, to, "asks for its tools"] : ["failed", from, to, `attempt ${index + 1}, not used`]);
  });
  const from = attempts.at(-1);
  const firstText = finished?.ttft_ms !== null && finished?.ttft_ms !== undefined ? Math.min(end, from + finished.ttft_ms) : call.firstAt;
  const cached = finished && finished.usage.prompt_tokens && finished.usage.cached_tokens / finished.usage.prompt_tokens >= CACHED;
  if (finished?.problem) bars.push([finished.problem.code === "call_cancelled" ? "stopped" : "failed", from, end, finished.problem.detail]);
  else {
    bars.push(["ttft", from, firstText ?? end, "to the first token"]);
    if (firstText) bars.push([cached ? "cached" : "wr", firstText, end, "writing"]);
  }
  return [...bars, ...uses];
}

function Row({ call, x, until, names }) {
  const { finished } = call;
  const again = repeats(call) > 0;
  const value = finished ? html`${duration(finished.duration_ms)} <span class="o">${number(finished.usage.completion_tokens)} tokens</span>` : again ? html`<span class="fault">attempt ${call.attempt}</span>` : call.uses.length ? plural(call.uses.length, "tool use") : call.startedAt ? "runs" : "waits";
  return html`<div class="r"><span class="n">${names(call.agent_id)}</span><span class="plot">${parts(call, until).map(([kind, from, to, words]) => html`<i class=${`b ${kind}`} title=${words} style=${{ "--x": percent(x(from)), "--w": percent(x(to) - x(from)) }} />`)}
    ${(again && call.uses.length === 0 ? call.attempts.slice(1) : []).map((from) => html`<span class="mk" title="asked again" style=${{ "--x": percent(x(from)) }}><${Icon} name="again" /></span>`)}</span><span class="v">${value}</span></div>`;
}

const STEPS_S = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1_800];
const TICKS_MAX = 6;

function Plot({ council, until, live, names }) {
  const from = council.startedAt;
  const end = council.endedAt ?? until;
  const span = Math.max(500, (live ? 1.08 : 1) * (end - from));
  const x = (ts) => (ts - from) / span;
  const step = STEPS_S.find((each) => span / 1_000 / each <= TICKS_MAX) ?? span / 1_000 / TICKS_MAX;
  const ticks = Array.from({ length: Math.floor(span / 1_000 / step) + 1 }, (_, index) => index * step);
  return html`<div class="wf" role="img" aria-label="Waterfall of the calls; the table says the same"><div class="axis"><span></span><span class="plot">${ticks.map((tick) => html`<span style=${{ "--x": percent(x(from + tick * 1_000)) }}>${tick < 60 ? `${Number(tick.toFixed(1))} s` : duration(1_000 * tick)}</span>`)}</span><span></span></div>
    ${council.stages.map((stage) => {
      const calls = council.inStage(stage.stage);
      return html`<div key=${stage.stage} class=${`g ${family(stage.purpose)}`} style=${{ "--a": percent(x(stage.openedAt)), "--b": percent(x(stage.closedAt ?? end)) }}>
        <div class="gh"><em>${stage.purpose}</em><span>${stageInWords(council, stage, until).count}${stage.round ? `, round ${stage.round}` : ""}</span><span>${duration((stage.closedAt ?? end) - stage.openedAt)}</span></div>
        ${calls.map((call) => html`<${Row} key=${call.call_id} call=${call} x=${x} until=${end} names=${names} />`)}</div>`;
    })}
    ${council.takeovers.map((ts) => html`<div class="now take" style=${{ "--t": x(ts).toFixed(4) }}><span>taken over</span></div>`)}
    ${live ? html`<div class="now" style=${{ "--t": x(end).toFixed(4) }}><span>now</span></div>` : ""}</div>`;
}

function Table({ council, names, named }) {
  return html`<div class="scrollx" tabindex="0" role="region" aria-label="Calls, table"><table><thead><tr><th scope="col">Stage</th><th scope="col">Member</th>${named ? html`<th scope="col">Model</th>` : ""}<th scope="col" class="num">Waited</th><th scope="col" class="num">First token</th><th scope="col" class="num">Took</th><th scope="col" class="num">Attempts</th><th scope="col" class="num">Tools</th><th scope="col" class="num">Tokens</th><th scope="col" class="num">Cached</th><th scope="col">Outcome</th></tr></thead>
    <tbody>${[...council.calls.values()].map((call) => html`<tr key=${call.call_id}><th scope="row">${call.purpose}${call.round ? ` ${call.round}` : ""}</th><td>${names(call.agent_id)}</td>${named ? html`<td class="quiet">${call.model ?? NONE}</td>` : ""}<td class="num">${call.attempts.length ? duration(call.attempts[0] - call.openedAt) : NONE}</td><td class="num">${duration(call.finished?.ttft_ms)}</td><td class="num">${duration(call.finished?.duration_ms)}</td><td class="num">${call.attempt || call.finished ? 1 + repeats(call) : NONE}</td><td class="num">${call.uses.length || NONE}</td><td class="num">${number(call.finished?.usage.completion_tokens)}</td><td class="num">${call.finished ? cachedShare(call.finished.usage) : NONE}</td><td>${FATES[fateOf(call, council)] ?? call.finished.problem.code}</td></tr>`)}</tbody></table></div>`;
}

export function Waterfall({ council, until, live, named = true, names = (id) => id, action = null }) {
  const [table, setTable] = useState(false);
  return html`<header><h2 id="wfh">Calls</h2><div class="legend mend"><span><i class="wait"></i>waiting</span><span><i class="ttft"></i>to first token</span><span><i class="wr"></i>writing</span><span><i class="tool"></i>at its tools</span><span><i class="cached"></i>prompt mostly in the engine’s cache</span><span class="fault"><${Icon} name="again" />asked again</span></div>${action}</header>
    ${council.stages.length === 0 ? html`<p class="quiet">No call yet.</p>` : table ? html`<${Table} council=${council} names=${names} named=${named} />` : html`<${Plot} council=${council} until=${until} live=${live} names=${names} />`}
    <p class="foot"><button class="linked" onClick=${() => setTable(!table)}>${table ? "As a picture" : "As a table"}</button></p>`;
}

/** An event in words; `name` gives the word for an agent. */
export function told(event, name = (agent) => agent) {
  const who = event.agent_id && sentence(name(event.agent_id));
  switch (event.type) {
    case "deliberation.accepted": return "The gateway accepted the task";
    case "stage.opened": return `${event.purpose}${event.round ? `, round ${event.round}` : ""}: ${plural(event.calls.length, "call")}, ${event.quorum} needed`;
    case "stage.closed": return `${event.purpose}: ${plural(event.seen.length, "outcome")} heard, ${event.reason === "all" ? "none is missing" : `closed by ${event.reason}`}`;
    case "call.started": return `${who} is asked${event.attempt > 1 ? `, attempt ${event.attempt}` : ""}`;
    case "call.waiting": return `${who}: ${event.detail}`;
    case "tool.started": return `${who} begins to use ${event.name}`;
    case "tool.used": return `${who} used ${event.name}: ${event.problem?.detail ?? (event.failed ? "it failed" : plural(event.bytes, "byte"))}`;
    case "call.finished": return event.problem ? `${who}: ${event.problem.detail}` : `${who} answered with ${plural(event.usage.completion_tokens, "token")}`;
    case "deliberation.resumed": return `Another coordinator took over (${event.takeover})`;
    case "deliberation.cancelling": return `To be stopped: ${event.reason ?? event.by}`;
    case "deliberation.completed": return !event.verdict?.winner ? "It ended with its answers" : compared(event.verdict) ? `${sentence(name(event.verdict.winner))} wins` : `It ended with the answer of ${name(event.verdict.winner)}`;
    default: return event.problem?.detail ?? event.type.split(".")[1];
  }
}

export function useFiltered(events, name) {
  const [filter, setFilter] = useState("");
  const wanted = filter.toLowerCase();
  const shown = events.filter((event) => `${event.type} ${event.agent_id ?? ""} ${told(event, name)}`.toLowerCase().includes(wanted));
  const field = html`<label class="field short"><${Icon} name="search" /><span class="vh">Filter events</span><input placeholder="Filter" value=${filter} onInput=${(event) => setFilter(event.target.value)} /></label>`;
  return [shown, field];
}

export const since = (council, event) => ((at(event.ts) - council.startedAt) / 1_000).toFixed(1);

export const saveEvents = (council, id) => save(`${id}.ndjson`, "application/x-ndjson", council.events.map((event) => `${JSON.stringify(event)}\n`).join(""));

const SHOWN_MAX = 200;

export function Events({ council, onClose }) {
  const [shown, field] = useFiltered(council.events);
  return html`<section class="facts" aria-labelledby="fh"><header><h2 id="fh">Events</h2>${field}<button class="btn bare sm" aria-label="Close events" onClick=${onClose}><${Icon} name="close" /></button></header>
    <ol tabindex="0" aria-label="Events, newest first">${shown.slice(-SHOWN_MAX).reverse().map((event) => html`<li key=${event.id ?? `${event.type}${event.ts}${event.call_id ?? ""}`}><time>${since(council, event)}</time><div><code>${event.type}</code><p dir="auto">${told(event)}</p></div></li>`)}</ol></section>`;
}
