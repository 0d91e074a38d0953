/** A deliberation under way: time, figures, stages, the agents' lanes, the waterfall of calls, and the events. */

import { request } from "./gateway.js";
import { Head } from "./head.js";
import { html, useEffect, useMemo, useState } from "./html.js";
import { Lanes, Rail } from "./lanes.js";
import { NoticeSwitch } from "./notice.js";
import { Bar, Figures, initials, Note, Sure } from "./parts.js";
import { stillToCome, listed } from "./sentences.js";
import { may, now, strategies } from "./state.js";
import { Events, Waterfall } from "./waterfall.js";
import { at, cachedShare, clock, duration, money, number, plural, tokensOf } from "./words.js";

const FILL = { at: "full", waits: "ring", rests: "rest" };

function seatsOf(resource, council) {
  return resource.agents.map(({ agent_id: id, role }) => {
    const last = council.of(id).at(-1);
    const state = last === undefined || last.finished ? "rests" : last.startedAt === null || last.waiting ? "waits" : "at";
    return { name: initials(role), fill: FILL[state], state };
  });
}

function Gauge({ resource, council }) {
  const { usage, budget, constraints, deadline_at: deadline, created_at: created } = resource;
  const whole = at(deadline) - at(created);
  const elapsed = now.value - at(created);
  const calls = [...council.calls.values()];
  const ended = calls.filter(({ finished }) => finished).length;
  const run = calls.filter(({ finished, startedAt }) => !finished && startedAt).length;
  const over = constraints.on_deadline === "best" ? "concludes from what is there" : "ends without a verdict";
  return html`<div class="gauge"><div class="clock"><div class="ends"><span><b>${duration(elapsed)}</b> of ${duration(whole)}</span><span>${over} at ${clock(deadline)}</span></div><${Bar} share=${elapsed / whole} label="Time" /></div>
    <${Figures} label="Figures" items=${[
      ["calls", number(ended), `ended, ${number(run)} run${budget.max_calls ? `, ${number(budget.max_calls)} at most` : ""}`],
      ["tokens", number(tokensOf(usage)), budget.max_tokens ? `of ${number(budget.max_tokens)}` : usage.prompt_tokens ? `${cachedShare(usage)} cached` : ""],
      ["cost", money(usage.cost), budget.max_cost ? `of ${money({ amount: budget.max_cost, currency: usage.cost?.currency ?? "USD" })}` : ""],
    ]} /></div>`;
}

export function Running({ resource, council }) {
  const [fault, setFault] = useState("");
  const [events, setEvents] = useState(true);
  const cancel = async () => {
    try {
      await request(`/deliberations/${encodeURIComponent(resource.id)}/cancel`, { method: "POST", body: { reason: "stopped from the page" } });
    } catch (error) {
      setFault(error.message);
    }
  };
  useEffect(() => {
    const onKey = (event) => {
      if (!event.target.closest("input, textarea, select") && event.key === "e" && !event.ctrlKey && !event.metaKey) setEvents((shown) => !shown);
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  // A growing text alone changes neither.
  const under = useMemo(() => html`<div class=${`under${events ? "" : " alone"}`}><section aria-labelledby="wfh"><${Waterfall} council=${council} until=${now.value} live=${true} action=${events ? null : html`<button class="btn sm" onClick=${() => setEvents(true)}>Events <kbd>E</kbd></button>`} /></section>
    ${events ? html`<${Events} council=${council} onClose=${() => setEvents(false)} />` : ""}</div>`, [council.events.length, now.value, events]);
  const seats = seatsOf(resource, council);
  const count = (state) => seats.filter((seat) => seat.state === state).length;
  const waiting = [...council.calls.values()].filter((call) => call.waiting && !call.finished);
  const details = [...new Set(waiting.map((call) => call.waiting.detail))];
  const steps = strategies.value.find(({ name }) => name === resource.strategy)?.steps ?? [];
  const coming = resource.status === "cancelling" ? [] : stillToCome(steps, resource.rounds, council.stages);
  return html`<div class="wrap wide">
    <${Head} resource=${resource} seats=${seats} label=${`${plural(seats.length, "seat")}: ${count("at")} at work, ${count("waits")} wait, ${count("rests")} rest`}
      actions=${html`<${NoticeSwitch} />${may("submit") && resource.status !== "cancelling" ? html`<${Sure} word="Cancel" question="Stop it now? What was written stays." onSure=${cancel} />` : ""}`} />
    ${fault ? html`<p class="fault" role="alert">${fault}</p>` : ""}
    <${Gauge} resource=${resource} council=${council} />
    ${details.map((detail) => html`<${Note} key=${detail} tone="bad" head=${`${listed(waiting.filter((call) => call.waiting.detail === detail).map(({ agent_id: agent }) => agent))} wait for an engine.`}>${detail}<//>`)}
    ${council.stages.length === 0 ? html`<${Note} tone="accent" head="Accepted, and not begun.">It stands in the queue; a coordinator takes it when there is room.<//>` : html`<${Rail} council=${council} until=${now.value} coming=${coming} />`}
    <h2 class="vh">Council</h2><${Lanes} resource=${resource} council=${council} live=${true} />
    ${under}</div>`;
}
