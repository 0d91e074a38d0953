/** The stage rail, and a lane for each agent with its texts. */

import { Acted, Answer } from "./actions.js";
import { fateOf, parsed, repeats, shownTo, WRITES } from "./council.js";
import { html, useLayoutEffect, useRef, useState } from "./html.js";
import { Markdown } from "./markdown.js";
import { Bar, Icon, Purpose, Severity } from "./parts.js";
import { stageInWords } from "./sentences.js";
import { roles } from "./state.js";
import { cachedShare, duration, family, number, plural, title } from "./words.js";

const MANY = 6;

/** The stages; `coming` are those that a council under way has yet to open, as [purpose, round]. */
export function Rail({ council, until, coming = [] }) {
  const named = (purpose, round) => `${purpose}${round > 0 && [...council.stages.map((stage) => stage.purpose), ...coming.map(([name]) => name)].filter((name) => name === purpose).length > 1 ? `, round ${round}` : ""}`;
  return html`<ol class="rail" aria-label="Stages">${council.stages.map((stage) => {
    const { count, words, icon } = stageInWords(council, stage, until);
    const calls = council.inStage(stage.stage);
    const open = stage.closedAt === null && council.endedAt === null;
    return html`<li key=${stage.stage} class=${`${open ? "now" : "done"} ${family(stage.purpose)}`} aria-current=${open ? "step" : null}>
      <div class="l"><${Icon} name=${icon} /><b>${named(stage.purpose, stage.round)}</b><span>${count}</span></div>
      <div class="d" title=${words}>${words}</div><${Bar} share=${calls.length ? calls.filter(({ finished }) => finished).length / calls.length : 0} /></li>`;
  })}${coming.map(([purpose, round]) => html`<li key=${`${purpose}${round}`} class=${`next ${family(purpose)}`}><div class="l"><${Icon} name="clock" /><b>${named(purpose, round)}</b></div><div class="d">to come, where needed</div></li>`)}</ol>`;
}

/** What an agent does, in words from the output that its call asks for. */
function doing(call, letters) {
  const whom = [...new Set(shownTo(call).map(({ agent }) => letters(agent)))];
  const others = whom.length > 3 ? `${whom.length} candidates` : whom.join(", ");
  const verb = {
    answer: "Writes its answer", revision: "Revises its answer after the critiques", turn: "Writes again after reading the others", fusion: "Fuses the answers into one", program: "Writes a program",
    critique: `Looks for faults in ${others || "another answer"}`, score: `Scores ${others || "the others"}`, pair: `Compares ${others || "two answers"}`, choice: "Picks the most consistent answer",
    analysis: "Finds agreements, conflicts and gaps", tests: "Writes tests without seeing a program", report: "Its program runs in the sandbox",
  }[call.output];
  return verb ?? `Works on ${call.purpose}`;
}

function label(call, calls) {
  if (!WRITES.has(call.output)) return calls.filter(({ purpose }) => purpose === call.purpose).length > 1 ? `${call.purpose} ${call.round}` : call.purpose;
  return `v${calls.filter((written) => WRITES.has(written.output)).indexOf(call) + 1}`;
}

const Issues = ({ issues }) => (issues.length === 0 ? html`<p class="quiet">No issue found.</p>` : html`<ul class="asked">${issues.map(({ severity, claim, where, fix }) => html`<li><${Severity} level=${severity} /><span dir="auto">${claim} <span class="muted">${where ? `“${where}”` : ""} ${fix ? `Fix: ${fix}` : ""}</span></span></li>`)}</ul>`);

/** The text of a call in the form that its output has; with `acts` its answer is an action. */
export function Said({ call, live, names, acts }) {
  if (WRITES.has(call.output)) {
    if (acts && call.finished) return html`<${Acted} text=${call.text} />`;
    if (call.output === "program") return html`<pre class="sh" tabindex="0" dir="ltr"><code>${call.text}</code></pre>`;
    return html`<${Markdown} text=${call.text} caret=${live && !call.finished ? family(call.purpose) : null} />`;
  }
  const read = call.finished ? parsed(call.finished.text) : null;
  if (read === null) return html`<p class="quiet" dir="auto">${call.finished ? call.finished.text ?? "" : ""}</p>`;
  if (call.output === "critique" && Array.isArray(read.issues)) return html`<div><p class="small muted">Verdict: ${String(read.verdict)}. On ${shownTo(call).map(({ agent }) => names(agent)).join(", ")}.</p><${Issues} issues=${read.issues} /></div>`;
  if (call.output === "score") {
    return html`<ul class="given">${shownTo(call).map(({ letter, agent, version }) => html`<li key=${letter}><b>${names(agent)}</b>${version ? ` v${version + 1}` : ""}: ${(Array.isArray(read[letter]?.criteria) ? read[letter].criteria : []).map(({ id, score }) => `${title(String(id))} ${score}`).join(", ")}</li>`)}</ul>`;
  }
  return html`<dl class="given">${Object.entries(read).map(([name, value]) => html`<dt>${title(name)}</dt><dd dir="auto">${typeof value === "string" ? value : Array.isArray(value) && value.every((each) => typeof each === "string") ? html`<ul>${value.map((each) => html`<li>${each}</li>`)}</ul>` : html`<pre tabindex="0">${JSON.stringify(value, null, 1)}</pre>`}</dd>`)}</dl>`;
}

