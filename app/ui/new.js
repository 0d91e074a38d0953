/** A new deliberation: task, council, strategy with its price, evidence and bounds. Nothing is lost when the drawer closes. */

import { CASES, fitting, randomKey } from "./cases.js";
import { request } from "./gateway.js";
import { html, signal, useEffect, useRef, useState } from "./html.js";
import { copyText, Icon, initials, Seats, Stepper, tell } from "./parts.js";
import { address, go, of } from "./router.js";
import { roles, session, strategies } from "./state.js";
import { Steps } from "./steps.js";
import { cachedShare, money, number, persona, plural, short, title, tokensOf } from "./words.js";

const QUOTE_AFTER_MS = 300;
const AGENTS_MAX = 32;
const emptied = () => ({
  task: "", agents: [{ role: roles.value.find(({ name }) => name === "DEV")?.name ?? roles.value[0]?.name ?? "DEV", count: 3 }], strategy: "council", parameters: {},
  rounds: 1, seed: "", max_cost: "", max_tokens: "", minutes: "", on_deadline: "best", requirements: "", rubric: [], evidence: [], git: "", ref: "",
});
/** What is being written; it outlives the drawer and a session that ends. */
const draft = signal(null);

/** Members of one role and model together. A model that is the role's own is not named. */
function seated(agents) {
  const entries = new Map();
  for (const { role, model } of agents) {
    const named = model && model !== roles.value.find(({ name }) => name === role)?.model ? { model } : {};
    const entry = entries.get(`${role} ${named.model}`) ?? { role, count: 0, ...named };
    entries.set(`${role} ${named.model}`, { ...entry, count: entry.count + 1 });
  }
  return [...entries.values()];
}

/** The draft that asks the same again, with a new seed. */
function again(deliberation) {
  const { constraints, budget } = deliberation;
  return {
    ...emptied(), task: deliberation.task, strategy: deliberation.strategy, parameters: deliberation.parameters, rounds: Math.max(1, deliberation.rounds),
    agents: seated(deliberation.agents), evidence: deliberation.evidence.map(({ id, title: name, text, source }) => ({ id, title: name, text, source })), git: deliberation.workspace?.git ?? "", ref: deliberation.workspace?.ref ?? "",
    rubric: constraints.rubric, requirements: constraints.requirements.join("\n"), on_deadline: constraints.on_deadline, minutes: String(constraints.timeout_seconds / 60),
    max_cost: budget.max_cost ?? "", max_tokens: budget.max_tokens ?? "",
  };
}

