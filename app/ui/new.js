/** A new deliberation: task, council, strategy with its price, evidence and bounds. Nothing is lost when the drawer closes. */

import { CASES, fitting, randomKey } from "./cases.js";
import { asRequested } from "./conversation.js";
import { asAsked, freeId, takeStored, taking, unfinished, Uploads, wholeTask, withFiles } from "./files.js";
import { faultInWords, request } from "./gateway.js";
import { html, signal, useEffect, useRef, useState } from "./html.js";
import { copyText, Icon, initials, Seats, Stepper, tell } from "./parts.js";
import { address, go, of } from "./router.js";
import { roles, session, strategies } from "./state.js";
import { Steps } from "./steps.js";
import { cachedShare, money, number, persona, plural, short, title, tokensOf } from "./words.js";

const QUOTE_AFTER_MS = 300;
/** The form's fields by the pointers of the gateway's faults. */
const FIELDS = {
  "/task": "task", "/conversation": "task", "/actions": "task", "/workspace/ref": "ref", "/workspace": "git", "/budget/max_cost": "max_cost", "/budget/max_tokens": "max_tokens", "/constraints/timeout_seconds": "minutes",
  "/constraints/requirements": "requirements", "/constraints/rubric": "rubric", "/evidence": "evidence", "/seed": "seed", "/agents": "agents", "/parameters": "strategy", "/rounds": "strategy", "/strategy": "strategy",
};

/** The sentences of a refusal by field; "" has those of no field. */
function placed(error) {
  const sentences = new Map();
  if (error === null) return sentences;
  const put = (name, words) => sentences.set(name, [...(sentences.get(name) ?? []), words]);
  if (!error.faults?.length) put("", error.message);
  for (const fault of error.faults ?? []) {
    const pointer = Object.keys(FIELDS).find((prefix) => fault.pointer === prefix || fault.pointer?.startsWith(`${prefix}/`));
    // One that names a piece of evidence stands beside that.
    const piece = /^\/evidence\/\d+/.exec(fault.pointer ?? "")?.[0];
    put(piece ?? FIELDS[pointer] ?? "", faultInWords(fault));
  }
  return sentences;
}
const AGENTS_MAX = 32;
const emptied = () => ({
  task: "", agents: [{ role: roles.value.find(({ name }) => name === "DEV")?.name ?? roles.value[0]?.name ?? "DEV", count: 3 }], strategy: "council", parameters: {},
  rounds: 1, seed: "", max_cost: "", max_tokens: "", minutes: "", on_deadline: "best", requirements: "", rubric: [], evidence: [], git: "", ref: "", before: null,
});
/** What is being written; it outlives the drawer and a session that ends. */
const draft = signal(null);

/** Members of one role and model together; one with a name of its own alone. A model that is the role's own is not named. */
function seated(agents) {
  const entries = new Map();
  for (const { agent_id: id, role, model, persona: own } of agents) {
    const named = model && model !== roles.value.find(({ name }) => name === role)?.model ? { model } : {};
    if (own || !new RegExp(`^${role.toLowerCase()}-\\d+$`).test(id)) {
      entries.set(id, { role, count: 1, name: id, ...named, ...(own ? { persona: own } : {}) });
      continue;
    }
    const entry = entries.get(`${role} ${named.model}`) ?? { role, count: 0, ...named };
    entries.set(`${role} ${named.model}`, { ...entry, count: entry.count + 1 });
  }
  return [...entries.values()];
}

/** The draft that asks the same again, with a new seed and the same files; `task` is the whole one. */
function again(deliberation, task) {
  takeStored(deliberation.evidence.filter(({ file }) => file));
  const { constraints, budget } = deliberation;
  return {
    ...emptied(), task, strategy: deliberation.strategy, parameters: deliberation.parameters, rounds: Math.max(1, deliberation.rounds),
    agents: seated(deliberation.agents), evidence: deliberation.evidence.filter(({ file }) => !file).map(asAsked), git: deliberation.workspace?.git ?? "", ref: deliberation.workspace?.ref ?? "",
    rubric: constraints.rubric, requirements: constraints.requirements.join("\n"), on_deadline: constraints.on_deadline, minutes: String(constraints.timeout_seconds / 60),
    max_cost: budget.max_cost ?? "", max_tokens: budget.max_tokens ?? "",
    // What the form has no fields for: it is asked again as it was.
    before: { task, ...asRequested({ task, turns: deliberation.turns }), actions: constraints.actions, agreement_min: constraints.agreement_min, on_disagreement: constraints.on_disagreement },
  };
}