const USES_SHOWN = 3;
const outcomeOf = ({ problem, failed, bytes, duration_ms: took }) => (problem ? html`<span class="fault">${problem.detail}</span>` : html`<span class="muted">${failed ? "it failed, " : ""}${plural(bytes, "byte")} in ${duration(took)}</span>`);

/** The uses of tools before an answer: what was called with what, and behind a click what came back. */
const Uses = ({ uses }) => html`<div class="uses"><ul>${uses.slice(-USES_SHOWN).map((use) => html`<li key=${use.number}><${Icon} name="tool" /><b>${use.name}</b> <code dir="ltr" title=${use.arguments}>${use.arguments}</code> ${outcomeOf(use)}</li>`)}</ul>
  <details><summary>${plural(uses.length, "tool use")}</summary><ul class="given">${uses.map((use) => html`<li key=${use.number}><b>${use.name}</b> ${outcomeOf(use)}<pre tabindex="0" dir="ltr">${use.arguments}${use.text ? `\n\n${use.text}` : ""}</pre></li>`)}</ul></details></div>`;

/** The boxes of growing texts: { box, follows, live } by the element whose height grows. */
const growing = new WeakMap();
/** Shows the ends of texts that grew. It hears of all that a frame wrote together, once their heights are known. */
const grown = new ResizeObserver((entries) => {
  const ends = entries.map(({ target }) => growing.get(target)).filter(({ follows, live }) => live && follows).map(({ box }) => [box, box.scrollHeight, box.clientHeight]);
  for (const [box, height] of ends) box.scrollTop = height;
  for (const [box, height, seen] of ends) box.toggleAttribute("data-follow", height > seen + 2);
});

/** Follows the end of a growing text until its reader scrolls up. */
function useFollow(box, text, live) {
  const state = useRef({ follows: true }).current;
  const [back, setBack] = useState(false);
  useLayoutEffect(() => {
    const { current } = text;
    growing.set(current, state);
    grown.observe(current);
    return () => grown.unobserve(current);
  }, []);
  useLayoutEffect(() => {
    Object.assign(state, { box: box.current, live });
    if (!live) box.current.removeAttribute("data-follow");
  }, [live]);
  const onScroll = () => {
    const { current } = box;
    state.follows = current.scrollTop + current.clientHeight >= current.scrollHeight - 24;
    setBack(live && !state.follows);
  };
  const jump = () => {
    state.follows = true;
    box.current.scrollTop = box.current.scrollHeight;
    setBack(false);
  };
  return [onScroll, back, jump];
}

const RATE_MS = 2_000;
/** Characters a second over the last two seconds. */
function useRate(call) {
  const seen = useRef([]);
  if (!call || call.finished) return null;
  const key = `${call.call_id}#${call.attempt}`;
  const at0 = performance.now();
  seen.current = [...seen.current.filter(([name, time]) => name === key && at0 - time < RATE_MS), [key, at0, call.text.length]];
  const [, from, before] = seen.current[0];
  return at0 - from > 400 ? Math.max(0, Math.round((1_000 * (call.text.length - before)) / (at0 - from))) : null;
}