/** The request's body; fields that are empty are left to the gateway. */
function bodyOf(written) {
  const strategy = strategies.value.find(({ name }) => name === written.strategy);
  const configures = (field) => strategy?.fields.includes(field);
  const budget = { ...(written.max_cost ? { max_cost: Number(written.max_cost) } : {}), ...(written.max_tokens ? { max_tokens: Number(written.max_tokens) } : {}) };
  const requirements = written.requirements.split("\n").map((each) => each.trim()).filter(Boolean);
  const constraints = {
    ...(requirements.length ? { requirements } : {}), ...(written.rubric.length ? { rubric: written.rubric } : {}),
    ...(written.minutes ? { timeout_seconds: Math.round(Number(written.minutes) * 60) } : {}), ...(written.on_deadline === "best" ? {} : { on_deadline: written.on_deadline }),
  };
  const filled = (value) => Object.keys(value).length > 0;
  return {
    task: written.task, agents: written.agents.filter(({ count }) => count > 0), strategy: written.strategy,
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
  CLI: ({ task, agents, strategy, rounds, seed, parameters = {}, budget = {}, constraints = {} }) =>
    [
      "deliberate ask", quoted(task), `--council ${agents.map(({ role, count }) => `${role}:${count}`).join(",")}`, `--strategy ${strategy}`,
      ...Object.entries(parameters).map(([name, value]) => `--parameter ${quoted(`${name}=${typeof value === "string" ? value : JSON.stringify(value)}`)}`),
      ...Object.entries({ rounds, seed, "budget-cost": budget.max_cost, "budget-tokens": budget.max_tokens, timeout: constraints.timeout_seconds, "on-deadline": constraints.on_deadline })
        .flatMap(([name, value]) => (value === undefined ? [] : [`--${name} ${value}`])),
      ...(constraints.requirements ?? []).map((each) => `--requirement ${quoted(each)}`),
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

/** The price before asking, by the gateway's own reckoning. A fault of the form stands here too. */
function useQuote(body) {
  const [quote, setQuote] = useState({ fault: "", value: null });
  const key = JSON.stringify(body);
  useEffect(() => {
    if (body.agents.length === 0) {
      setQuote({ fault: "The council has no members.", value: null });
      return () => {};
    }
    let old = false;
    const timer = setTimeout(async () => {
      try {
        const value = await request("/deliberations/quote", { method: "POST", body: { ...body, task: body.task.trim() || "A task" } });
        if (!old) setQuote({ fault: "", value });
      } catch (error) {
        if (!old) setQuote({ fault: error.message, value: null });
      }
    }, QUOTE_AFTER_MS);
    return () => {
      old = true;
      clearTimeout(timer);
    };
  }, [key]);
  return quote;
}

function Quote({ quote: { fault, value } }) {
  if (fault) return html`<div class="quotebox"><p class="fault" role="status">${fault}</p></div>`;
  if (value === null) return html`<div class="quotebox"><p class="muted">Reckoning …</p></div>`;
  const { expected, at_most: most } = value;
  return html`<div class="quotebox"><dl class="quote"><dt>calls</dt><dd>${expected.calls === most.calls ? number(most.calls) : `about ${number(expected.calls)}, at most ${number(most.calls)}`}</dd>
      <dt>tokens, expected</dt><dd>${short(tokensOf(expected))}</dd><dt>tokens, at most</dt><dd>${short(tokensOf(most))}</dd><dt>cost, at most</dt><dd>${most.cost ? money(most.cost) : "no price"}</dd></dl>
    <p>${value.history?.deliberations ? `From ${plural(value.history.deliberations, "deliberation")} like this one.` : value.history?.calls || Object.keys(value.history?.by_role ?? {}).length ? "From earlier calls of these roles." : "Nothing like it ran yet: lengths are assumed."}
      ${expected.cached_tokens ? ` ${cachedShare(expected)} of the prompt tokens should come from the cache.` : ""}${value.budget?.detail ? ` ${value.budget.detail}` : ""}</p></div>`;
}

function Evidence({ items, onChange }) {
  const [open, setOpen] = useState(false);
  const name = useRef(null);
  const text = useRef(null);
  const add = () => {
    if (text.current.value.trim() === "") return;
    onChange([...items, { id: `e${items.length + 1}`, title: name.current.value.trim() || `Evidence ${items.length + 1}`, text: text.current.value }]);
    setOpen(false);
  };
  return html`<div class="part" role="group" aria-label="Evidence"><div class="lab">Evidence<span class="end">Every agent reads it after the task.</span><button class="btn sm" type="button" onClick=${() => setOpen(!open)}><${Icon} name="plus" />Add</button></div>
    ${items.map(({ id, title: words, text: content }, index) => html`<div class="ev" key=${id}><span class="grow">${words}</span><span class="muted small">${plural((content ?? "").length, "character")}</span>
      <button class="btn bare sm" type="button" aria-label=${`Remove ${words}`} onClick=${() => onChange(items.filter((_, other) => other !== index))}><${Icon} name="close" /></button></div>`)}
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

function Council({ agents, onChange }) {
  const all = agents.reduce((sum, { count }) => sum + count, 0);
  const entries = roles.value.flatMap(({ name }) => {
    const own = agents.filter(({ role }) => role === name);
    return own.length ? own : [{ role: name, count: 0 }];
  });
  const change = (entry, changed) => onChange(entries.map((each) => (each === entry ? changed : each)).filter(({ count }) => count > 0));
  const seats = agents.flatMap(({ role, count }) => Array.from({ length: count }, () => ({ name: initials(role), fill: "full" })));
  return html`<div class="part" role="group" aria-label="Council"><div class="lab">Council<span class="end">${plural(all, "member")}</span>${seats.length ? html`<${Seats} width=${92} seats=${seats} label=${plural(all, "seat")} />` : ""}</div>
    ${entries.map((entry) => html`<${Member} role=${roles.value.find(({ name }) => name === entry.role)} entry=${entry} room=${AGENTS_MAX - all} onChange=${(changed) => change(entry, changed)} />`)}</div>`;
}

export function New({ from }) {
  const [fault, setFault] = useState("");
  const [busy, setBusy] = useState(false);
  const box = useRef(null);
  const opener = useRef(document.activeElement);
  const written = (draft.value ??= emptied());
  const set = (change) => {
    draft.value = { ...draft.value, ...change };
  };
  const close = () => go(from ? of(from) : address("deliberations"));
  useEffect(() => {
    if (from) request(`/deliberations/${encodeURIComponent(from)}`).then((found) => { draft.value = again(found); }, (error) => setFault(error.message));
    box.current.querySelector("textarea").focus();
    return () => opener.current?.focus?.();
  }, [from]);
  const body = bodyOf(written);
  const quote = useQuote(body);
  const strategy = strategies.value.find(({ name }) => name === written.strategy);
  const ask = async (event) => {
    event?.preventDefault();
    if (busy) return;
    setFault("");
    setBusy(true);
    try {
      const accepted = await request("/deliberations", { method: "POST", body, headers: { "Idempotency-Key": randomKey() } });
      draft.value = { ...draft.value, task: "" };
      tell("Accepted.");
      go(of(accepted.id));
    } catch (error) {
      setFault(error.message);
      setBusy(false);
    }
  };
  const onKey = (event) => {
    if (event.key === "Escape") close();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask(event);
    if (event.key !== "Tab") return;
    const stops = [...box.current.querySelectorAll("a[href], button:not(:disabled), input, textarea, select")].filter((each) => each.offsetParent !== null);
    const edge = event.shiftKey ? stops[0] : stops.at(-1);
    if (document.activeElement === edge) {
      event.preventDefault();
      (event.shiftKey ? stops.at(-1) : stops[0]).focus();
    }
  };
  const field = (name, words, unit = "", rest = {}) => html`<label>${words}<span class="field"><input inputmode="decimal" value=${written[name]} onInput=${(event) => set({ [name]: event.target.value.trim() })} ...${rest} />${unit ? html`<span>${unit}</span>` : ""}</span></label>`;
  return html`<div class="scrim" onClick=${close} /><div class="drawer" role="dialog" aria-modal="true" aria-labelledby="newh" ref=${box} onKeyDown=${onKey}>
    <header><h2 id="newh">New deliberation</h2><button class="btn bare sq" aria-label="Close" onClick=${close}><${Icon} name="close" large /></button></header>
    <form class="fill" id="ask" tabindex="-1" onSubmit=${ask}>
      <div class="part"><div class="lab"><label for="task">Task</label><span class="end">Start from ${CASES.map(({ name, request: body0 }, index) => html`${index ? ", " : ""}<button type="button" class="linked" onClick=${() => { draft.value = { ...emptied(), ...fitting(body0, roles.value), parameters: body0.parameters ?? {} }; }}>${name}</button>`)}</span></div>
        <textarea id="task" rows="4" dir="auto" value=${written.task} onInput=${(event) => set({ task: event.target.value })} /></div>
      <${Council} agents=${written.agents} onChange=${(agents) => set({ agents })} />
      <div class="part" role="group" aria-label="Strategy"><div class="lab">Strategy</div>
        <div class="strats">${strategies.value.map(({ name }) => html`<label key=${name}><input type="radio" name="strategy" value=${name} checked=${name === written.strategy} onChange=${() => set({ strategy: name, parameters: {} })} /><span>${name}</span></label>`)}</div>
        <p class="body quiet summary">${strategy?.summary}</p><${Steps} strategy=${strategy} stages=${quote.value?.stages} />
        <div class="params">${strategy?.fields.includes("rounds") ? html`<label>Rounds <${Stepper} label="Rounds" value=${written.rounds} min=${1} max=${10} onChange=${(rounds) => set({ rounds })} /></label>` : ""}
          ${Object.entries(strategy?.parameters.properties ?? {}).map(([name, schema]) => html`<${Parameter} key=${name} name=${name} schema=${schema} value=${written.parameters[name]} onChange=${(value) => set({ parameters: { ...written.parameters, [name]: value } })} />`)}</div>
        <${Quote} quote=${quote} /></div>
      <${Evidence} items=${written.evidence} onChange=${(evidence) => set({ evidence })} />
      <div class="part" role="group" aria-label="Workspace"><div class="lab">Workspace</div><div class="two">${field("git", "Repository", "", { inputmode: "url", placeholder: "URL or path; none" })}${field("ref", "Branch, tag or commit", "", { inputmode: "text", placeholder: "HEAD" })}</div></div>
      <${Rubric} items=${written.rubric} onChange=${(rubric) => set({ rubric })} />
      <div class="part" role="group" aria-label="Bounds"><div class="lab">Bounds</div><div class="two">${field("max_cost", "Cost at most")}${field("max_tokens", "Tokens at most")}${field("minutes", "Time", "min")}
        <label>When time is over<select class="field" value=${written.on_deadline} onChange=${(event) => set({ on_deadline: event.target.value })}><option value="best">Conclude from what is there</option><option value="fail">Give no verdict</option></select></label>
        ${field("seed", "Seed", "", { placeholder: "drawn anew" })}<label class="all">Requirements, one a line<textarea rows="2" value=${written.requirements} onInput=${(event) => set({ requirements: event.target.value })} /></label></div></div>
    </form>
    <footer><button class="btn primary" form="ask" disabled=${busy || written.task.trim() === "" || body.agents.length === 0}>Deliberate <kbd>Ctrl ↵</kbd></button><p role="alert" class="fault">${fault}</p>
      <span class="small muted end">Copy as</span><span class="chips">${Object.entries(CLIENTS).map(([name, write]) => html`<button type="button" class="btn sm" key=${name} disabled=${name === "CLI" && body.agents.some(({ model }) => model)} title=${name === "CLI" ? "The command chooses no models" : null} onClick=${() => copyText(write(body))}>${name}</button>`)}</span></footer></div>`;
}
