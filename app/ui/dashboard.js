/** The dashboard: who asks, what is asked, the newest deliberations, and the one that the address names. */

import { shown } from "./detail.js";
import { asked, Refused } from "./gateway.js";
import { listed } from "./list.js";

const find = (id) => document.getElementById(id);
const named = () => decodeURIComponent(location.hash.slice(1));
const alerted = (form, text) => {
  form.querySelector("[role=alert]").textContent = text;
};
const said = (text) => {
  find("connection").textContent = text;
};
// The session is over: everything begins anew, with the question for a key.
const refused = () => location.reload();

// `crypto.randomUUID` is there on https and on this machine alone.
const drawn = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

function choices(select, items, chosen) {
  for (const { value, title } of items) {
    const option = new Option(value, value, false, value === chosen);
    option.title = title;
    select.add(option);
  }
}

async function opened(session) {
  const [roles, strategies] = await Promise.all([asked("/roles"), asked("/strategies")]);
  const form = find("ask");
  choices(form.elements.role, roles.items.map(({ name, persona }) => ({ value: name, title: persona })), "DEV");
  choices(form.elements.strategy, strategies.items.map(({ name, summary }) => ({ value: name, title: summary })), "council");
  find("mode").textContent = [
    session.mode === "development" ? "development mode: no keys are asked for" : `${session.tenant}: ${session.key}`,
    roles.items.some(({ live }) => live?.simulated) ? "simulated engine: no model wrote this" : "",
  ].filter(Boolean).join(" · ");
  find("leave").hidden = session.mode === "development";
  form.hidden = !session.scopes.includes("submit");
  find("enter").hidden = true;
  find("board").hidden = false;

  const list = listed(find("list"), named, said, refused);
  let end = () => {};
  const show = () => {
    end();
    end = () => {};
    list.mark();
    if (named() === "") find("detail").hidden = true;
    else end = shown(named(), said, refused);
  };
  addEventListener("hashchange", show);
  show();
}

find("ask").addEventListener("submit", async (submitted) => {
  submitted.preventDefault();
  const form = submitted.target;
  alerted(form, "");
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const accepted = await asked("/deliberations", {
      method: "POST",
      body: {
        task: form.elements.task.value,
        role: form.elements.role.value,
        num_agents: Number(form.elements.num_agents.value),
        strategy: form.elements.strategy.value,
      },
      headers: { "Idempotency-Key": drawn() },
    });
    location.hash = accepted.id;
  } catch (error) {
    alerted(form, error.message);
  } finally {
    button.disabled = false;
  }
});

find("enter").addEventListener("submit", async (submitted) => {
  submitted.preventDefault();
  const form = submitted.target;
  alerted(form, "");
  try {
    await asked("/login", { method: "POST", body: { key: form.elements.key.value } });
    form.reset();
    await opened(await asked("/login"));
  } catch (error) {
    alerted(form, error.message);
  }
});

find("leave").addEventListener("click", async () => {
  await asked("/logout", { method: "POST" });
  location.replace("/");
});

try {
  await opened(await asked("/login"));
} catch (error) {
  find("enter").hidden = false;
  if (!(error instanceof Refused && error.status === 401)) alerted(find("enter"), error.message);
}
