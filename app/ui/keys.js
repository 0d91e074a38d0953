/** The tenant's keys: list, make, revoke. The secret of a new one is shown once and kept nowhere. */

import { request } from "./gateway.js";
import { html, useEffect, useState } from "./html.js";
import { Block, Copy, Icon, Note, Sure, Table, tell } from "./parts.js";
import { now, poll, session } from "./state.js";
import { at, duration, NONE } from "./words.js";

const EVERY_MS = 15_000;
const DAY_S = 86_400;
const LIFETIMES = [["a day", DAY_S], ["30 days", 30 * DAY_S], ["90 days", 90 * DAY_S], ["a year", 365 * DAY_S], ["as long as mine", null]];

function NewKey({ onMade, onClose }) {
  const own = ["submit", "read", "admin"].filter((scope) => session.value.scopes.includes(scope));
  const [scopes, setScopes] = useState(own.filter((scope) => scope !== "admin"));
  const [fault, setFault] = useState("");
  const make = async (event) => {
    event.preventDefault();
    const { name, lifetime } = event.target.elements;
    try {
      onMade(await request("/keys", { method: "POST", body: { name: name.value, scopes, lifetime_seconds: LIFETIMES[lifetime.selectedIndex][1] } }));
    } catch (error) {
      setFault(error.message);
    }
  };
  const turn = (scope) => setScopes(scopes.includes(scope) ? scopes.filter((each) => each !== scope) : [...scopes, scope]);
  return html`<form class="newkey" onSubmit=${make}><label>Name<span class="field"><input name="name" required maxlength="100" autocomplete="off" ref=${(input) => input?.focus()} /></span></label>
    <div class="label" role="group" aria-label="May">May<span class="seg">${own.map((scope) => html`<button type="button" key=${scope} aria-pressed=${scopes.includes(scope)} onClick=${() => turn(scope)}>${scope}</button>`)}</span></div>
    <label>Lasts<select class="field" name="lifetime">${LIFETIMES.map(([word], index) => html`<option selected=${index === 2}>${word}</option>`)}</select></label>
    <button class="btn primary" disabled=${scopes.length === 0}>Make key</button><button type="button" class="btn" onClick=${onClose}>Close</button>
    <p class="small muted">It has no right that yours lacks, ends no later, and is revoked with yours.</p><p role="alert">${fault}</p></form>`;
}

const expiry = ({ expires_at: iso }) => (iso === null ? "never" : at(iso) < now.value ? "ended" : `in ${duration(at(iso) - now.value)}`);

export function Keys() {
  const [found, setFound] = useState(null);
  const [form, setForm] = useState(false);
  const [made, setMade] = useState(null);
  const [fault, setFault] = useState("");
  const load = async () => setFound(await request("/keys"));
  useEffect(() => poll(load, EVERY_MS), []);
  if (session.value.mode === "development") return html`<${Block} id="kh" head="Keys"><p class="quiet">This gateway asks for no keys, and only this machine reaches it. Start it with <code>KEY_PEPPER</code> to require them.</p><//>`;
  if (found === null) return null;
  const names = new Map(found.items.map(({ key_id: id, name }) => [id, name]));
  const revoke = async ({ key_id: id, name }) => {
    try {
      await request(`/keys/${encodeURIComponent(id)}`, { method: "DELETE" });
      tell(`${name} is revoked.`);
      setFault("");
      await load();
    } catch (error) {
      setFault(error.message);
    }
  };
  const show = async (key) => {
    setMade(key);
    setForm(false);
    await load();
  };
  const action = found.writable && !form ? html`<button class="btn sm end" onClick=${() => { setMade(null); setForm(true); }}><${Icon} name="plus" />New key</button>` : null;
  return html`<${Block} id="kh" head="Keys" wide=${true} words=${found.writable ? "Who may ask this gateway for this tenant." : "This gateway may not write keys: use deliberate keys, or set KEYS_NATS_URL."} action=${action}>
    ${form ? html`<${NewKey} onMade=${show} onClose=${() => setForm(false)} />` : ""}${fault ? html`<p class="fault" role="alert">${fault}</p>` : ""}
    ${made ? html`<${Note} tone="accent" head="Keep this key: it is not shown again." action=${html`<span class="row end"><${Copy} text=${made.key}>Copy<//><button class="btn sm" onClick=${() => setMade(null)}>Done</button></span>`}><code class="secret">${made.key}</code><//>` : ""}
    <${Table} name="Keys" head=${[["Name"], ["May"], ["Made by"], ["Expires"], ["State"], ["", "num"]]}>${found.items.map((key) => html`<tr key=${key.key_id}><th scope="row" class="cell2">${key.name}<small class="mono">${key.key_id}</small></th><td><span class="chips">${key.scopes.map((scope) => html`<span class="chip">${scope}</span>`)}</span></td><td class="quiet">${key.maker === null ? "operator" : names.get(key.maker) ?? NONE}</td><td>${expiry(key)}</td><td>${key.status === "good" ? html`<span class="st ok"><${Icon} name="check" />good</span>` : html`<span class="st"><${Icon} name="stop" />${key.status}</span>`}</td><td class="num">${found.writable && key.status === "good" ? html`<${Sure} class="btn sm danger" word="Revoke" question=${`${key.name} and the keys that it made?`} onSure=${() => revoke(key)} />` : ""}</td></tr>`)}<//><//>`;
}
