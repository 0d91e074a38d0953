/** The house's roles and strategies, and how they fared. */

import { request } from "./gateway.js";
import { html, useEffect, useState } from "./html.js";
import { Icon } from "./parts.js";
import { address, adjust, route, useTitle } from "./router.js";
import { may, poll, roles, strategies } from "./state.js";
import { Steps } from "./steps.js";
import { duration, money, NONE, number, persona, plural, short, title, tokensOf } from "./words.js";

const SPANS = { day: 1, week: 7, month: 30 };
const EVERY_MS = 15_000;
const MEMBERS = 4;

function useStats(by, span) {
  const [groups, setGroups] = useState([]);
  useEffect(() => {
    if (!may("read")) return () => {};
    return poll(async () => {
      const from = new Date(Date.now() - SPANS[span] * 86_400_000).toISOString();
      setGroups((await request(`/stats?${new URLSearchParams({ by, from, bench: "false" })}`)).groups);
    }, EVERY_MS);
  }, [by, span]);
  return groups;
}

const seconds = (value) => (value === null ? NONE : duration(value * 1_000));
const share = (value) => (value === null || value === undefined ? NONE : `${Math.round(100 * value)} %`);

function Figures({ groups, head, wins = false }) {
  if (groups.length === 0) return html`<p class="quiet">Nothing ended in this time.</p>`;
  return html`<div class="scrollx" tabindex="0" role="region" aria-label=${`${head}, table`}><table><thead><tr><th scope="col">${head}</th><th scope="col" class="num">Asked</th><th scope="col" class="num">Completed</th><th scope="col" class="num">Failed</th>${wins ? html`<th scope="col" class="num">Won</th>` : html`<th scope="col" class="num">Agreement</th>`}<th scope="col" class="num">Degraded</th><th scope="col" class="num">Median time</th><th scope="col" class="num">95 %</th><th scope="col" class="num">Tokens</th><th scope="col" class="num">Cost</th></tr></thead>
    <tbody>${groups.map((each) => html`<tr key=${each.name}><th scope="row">${each.name}</th><td class="num">${number(each.total)}</td><td class="num">${number(each.completed)}</td><td class="num">${number(each.failed + each.timeout)}</td><td class="num">${wins ? (each.wins ? `${share(each.wins.rate)} of ${number(each.wins.decided)}` : NONE) : each.agreement === null ? NONE : each.agreement.toFixed(2)}</td><td class="num">${share(each.degraded_share)}</td><td class="num">${seconds(each.seconds.p50)}</td><td class="num">${seconds(each.seconds.p95)}</td><td class="num">${short(tokensOf(each.tokens))}</td><td class="num">${money(each.cost)}</td></tr>`)}</tbody></table></div>`;
}

/** What each strategy asks for with MEMBERS members and one round, by the gateway's own quote. */
function useCalls() {
  const [calls, setCalls] = useState(new Map());
  const role = roles.value[0]?.name;
  const names = strategies.value.map(({ name }) => name);
  useEffect(() => {
    if (!may("submit") || role === undefined) return;
    const quote = async (strategy) => [strategy, await request("/deliberations/quote", { method: "POST", body: { task: "A task", agents: [{ role, count: MEMBERS }], strategy } })];
    // A strategy without a quote, as behind a rate limit, stands without the sentence.
    for (const name of names) quote(name).then(([strategy, value]) => setCalls((before) => new Map([...before, [strategy, value]])), () => {});
  }, [role, names.join()]);
  return calls;
}

const callsInWords = ({ at_most: most, expected }) => `${number(MEMBERS)} members make ${expected.calls === most.calls ? plural(most.calls, "call") : `about ${number(expected.calls)} calls, ${number(most.calls)} at most`}.`;

function Days({ groups }) {
  const most = Math.max(1, ...groups.map(({ total }) => total));
  if (groups.length < 2) return null;
  return html`<figure class="days"><figcaption class="small muted">Deliberations a day, ${number(most)} at most</figcaption><ol>${groups.map(({ name, total, failed, timeout }) => html`<li key=${name} title=${`${name}: ${total}, ${failed + timeout} failed`}><i style=${{ "--v": `${((100 * total) / most).toFixed(0)}%` }} /><span class="vh">${name}: ${total}</span></li>`)}</ol></figure>`;
}

export function Councils() {
  useTitle("Councils");
  const span = SPANS[route.value.query.get("since")] ? route.value.query.get("since") : "month";
  const [byStrategy, byRole, byModel, byDay] = ["strategy", "role", "model", "day"].map((by) => useStats(by, span));
  const calls = useCalls();
  const won = new Map(byRole.map((each) => [each.name, each.wins]));
  return html`<div class="wrap"><div class="head lister"><h1>Councils</h1></div>
    <section class="block" aria-labelledby="roh"><header><h2 id="roh">Roles</h2><p>Who can sit in a council.</p></header><div class="scrollx" tabindex="0" role="region" aria-label="Roles, table"><table><thead><tr><th scope="col">Role</th><th scope="col">Persona</th><th scope="col">Model</th><th scope="col">Engines</th><th scope="col" class="num">Replicas</th><th scope="col" class="num">Calls now</th><th scope="col" class="num">Won</th></tr></thead>
      <tbody>${roles.value.map(({ name, persona: words, model, live, replicas }) => html`<tr key=${name}><th scope="row">${name.toLowerCase()}</th><td class="quiet persona">${persona(words)}</td><td>${live?.models.join(", ") || model || NONE}${live?.simulated ? html` <span class="sim">Simulated</span>` : ""}</td>
        <td class="small">${(live?.engines ?? []).map((engine) => html`<div key=${engine.url}>${engine.trouble ? html`<span class="st warn"><${Icon} name="alert" />${engine.url}</span>` : engine.name ?? engine.url}</div>`)}</td><td class="num">${live ? number(live.replicas) : NONE}<span class="muted"> of ${replicas.max}</span></td><td class="num">${live ? number(live.in_flight) : NONE}</td><td class="num">${won.get(name) ? share(won.get(name).rate) : NONE}</td></tr>`)}</tbody></table></div></section>
    <section class="block" aria-labelledby="sth"><header><h2 id="sth">Strategies</h2><p>How a council comes to a verdict.</p></header><ul class="strategies">${strategies.value.map((each) => html`<li key=${each.name}><div><h3>${each.name}</h3><p class="body quiet">${each.summary}</p></div><${Steps} strategy=${each} /><div class="small"><p>${calls.has(each.name) ? callsInWords(calls.get(each.name)) : ""}</p><p class="muted">${each.source}</p></div>${may("submit") ? html`<a class="btn sm" href=${address("new")}>Ask</a>` : ""}</li>`)}</ul></section>
    ${may("read") ? html`<section class="block" aria-labelledby="fgh"><header><h2 id="fgh">Statistics</h2><p>Without what a benchmark asked.</p><div class="seg end" role="group" aria-label="Time">${Object.keys(SPANS).map((each) => html`<button key=${each} aria-pressed=${each === span} onClick=${() => adjust({ since: each })}>${title(each)}</button>`)}</div></header>
      <${Days} groups=${byDay} /><h3 class="gap">By strategy</h3><${Figures} head="Strategy" groups=${byStrategy} /><h3 class="gap">By role</h3><${Figures} head="Role" groups=${byRole} wins=${true} /><h3 class="gap">By model</h3><${Figures} head="Model" groups=${byModel} wins=${true} /></section>` : ""}</div>`;
}
