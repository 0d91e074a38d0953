/** What every view needs: the session, roles, strategies, the health of the house, the time, and the reader's choices. */

import { computed, effect, signal } from "./html.js";
import { Away, Refused, request } from "./gateway.js";

export const session = signal(null);
export const roles = signal([]);
export const strategies = signal([]);
/** { ready, faults }: `faults` are parts that are missing or degraded, with detail and remedy. Null before the first answer. */
export const readiness = signal(null);
/** Set while the gateway does not answer. */
export const away = signal("");
/** Why the gateway refuses what the view repeats, as a search without an archive. */
export const fault = signal("");

export const may = (scope) => session.value?.scopes.includes(scope) ?? false;
export const simulated = computed(() => roles.value.some(({ live }) => live?.simulated));

/** Seconds pass here while the tab is seen. */
export const now = signal(Date.now());
const TICK_MS = 1_000;
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, TICK_MS);

/** A choice of the reader that the browser remembers. */
export function kept(name, initial) {
  const choice = signal(localStorage.getItem(name) ?? initial);
  effect(() => localStorage.setItem(name, choice.value));
  return choice;
}
/** "on" shows the agents' names on finished councils instead of letters. */
export const revealed = kept("revealed", "off");
/** "light", "dark", or "" for the system's. */
export const theme = kept("theme", "");
effect(() => {
  if (theme.value) document.documentElement.dataset.theme = theme.value;
  else delete document.documentElement.dataset.theme;
});

/** Calls `load` now and every `every_ms` while the tab is seen; returns the end. A failure is shown as the gateway's. */
export function poll(load, every_ms) {
  let timer = null;
  let over = false;
  const turn = async () => {
    clearTimeout(timer);
    if (!document.hidden) {
      try {
        await load();
        away.value = fault.value = "";
      } catch (error) {
        if (error instanceof Away) away.value = error.message;
        else if (!over && error.status !== 401) fault.value = error.message;
      }
    }
    if (!over) timer = setTimeout(turn, every_ms);
  };
  const seen = () => {
    if (!document.hidden) turn();
  };
  document.addEventListener("visibilitychange", seen);
  turn();
  return () => {
    over = true;
    fault.value = "";
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", seen);
  };
}

const HEALTH_MS = 10_000;

export async function loadHouse() {
  const [listed, offered] = await Promise.all(["/roles", "/strategies"].map((path) => request(path).catch(() => ({ items: [] }))));
  roles.value = listed.items;
  strategies.value = offered.items;
}

export const followHealth = () =>
  poll(async () => {
    try {
      readiness.value = { ready: true, faults: (await request("/readyz")).degraded };
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      readiness.value = { ready: false, faults: error.faults };
    }
    if (may("read")) roles.value = (await request("/roles")).items;
  }, HEALTH_MS);
