/** The dashboard: login, the form for a task, the newest deliberations, and the one that the address names. */

import { showDeliberation } from "./detail.js";
import { Refused, request } from "./gateway.js";
import { showList } from "./list.js";

const find = (id) => document.getElementById(id);
const selectedId = () => decodeURIComponent(location.hash.slice(1));
const showAlert = (form, text) => {
  form.querySelector("[role=alert]").textContent = text;
};
const showStatus = (text) => {
  find("connection").textContent = text;
};
// The session has ended: the reload shows the login.
const logOut = () => location.reload();

// `crypto.randomUUID` exists only on https and on localhost.
const randomKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

function addOptions(select, items, selected) {
  for (const { value, title } of items) {
    const option = new Option(value, value, false, value === selected);
    option.title = title;
    select.add(option);
  }
}

async function openBoard(session) {
  const [roles, strategies] = await Promise.all([request("/roles"), request("/strategies")]);
  const form = find("ask");
  addOptions(form.elements.role, roles.items.map(({ name, persona }) => ({ value: name, title: persona })), "DEV");
  addOptions(form.elements.strategy, strategies.items.map(({ name, summary }) => ({ value: name, title: summary })), "council");
  find("mode").textContent = [
    session.mode === "development" ? "development mode: no keys required" : `${session.tenant}: ${session.key}`,
    roles.items.some(({ live }) => live?.simulated) ? "simulated engine: no model wrote this" : "",
  ].filter(Boolean).join(" · ");
  find("leave").hidden = session.mode === "development";
  form.hidden = !session.scopes.includes("submit");
  find("enter").hidden = true;
  find("board").hidden = false;

  // The stages that a strategy repeats; the rounds of others are numbers that no request sets.
  const perRound = new Set(strategies.items.flatMap(({ steps }) => steps).filter((step) => step.endsWith(" × R")).map((step) => step.slice(0, -4)));
  const list = showList(find("list"), selectedId, showStatus, logOut);
  let end = () => {};
  const show = () => {
    end();
    end = () => {};
    list.mark();
    if (selectedId() === "") find("detail").hidden = true;
    else end = showDeliberation(selectedId(), perRound, showStatus, logOut);
  };
  addEventListener("hashchange", show);
  show();
}

find("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  showAlert(form, "");
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const accepted = await request("/deliberations", {
      method: "POST",
      body: {
        task: form.elements.task.value,
        role: form.elements.role.value,
        // Without a number the strategy's default counts.
        ...(form.elements.num_agents.value === "" ? {} : { num_agents: Number(form.elements.num_agents.value) }),
        strategy: form.elements.strategy.value,
      },
      headers: { "Idempotency-Key": randomKey() },
    });
    location.hash = accepted.id;
  } catch (error) {
    showAlert(form, error.message);
  } finally {
    button.disabled = false;
  }
});

find("enter").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  showAlert(form, "");
  try {
    await request("/login", { method: "POST", body: { key: form.elements.key.value } });
    form.reset();
    await openBoard(await request("/login"));
  } catch (error) {
    showAlert(form, error.message);
  }
});

find("leave").addEventListener("click", async () => {
  await request("/logout", { method: "POST" });
  location.replace("/");
});

try {
  await openBoard(await request("/login"));
} catch (error) {
  find("enter").hidden = false;
  if (!(error instanceof Refused && error.status === 401)) showAlert(find("enter"), error.message);
}
