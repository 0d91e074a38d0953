/** The page: login, the shell around the views, and the view that the address names. */

import { Councils } from "./councils.js";
import { Deliberation } from "./deliberation.js";
import { html, render, useEffect, useState } from "./html.js";
import { onLogout, Refused, request } from "./gateway.js";
import { connection, joinStream } from "./live.js";
import { List } from "./list.js";
import { New } from "./new.js";
import { Icon, milestone, Note } from "./parts.js";
import { address, route, useTitle } from "./router.js";
import { away, fault as refusal, followHealth, loadHouse, may, readiness, session, simulated, theme } from "./state.js";
import { System } from "./system.js";

const MARK = [[3, 13, 2.3], [5.9, 6.6, 2.3], [13, 3.4, 2.3], [20.1, 6.6, 2.3], [23, 13, 2.3]];
const Brand = () => html`<a class="brand" href=${address("deliberations")}>
  <svg viewBox="0 0 26 16" aria-hidden="true" fill="currentColor">${MARK.map(([cx, cy, r]) => html`<circle cx=${cx} cy=${cy} r=${r} />`)}<circle class="table" cx="13" cy="12.6" r="2.9" /></svg><span>Deliberation Gateway</span></a>`;

const VIEWS = [["deliberations", "Deliberations", "list"], ["councils", "Councils", "people"], ["system", "System", "pulse"]];

function Theme() {
  const turn = () => {
    const dark = theme.value === "dark" || (theme.value === "" && matchMedia("(prefers-color-scheme: dark)").matches);
    theme.value = dark ? "light" : "dark";
  };
  return html`<button class="btn bare sq" aria-label="Light or dark" onClick=${turn}><${Icon} name="theme" large /></button>`;
}

function Health() {
  const lost = connection.value === "lost" || away.value !== "";
  const found = readiness.value;
  if (lost) return html`<span class="st warn small"><${Icon} name="spin" />Reconnecting</span>`;
  if (found === null) return null;
  const well = found.ready && found.faults.length === 0;
  return html`<a class=${`st small opt ${well ? "ok" : "warn"}`} href=${address("system")}><${Icon} name=${well ? "check" : "alert"} /><span>${well ? "All parts answer" : "Degraded"}</span></a>`;
}

/** Tells on every view when something is amiss. */
function Banner() {
  if (away.value) return html`<${Note} tone="accent" head="The gateway is away.">${away.value} Councils go on without it.<//>`;
  if (refusal.value) return html`<${Note} tone="bad" head="Refused.">${refusal.value}<//>`;
  const found = readiness.value;
  if (!found || (found.ready && found.faults.length === 0)) return null;
  const [first, ...others] = found.faults;
  return html`<${Note} tone=${found.ready ? "warn" : "bad"} head=${first ? first.detail : "Not ready."} action=${html`<a class="btn sm" href=${address("system")}>System</a>`}>
    ${first?.remedy}${others.length ? ` And ${others.length} more.` : ""}<//>`;
}

function Shell({ children, current }) {
  const leave = async () => {
    await request("/logout", { method: "POST" });
    location.replace("/");
  };
  const { mode, tenant, key } = session.value;
  useEffect(() => {
    document.body.toggleAttribute("data-sim", simulated.value);
  }, [simulated.value]);
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to content</a>
    <header class="top"><${Brand} /><nav class="nav" aria-label="Views">${VIEWS.map(([path, word, icon]) => html`
      <a href=${address(path)} aria-current=${current === path ? "page" : null}><${Icon} name=${icon} large />${word}</a>`)}</nav>
      <div class="side"><span class="sim" data-simulated title="No model wrote these texts"><${Icon} name="info" />Simulated<span class="opt"> engine</span></span><${Health} />
        <a class="opt link" href="/docs">API</a>
        ${mode === "development" ? html`<span class="opt muted" title="This gateway requires no keys, and only this machine reaches it">no keys</span>` : html`<span class="opt" title=${`Scopes: ${session.value.scopes.join(", ")}`}>${tenant}: ${key}</span><button class="btn sm" onClick=${leave}>Log out</button>`}
        <${Theme} /></div></header>
    <main id="main" tabindex="-1"><div class="banner"><${Banner} /></div>${children}</main>
    <p class="vh" role="status" aria-live="polite">${milestone.value}</p>`;
}

function View() {
  const { view, id, query } = route.value;
  if (view === "councils") return html`<${Shell} current="councils"><${Councils} /><//>`;
  if (view === "system") return html`<${Shell} current="system"><${System} /><//>`;
  if (view === "deliberations" && id !== null) return html`<${Shell} current="deliberations"><${Deliberation} key=${id} id=${id} /><//>`;
  return html`<${Shell} current="deliberations"><${List} />${view === "new" && may("submit") ? html`<${New} key=${query.get("from")} from=${query.get("from")} />` : ""}<//>`;
}

function Login({ fault, onSession }) {
  const [alert, setAlert] = useState(fault);
  useTitle("Log in");
  const enter = async (event) => {
    event.preventDefault();
    setAlert("");
    const form = event.target;
    try {
      await request("/login", { method: "POST", body: { key: form.elements.key.value } });
      form.reset();
      await onSession(await request("/login"));
    } catch (error) {
      setAlert(error.message);
    }
  };
  return html`<header class="top"><${Brand} /><div class="side"><${Theme} /></div></header>
    <main id="main"><form class="login" onSubmit=${enter}><h1>Log in</h1><p class="quiet">This gateway requires a key. An administrator makes one with <code>deliberate keys create</code>.</p>
      <label>API key<span class="field"><input name="key" type="password" autocomplete="current-password" required maxlength="256" /></span></label>
      <button class="btn primary">Log in</button><p role="alert">${alert}</p></form></main>`;
}

function Page() {
  const [fault, setFault] = useState(null);
  const [loading, setLoading] = useState(true);
  const openHouse = async (found) => {
    await loadHouse();
    if (session.value === null) {
      joinStream(found.tenant);
      followHealth();
    }
    session.value = found;
  };
  useEffect(() => {
    // A session that ends while a task is typed shows the login above it and costs no text: the draft is kept (new.js).
    onLogout(() => {
      session.value = null;
      setFault("The session has ended. Log in again; a typed task is kept.");
    });
    request("/login")
      .then(openHouse)
      .catch((error) => setFault(error instanceof Refused && error.status === 401 ? "" : error.message))
      .finally(() => setLoading(false));
  }, []);
  if (session.value !== null) return html`<${View} />`;
  return loading ? null : html`<${Login} fault=${fault} onSession=${openHouse} />`;
}

render(html`<${Page} />`, document.body);
