/** The first run: an empty house explains itself. */

import { CASES, fitting, randomKey } from "./cases.js";
import { request } from "./gateway.js";
import { html, useState } from "./html.js";
import { Seats } from "./parts.js";
import { address, go, of } from "./router.js";
import { may, roles, simulated, strategies } from "./state.js";
import { Steps } from "./steps.js";

export function First() {
  const [fault, setFault] = useState("");
  const ask = async (body) => {
    try {
      const accepted = await request("/deliberations", { method: "POST", body: fitting(body, roles.value), headers: { "Idempotency-Key": randomKey() } });
      go(of(accepted.id));
    } catch (error) {
      setFault(error.message);
    }
  };
  return html`<div class="wrap"><div class="first">
    <${Seats} label="Five seats" seats=${["AR", "DV", "DV", "QA", "DA"].map((name, index) => ({ name, fill: ["full", "full", "ring", "full", "rest"][index] }))} />
    <h1>Nobody has deliberated here yet</h1>
    <p class="lead">You give a task. Several agents answer it on their own, criticise each other without names, revise, and score. You get one verdict, with the reasons, the dissent and the bill.</p>
    <div class="cases">${may("submit") ? CASES.map(({ name, summary, request: body }) => html`<div class="case" key=${name}><span class="muted small">${name}</span>
      <div><strong>${body.task.split("\n")[0]}</strong><p>${summary}</p><${Steps} strategy=${strategies.value.find((each) => each.name === body.strategy)} /></div>
      <button class=${`btn${name === "medium" ? " primary" : ""}`} onClick=${() => ask(body)}>Ask this</button></div>`) : html`<p class="quiet">This key may read. One with the scope submit asks.</p>`}</div>
    <p role="alert">${fault}</p>
    <p class="foot">${may("submit") ? html`<a class="btn" href=${address("new")}>Write a task of your own</a>` : ""}</p>
    <div class="connect">${simulated.value ? html`<div><h2>The engine is a simulator</h2><p>No model wrote its texts, and each of them says so. It proves order and cost, never quality.</p></div>` : ""}
      <div><h2>Connect a real one</h2><p>Any server with OpenAI’s chat API: start the gateway with its address.</p><pre class="sh" tabindex="0"><code>deliberate up --engine-url http://127.0.0.1:8000</code></pre></div></div></div></div>`;
}