function Lane({ agent, council, work, acts, live, on, names }) {
  const [box, text] = [useRef(null), useRef(null)];
  const [chosen, setChosen] = useState(null);
  const calls = council.of(agent.agent_id);
  const current = calls.at(-1);
  const shown = calls.find(({ call_id: id }) => id === chosen) ?? current;
  const empty = shown && shown.text === "" && !shown.finished;
  const before = empty ? calls.findLast((call) => WRITES.has(call.output) && call.text !== "") : null;
  const rate = useRate(current);
  const active = live && current && !current.finished;
  const [onScroll, back, jump] = useFollow(box, text, Boolean(live && shown && !shown.finished && !empty));
  const fate = current && fateOf(current, council);
  const usage = shown?.finished?.usage;
  const simulated = roles.value.find(({ name }) => name === agent.role)?.live?.simulated;
  const heard = active ? (rate ? `${number(rate)} characters/s` : current.startedAt ? "no text yet" : "waits") : "";
  const mark = (icon, words, tone = "failed") => html`<span class=${`ph ${tone}`}><${Icon} name=${icon} />${words}</span>`;
  const spoken = current === undefined ? null : fate === "failed" ? html`${mark("cross", current.purpose)}<span title=${current.finished.problem.detail}>${current.finished.problem.detail}</span>`
    : fate === "stopped" || fate === "unanswered" ? html`${mark("stop", current.purpose, "")}<span>${fate === "stopped" ? "Was stopped" : "Had not answered at the end"}</span>`
      : fate === "late" ? html`${mark("clock", current.purpose, "")}<span>Answered after its stage had closed</span>`
        : current.waiting ? html`${mark("clock", "waits")}<span title=${current.waiting.detail}>Waits for its engine</span>`
          : current.finished ? html`<${Purpose} name=${current.purpose}>: done<//><span>${live ? "Rests until the next stage" : ""}</span>`
            : html`<${Purpose} name=${current.purpose} />${repeats(current) > 0 ? mark("again", `attempt ${1 + repeats(current)}`) : ""}<span>${current.using ? `Uses ${current.using}` : current.startedAt ? doing(current, names) : "Waits for its turn"}</span>`;
  return html`<article class="lane" data-on=${on} data-lane=${agent.agent_id} aria-label=${names(agent.agent_id)}>
    <header><div class="who"><h3 title=${agent.persona}>${names(agent.agent_id)}</h3><span class="m" title=${names(agent.agent_id) === agent.agent_id ? shown?.model ?? agent.model : null}>${names(agent.agent_id) === agent.agent_id ? shown?.model ?? agent.model ?? "" : ""}</span><span class="rate">${simulated ? html`<span class="sim">Simulated</span>` : ""}<span class=${rate ? "" : "muted"}>${heard}</span></span></div>
      <div class="doing">${spoken ?? (work?.error ? html`<span>${work.error.detail}</span>` : html`<span class="muted">${work && !live ? work.status : "Not asked yet"}</span>`)}</div></header>
    <div class="fill" tabindex="0" ref=${box} onScroll=${onScroll} aria-label=${`Text of ${names(agent.agent_id)}`} role="region"><div ref=${text}>${shown?.uses.length ? html`<${Uses} uses=${shown.uses} />` : ""}
      ${before ? html`<p class="small muted">Until the new text comes, this is its last one.</p>${acts ? html`<${Acted} text=${before.text} dim=${true} />` : html`<${Markdown} text=${before.text} dim=${true} />`}` : shown ? html`<${Said} call=${shown} live=${live} names=${names} acts=${acts} />` : work?.content ? html`<${Answer} content=${work.content} action=${work.action} />` : ""}</div></div>
    ${back ? html`<button class="btn sm jumplive" onClick=${jump}>Jump to live</button>` : ""}
    <footer>${usage ? html`<span>${number(usage.completion_tokens)} tokens</span><span>${shown.finished.ttft_ms === null ? "" : `${duration(shown.finished.ttft_ms)} to first`}</span><span>${cachedShare(usage)} cached</span>` : ""}
      ${calls.length > 1 ? html`<span class="vers" role="group" aria-label=${`Texts of ${names(agent.agent_id)}`}>${calls.map((call) => html`<button key=${call.call_id} aria-pressed=${call === shown} onClick=${() => setChosen(call === current ? null : call.call_id)}>${label(call, calls)}</button>`)}</span>` : ""}</footer></article>`;
}

export function Lanes({ resource, council, live, names = (agent) => agent }) {
  const { agents } = resource;
  const [tab, setTab] = useState(agents[0]?.agent_id);
  const works = new Map(resource.proposals.map((work) => [work.agent_id, work]));
  const onKey = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = agents[(agents.findIndex(({ agent_id: id }) => id === tab) + step + agents.length) % agents.length].agent_id;
    setTab(next);
    event.currentTarget.querySelector(`[data-tab="${CSS.escape(next)}"]`)?.focus();
  };
  return html`<div class="lanetabs" role="tablist" aria-label="Members" onKeyDown=${onKey}>${agents.map(({ agent_id: id }) => html`<button key=${id} role="tab" data-tab=${id} tabindex=${id === tab ? 0 : -1} aria-selected=${id === tab} onClick=${() => setTab(id)}>${names(id)}</button>`)}</div>
    <div class="lanes" data-many=${agents.length > MANY ? "" : null}>${agents.map((agent) => html`<${Lane} key=${agent.agent_id} agent=${agent} council=${council} work=${works.get(agent.agent_id)} acts=${Boolean(resource.constraints.actions)} live=${live} names=${names} on=${agent.agent_id === tab ? "" : null} />`)}</div>`;
}