/** Whether the task is still the conversation that it shows. */
const conversed = ({ before, task }) => Boolean(before?.conversation) && before.task === task;

/** The request's body; fields that are empty are left to the gateway. */
function bodyOf(written) {
  const strategy = strategies.value.find(({ name }) => name === written.strategy);
  const configures = (field) => strategy?.fields.includes(field);
  const budget = { ...(written.max_cost ? { max_cost: Number(written.max_cost) } : {}), ...(written.max_tokens ? { max_tokens: Number(written.max_tokens) } : {}) };
  const requirements = written.requirements.split("\n").map((each) => each.trim()).filter(Boolean);
  const constraints = {
    ...(requirements.length ? { requirements } : {}), ...(written.rubric.length ? { rubric: written.rubric } : {}),
    ...(written.before?.agreement_min ? { agreement_min: written.before.agreement_min } : {}), ...(written.before?.on_disagreement ? { on_disagreement: written.before.on_disagreement } : {}),
    ...(written.minutes ? { timeout_seconds: Math.round(Number(written.minutes) * 60) } : {}), ...(written.on_deadline === "best" ? {} : { on_deadline: written.on_deadline }),
  };
  const filled = (value) => Object.keys(value).length > 0;
  return {
    ...(conversed(written) ? { conversation: written.before.conversation } : { task: written.task }), ...(written.before?.actions ? { actions: written.before.actions } : {}), agents: written.agents.filter(({ count }) => count > 0), strategy: written.strategy,
    ...(filled(written.parameters) ? { parameters: written.parameters } : {}), ...(configures("rounds") ? { rounds: written.rounds } : {}),
    ...(written.seed === "" ? {} : { seed: Number(written.seed) }), ...(filled(budget) ? { budget } : {}),
    ...(filled(constraints) ? { constraints } : {}), ...(written.evidence.length ? { evidence: written.evidence } : {}),
    ...(written.git ? { workspace: { git: written.git, ...(written.ref ? { ref: written.ref } : {}) } } : {}),
  };
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const KEY = { curl: () => (session.value.mode === "keys" ? " \\\n    -H \"Authorization: Bearer $DELIBERATE_API_KEY\"" : "") };
/** The same request for other clients. */
export const CLIENTS = {
  curl: (body) => `curl -sS ${location.origin}/deliberations -H 'content-type: application/json'${KEY.curl()} \\\n    -d ${quoted(JSON.stringify(body))}`,
  Python: (body) => `import json\n\nimport httpx\n\nbody = json.loads(${JSON.stringify(JSON.stringify(body))})\naccepted = httpx.post("${location.origin}/deliberations", json=body).raise_for_status().json()\nprint(accepted["id"])`,
  CLI: ({ task, agents, strategy, rounds, seed, parameters = {}, budget = {}, constraints = {}, evidence = [] }) =>
    [
      "deliberate ask", quoted(task), `--council ${agents.map(({ role, count }) => `${role}:${count}`).join(",")}`, `--strategy ${strategy}`,
      ...Object.entries(parameters).map(([name, value]) => `--parameter ${quoted(`${name}=${typeof value === "string" ? value : JSON.stringify(value)}`)}`),
      ...Object.entries({ rounds, seed, "budget-cost": budget.max_cost, "budget-tokens": budget.max_tokens, timeout: constraints.timeout_seconds, "on-deadline": constraints.on_deadline })
        .flatMap(([name, value]) => (value === undefined ? [] : [`--${name} ${value}`])),
      ...(constraints.requirements ?? []).map((requirement) => `--requirement ${quoted(requirement)}`),
      ...evidence.filter(({ file }) => file).map(({ title: name }) => `--file ${quoted(name)}`),
    ].join(" "),
};

function Parameter({ name, schema, value, onChange }) {
  const shown = value ?? schema.default;
  const words = title(name);
  if (schema.enum) return html`<label title=${schema.description}>${words} <select class="field" value=${shown} onChange=${(event) => onChange(event.target.value)}>${schema.enum.map((each) => html`<option value=${each}>${each.replaceAll("_", " ")}</option>`)}</select></label>`;
  if (schema.type === "integer") return html`<label title=${schema.description}>${words} <${Stepper} label=${words} value=${shown} min=${schema.minimum ?? 0} max=${schema.maximum ?? 64} onChange=${onChange} /></label>`;
  if (schema.type === "number") return html`<label title=${schema.description}>${words} <span class="field"><input type="number" step="0.05" max=${schema.maximum} value=${shown} onChange=${(event) => onChange(Number(event.target.value))} /></span></label>`;
  if (schema.type === "boolean") return html`<label title=${schema.description}><input type="checkbox" checked=${shown} onChange=${(event) => onChange(event.target.checked)} /> ${words}</label>`;
  return null;
}

/** The price before asking, by the gateway's own reckoning: { error, value }. */
function useQuote(body) {
  const [quote, setQuote] = useState({ error: null, value: null });
  const key = JSON.stringify(body);
  useEffect(() => {
    if (body.agents.length === 0) {
      setQuote({ error: new Error("The council has no members."), value: null });
      return () => {};
    }
    let old = false;
    const timer = setTimeout(async () => {
      try {
        const value = await request("/deliberations/quote", { method: "POST", body: body.conversation ? body : { ...body, task: body.task.trim() || "A task" } });
        if (!old) setQuote({ error: null, value });
      } catch (error) {
        if (!old) setQuote({ error, value: null });
      }
    }, QUOTE_AFTER_MS);
    return () => {
      old = true;
      clearTimeout(timer);
    };
  }, [key]);
  return quote;
}

function Quote({ quote: { error, value } }) {
  if (error) return html`<div class="quotebox"><p class="fault" role="status">${[...(placed(error).get("") ?? []), ...(error.faults?.length ? ["There is no price until the marked fields are mended."] : [])].join("\n")}</p></div>`;
  if (value === null) return html`<div class="quotebox"><p class="muted">Reckoning …</p></div>`;
  const { expected, at_most: most } = value;
  return html`<div class="quotebox"><dl class="quote"><dt>calls</dt><dd>${expected.calls === most.calls ? number(most.calls) : `about ${number(expected.calls)}, at most ${number(most.calls)}`}</dd>
      <dt>tokens, expected</dt><dd>${short(tokensOf(expected))}</dd><dt>tokens, at most</dt><dd>${short(tokensOf(most))}</dd><dt>cost, at most</dt><dd>${most.cost ? money(most.cost) : "no price"}</dd></dl>
    <p>${value.history?.deliberations ? `From ${plural(value.history.deliberations, "deliberation")} like this one.` : value.history?.calls || Object.keys(value.history?.by_role ?? {}).length ? "From earlier calls of these roles." : "Nothing like it ran yet: lengths are assumed."}
      ${expected.cached_tokens ? ` ${cachedShare(expected)} of the prompt tokens should come from the cache.` : ""}${value.budget?.detail ? ` ${value.budget.detail}` : ""}</p></div>`;
}

/** What the gateway says against a field. */
const Fault = ({ name, faults }) => (faults.has(name) ? html`<p class="fault" id=${`${name}-fault`} role="alert">${faults.get(name).join("\n")}</p>` : null);

function Evidence({ items, faults, onChange }) {
  const [open, setOpen] = useState(false);
  const name = useRef(null);
  const text = useRef(null);
  const add = () => {
    if (text.current.value.trim() === "") return;
    onChange([...items, { id: freeId(`e${items.length + 1}`, items.map(({ id }) => id)), title: name.current.value.trim() || `Evidence ${items.length + 1}`, text: text.current.value }]);
    setOpen(false);
  };
  return html`<div class="part" role="group" aria-label="Evidence"><div class="lab">Evidence<span class="end">Every agent reads it after the task.</span><button class="btn sm" type="button" onClick=${() => setOpen(!open)}><${Icon} name="plus" />Add</button></div>
    ${items.map(({ id, title: words, text: content }, index) => html`<div class="ev" key=${id}><span class="grow">${words}</span><span class="muted small">${plural((content ?? "").length, "character")}</span>
      <button class="btn bare sm" type="button" aria-label=${`Remove ${words}`} onClick=${() => onChange(items.filter((_, other) => other !== index))}><${Icon} name="close" /></button></div><${Fault} name=${`/evidence/${index}`} faults=${faults} />`)}
    <${Uploads} faultsOf=${(place) => faults.get(`/evidence/${items.length + place}`) ?? []} />
    ${open ? html`<div class="two adding"><label>Title<span class="field"><input ref=${name} maxlength="200" /></span></label><label class="all">Text<textarea ref=${text} rows="3" /></label><button type="button" class="btn sm" onClick=${add}>Add this text</button></div>` : ""}</div>`;
}

function Rubric({ items, onChange }) {
  const set = (index, change) => onChange(items.map((each, other) => (other === index ? { ...each, ...change } : each)));
  const add = () => onChange([...items, { id: `criterion_${items.length + 1}`, description: "", weight: 1 }]);
  return html`<div class="part" role="group" aria-label="Rubric"><div class="lab">Rubric<span class="end">${items.length ? "" : "a general one: correctness, completeness, clarity"}</span><button class="btn sm" type="button" onClick=${add}><${Icon} name="plus" />Add</button></div>
    ${items.map(({ id, description, weight }, index) => html`<div class="ev" key=${index}><span class="field"><input aria-label="Name" value=${id} maxlength="40" pattern="[a-z][a-z0-9_]*" onChange=${(event) => set(index, { id: event.target.value })} /></span>
      <span class="field grow"><input aria-label=${`What ${id} means`} value=${description} onChange=${(event) => set(index, { description: event.target.value })} /></span>
      <span class="field weight"><input type="number" min="0.1" step="0.1" aria-label=${`Weight of ${id}`} value=${weight} onChange=${(event) => set(index, { weight: Number(event.target.value) })} /></span>
      <button class="btn bare sm" type="button" aria-label=${`Remove ${id}`} onClick=${() => onChange(items.filter((_, other) => other !== index))}><${Icon} name="close" /></button></div>`)}</div>`;
}

/** The models that the engines of a role serve. */
const served = ({ live }) => [...new Set((live?.engines ?? []).flatMap(({ models }) => models))].sort();

function Member({ role, entry, room, onChange }) {
  const models = [...new Set([...(entry.model ? [entry.model] : []), ...served(role)])];
  const own = role.live?.models[0] ?? role.model ?? "";
  const name = role.name.toLowerCase();
  return html`<div class=${`seatrow${entry.count ? "" : " zero"}`}><span>${name}</span><span class="d" title=${role.persona}>${persona(role.persona)}</span>
    ${entry.count && models.length > 1 ? html`<select class="field" aria-label=${`Model of ${name}`} value=${entry.model ?? ""} onChange=${(event) => onChange({ ...entry, model: event.target.value || undefined })}><option value="">${own || "its own model"}</option>${models.filter((each) => each !== own).map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select>` : html`<span class="small muted model">${own}</span>`}
    <${Stepper} label=${name} value=${entry.count} max=${entry.count + room} onChange=${(count) => onChange({ ...entry, count })} /></div>`;
}

/** Members with a persona that the role does not give them. */
function OwnMembers({ items, room, onChange }) {
  const [open, setOpen] = useState(false);
  const [role, setRole] = useState(emptied().agents[0].role);
  const name = useRef(null);
  const text = useRef(null);
  const add = () => {
    if (!text.current.value.trim() || !name.current.value || !name.current.reportValidity()) return;
    onChange([...items, { role, count: 1, name: name.current.value, persona: text.current.value.trim() }]);
    setOpen(false);
  };
  return html`${items.map((member) => html`<div class="ev" key=${member.name}><b>${member.name}</b><span class="grow clip" title=${member.persona}>${member.persona}</span><span class="muted small">${member.role.toLowerCase()}</span>
      <button class="btn bare sm" type="button" aria-label=${`Remove ${member.name}`} onClick=${() => onChange(items.filter((each) => each !== member))}><${Icon} name="close" /></button></div>`)}
    <button class="btn sm" type="button" disabled=${room < 1} aria-expanded=${open} onClick=${() => setOpen(!open)}><${Icon} name="plus" />Member with a persona</button>
    ${open ? html`<div class="two adding"><label>Name<span class="field"><input ref=${name} maxlength="40" pattern="[a-z][a-z0-9_\\-]*" title="Small letters, digits, - and _" placeholder="sceptic" /></span></label>
      <label>Role<select class="field" value=${role} onChange=${(event) => setRole(event.target.value)}>${roles.value.map(({ name: each }) => html`<option key=${each} value=${each}>${each.toLowerCase()}</option>`)}</select></label>
      <label class="all">Persona<textarea ref=${text} rows="2" maxlength="4000" placeholder="You look for the flaw that makes the plan fail." /></label><button type="button" class="btn sm" onClick=${add}>Add this member</button></div>` : ""}`;
}

function Council({ agents, onChange }) {
  const all = agents.reduce((sum, { count }) => sum + count, 0);
  const named = agents.filter(({ name }) => name);
  const entries = roles.value.flatMap(({ name }) => {
    const own = agents.filter((entry) => entry.role === name && !entry.name);
    return own.length ? own : [{ role: name, count: 0 }];
  });
  const change = (entry, changed) => onChange([...entries, ...named].map((each) => (each === entry ? changed : each)).filter(({ count }) => count > 0));
  const seats = agents.flatMap(({ role, name, count }) => Array.from({ length: count }, () => ({ name: initials(name ?? role), fill: "full" })));
  return html`<div class="part" role="group" aria-label="Council"><div class="lab">Council<span class="end">${plural(all, "member")}</span>${seats.length ? html`<${Seats} width=${92} seats=${seats} label=${plural(all, "seat")} />` : ""}</div>
    ${entries.map((entry) => html`<${Member} role=${roles.value.find(({ name }) => name === entry.role)} entry=${entry} room=${AGENTS_MAX - all} onChange=${(changed) => change(entry, changed)} />`)}
    <${OwnMembers} items=${named} room=${AGENTS_MAX - all} onChange=${(members) => onChange([...entries.filter(({ count }) => count > 0), ...members])} /></div>`;
}

export function New({ from }) {
  const [refusal, setRefusal] = useState(null);
  const [busy, setBusy] = useState(false);
  const box = useRef(null);
  const opener = useRef(document.activeElement);
  const written = (draft.value ??= emptied());
  const set = (change) => {
    draft.value = { ...draft.value, ...change };
  };
  const close = () => go(from ? of(from) : address("deliberations"));
  useEffect(() => {
    if (from) request(`/deliberations/${encodeURIComponent(from)}`).then(async (deliberation) => { draft.value = again(deliberation, await wholeTask(deliberation)); }).catch(setRefusal);
    box.current.querySelector("textarea").focus();
    return () => opener.current?.focus?.();
  }, [from]);
  const body = bodyOf({ ...written, evidence: withFiles(written.evidence) });
  const sending = unfinished().length;
  const quote = useQuote(body);
  // A refusal holds for the form that was sent: the first change takes it away.
  useEffect(() => setRefusal(null), [JSON.stringify(body)]);
  const faults = placed(refusal ?? quote.error);
  const marked = (name) => (faults.has(name) ? { "aria-invalid": true, "aria-describedby": `${name}-fault` } : {});
  const strategy = strategies.value.find(({ name }) => name === written.strategy);
  const ask = async (event) => {
    event?.preventDefault();
    if (busy || sending > 0) return;
    setRefusal(null);
    setBusy(true);
    try {
      const accepted = await request("/deliberations", { method: "POST", body, headers: { "Idempotency-Key": randomKey() } });
      draft.value = { ...draft.value, task: "" };
      tell("Accepted.");
      go(of(accepted.id));
    } catch (error) {
      setRefusal(error);
      setBusy(false);
    }
  };
  const onKey = (event) => {
    if (event.key === "Escape") close();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask(event);
    if (event.key !== "Tab") return;
    const stops = [...box.current.querySelectorAll("a[href], button:not(:disabled), input, textarea, select")].filter((stop) => stop.offsetParent !== null);
    const edge = event.shiftKey ? stops[0] : stops.at(-1);
    if (document.activeElement === edge) {
      event.preventDefault();
      (event.shiftKey ? stops.at(-1) : stops[0]).focus();
    }
  };
  const field = (name, words, unit = "", rest = {}) => html`<label>${words}<span class="field"><input inputmode="decimal" value=${written[name]} onInput=${(event) => set({ [name]: event.target.value.trim() })} ...${rest} ...${marked(name)} />${unit ? html`<span>${unit}</span>` : ""}</span><${Fault} name=${name} faults=${faults} /></label>`;
  return html`<div class="scrim" onClick=${close} /><div class="drawer" role="dialog" aria-modal="true" aria-labelledby="newh" ref=${box} onKeyDown=${onKey} ...${taking}>
    <header><h2 id="newh">New deliberation</h2><button class="btn bare sq" aria-label="Close" onClick=${close}><${Icon} name="close" large /></button></header>
    <form class="fill" id="ask" tabindex="-1" onSubmit=${ask}>
      <div class="part"><div class="lab"><label for="task">Task</label><span class="end">Start from ${CASES.map(({ name, request: body0 }, index) => html`${index ? ", " : ""}<button type="button" class="linked" onClick=${() => { takeStored([]); draft.value = { ...emptied(), ...fitting(body0, roles.value), parameters: body0.parameters ?? {} }; }}>${name}</button>`)}</span></div>
        <textarea id="task" rows="4" dir="auto" value=${written.task} onInput=${(event) => set({ task: event.target.value })} ...${marked("task")} /><${Fault} name="task" faults=${faults} />
        ${conversed(written) ? html`<p class="small muted">A conversation of ${plural(written.before.conversation.length, "message")}, asked as one. A change here makes it a task.</p>` : ""}
        ${written.before?.actions ? html`<div class="ev"><span class="grow">Answers may call ${written.before.actions.tools.map(({ name }) => name).join(", ")}</span>
          <button class="btn bare sm" type="button" aria-label="Remove the tools" onClick=${() => set({ before: { ...written.before, actions: undefined } })}><${Icon} name="close" /></button></div>` : ""}</div>
      <${Council} agents=${written.agents} onChange=${(agents) => set({ agents })} /><${Fault} name="agents" faults=${faults} />
      <div class="part" role="group" aria-label="Strategy"><div class="lab">Strategy</div>
        <div class="strats">${strategies.value.map(({ name }) => html`<label key=${name}><input type="radio" name="strategy" value=${name} checked=${name === written.strategy} onChange=${() => set({ strategy: name, parameters: {} })} /><span>${name}</span></label>`)}</div>
        <p class="body quiet summary">${strategy?.summary}</p><${Steps} strategy=${strategy} stages=${quote.value?.stages} />
        <div class="params">${strategy?.fields.includes("rounds") ? html`<label>Rounds <${Stepper} label="Rounds" value=${written.rounds} min=${1} max=${10} onChange=${(rounds) => set({ rounds })} /></label>` : ""}
          ${Object.entries(strategy?.parameters.properties ?? {}).map(([name, schema]) => html`<${Parameter} key=${name} name=${name} schema=${schema} value=${written.parameters[name]} onChange=${(value) => set({ parameters: { ...written.parameters, [name]: value } })} />`)}</div>
        <${Fault} name="strategy" faults=${faults} /><${Quote} quote=${quote} /></div>
      <${Evidence} items=${written.evidence} faults=${faults} onChange=${(evidence) => set({ evidence })} /><${Fault} name="evidence" faults=${faults} />
      <div class="part" role="group" aria-label="Workspace"><div class="lab">Workspace</div><div class="two">${field("git", "Repository", "", { inputmode: "url", placeholder: "URL or path; none" })}${field("ref", "Branch, tag or commit", "", { inputmode: "text", placeholder: "HEAD" })}</div></div>
      <${Rubric} items=${written.rubric} onChange=${(rubric) => set({ rubric })} /><${Fault} name="rubric" faults=${faults} />
      <div class="part" role="group" aria-label="Bounds"><div class="lab">Bounds</div><div class="two">${field("max_cost", "Cost at most")}${field("max_tokens", "Tokens at most")}${field("minutes", "Time", "min")}
        <label>When time is over<select class="field" value=${written.on_deadline} onChange=${(event) => set({ on_deadline: event.target.value })}><option value="best">Conclude from what is there</option><option value="fail">Give no verdict</option></select></label>
        ${field("seed", "Seed", "", { placeholder: "drawn anew" })}<label class="all">Requirements, one a line<textarea rows="2" value=${written.requirements} onInput=${(event) => set({ requirements: event.target.value })} ...${marked("requirements")} /><${Fault} name="requirements" faults=${faults} /></label></div></div>
    </form>
    ${refusal && faults.has("") ? html`<p role="alert" class="fault refused">${faults.get("").join("\n")}</p>` : ""}
    <footer><button class="btn primary" form="ask" disabled=${busy || sending > 0 || written.task.trim() === "" || body.agents.length === 0}>Deliberate <kbd>Ctrl ↵</kbd></button>
      ${sending ? html`<span class="small muted" role="status">waits for ${plural(sending, "upload")}</span>` : ""}
      <span class="small muted end">Copy as</span><span class="chips">${Object.entries(CLIENTS).map(([name, write]) => html`<button type="button" class="btn sm" key=${name} disabled=${name === "CLI" && (body.conversation || body.actions || body.agents.some((entry) => entry.model || entry.name))} title=${name === "CLI" ? "The command reads models, names, personas and tools from files: --council @FILE, --tools FILE" : null} onClick=${() => copyText(write(body))}>${name}</button>`)}</span></footer></div>`;
}
