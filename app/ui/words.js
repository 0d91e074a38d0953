/** Figures, times and states in words. An unknown figure is a dash, never 0. */

export const NONE = "–";

export const number = (value) => (value === null || value === undefined ? NONE : value.toLocaleString("en"));

/** 26,418 as "26.4 k". */
export function short(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 10_000) return number(value);
  if (value < 1_000_000) return `${(value / 1_000).toFixed(value < 100_000 ? 1 : 0)} k`;
  return `${(value / 1_000_000).toFixed(2)} M`;
}

export const size = (bytes) => (bytes < 1_000 ? plural(bytes, "byte") : bytes < 1_000_000 ? `${(bytes / 1_000).toFixed(0)} kB` : `${(bytes / 1_000_000).toFixed(1)} MB`);

export const tokensOf = (usage) => (usage ? usage.prompt_tokens + usage.completion_tokens : null);

export const cachedShare = (usage) =>
  usage?.prompt_tokens ? `${Math.round((100 * usage.cached_tokens) / usage.prompt_tokens)} %` : NONE;

/** The smallest cost that is written; a smaller one is under it, and only nothing is 0. */
const LEAST_COST = 0.001;

export function money(cost) {
  if (!cost) return NONE;
  const small = cost.amount > 0 && cost.amount < LEAST_COST;
  const amount = cost.amount === 0 ? "0" : small ? String(LEAST_COST) : cost.amount.toFixed(cost.amount < 1 ? 3 : 2);
  return `${small ? "under " : ""}${cost.currency === "USD" ? `$${amount}` : `${amount} ${cost.currency}`}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return NONE;
  const s = Math.max(0, ms) / 1_000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  const min = Math.floor(s / 60);
  if (min < 60) return s % 60 < 1 ? `${min} min` : `${min} min ${Math.floor(s % 60)} s`;
  const hours = Math.floor(min / 60);
  return hours < 48 ? `${hours} h` : `${Math.floor(hours / 24)} days`;
}

export const at = (iso) => (iso ? Date.parse(iso) : null);

export function age(iso, now = Date.now()) {
  const ms = Math.max(0, now - at(iso));
  return ms < 60_000 ? `${Math.floor(ms / 1_000)} s` : ms < 3_600_000 ? `${Math.floor(ms / 60_000)} min` : duration(ms);
}

export const clock = (iso) => new Date(iso).toLocaleTimeString("en-GB");

export const plural = (count, word, many = `${word}s`) => `${number(count)} ${count === 1 ? word : many}`;

export const ordinal = (rank) => `${rank}${["th", "st", "nd", "rd"][rank % 100 > 10 && rank % 100 < 14 ? 0 : Math.min(rank % 10, 4) % 4]}`;

export const title = (id) => sentence(id.replaceAll("_", " "));

/** A persona without the words that every persona begins with. */
export const persona = (text) => sentence(text.replace(/^You are an? /, ""));

/** With a capital, except an agent's id. */
export const sentence = (text) => (/-\d+$/.test(text) ? text : text.charAt(0).toUpperCase() + text.slice(1));

const FAMILIES = {
  write: ["propose", "debate", "fuse"],
  read: ["critique", "analyse", "test"],
  mend: ["revise", "repair"],
  decide: ["score", "judge", "pick", "check"],
};
const FAMILY = Object.fromEntries(Object.entries(FAMILIES).flatMap(([name, purposes]) => purposes.map((purpose) => [purpose, name])));

/** One of the four families of stages, which have a colour each. */
export const family = (purpose) => FAMILY[purpose] ?? "write";

/** Icon, colour and word of a deliberation's status. */
export function state({ status, degraded }) {
  if (status === "completed" && degraded) return ["alert", "warn", "Degraded"];
  return {
    pending: ["clock", "", "Waiting"],
    in_progress: ["spin", "run", "Running"],
    cancelling: ["spin", "warn", "Stopping"],
    completed: ["check", "ok", "Completed"],
    failed: ["cross", "bad", "Failed"],
    cancelled: ["stop", "", "Cancelled"],
    timeout: ["hourglass", "warn", "Out of time"],
  }[status];
}

// As app/catalog/entries.py reads it; the mark is in the head, so that no message can forge another one.
const CONVERSATION = /^Write the assistant's next message in the conversation below[^\n]* carries the mark ([0-9a-f]{12})\.\n/;

/** A task in one line; of a chat's transcript the user's last message. */
export function question(task) {
  const mark = task.match(CONVERSATION)?.[1];
  const begin = mark ? task.lastIndexOf(`[${mark} user`) : -1;
  // What the assistant and its tools have said since then stands behind it.
  const asked = begin < 0 ? task : task.slice(task.indexOf("]\n", begin) + 2).split(`\n\n[${mark} `, 1)[0];
  return asked.trim().replace(/\s+/g, " ");
}

/** `items` in an order drawn from a seed: the same for everybody who looks. */
export function shuffled(items, seed) {
  let state32 = (Number(seed) ^ 0x9e3779b9) >>> 0;
  const next = () => {
    state32 = (state32 + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state32 ^ (state32 >>> 15), 1 | state32);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
  const drawn = [...items];
  for (let last = drawn.length - 1; last > 0; last -= 1) {
    const other = Math.floor(next() * (last + 1));
    [drawn[last], drawn[other]] = [drawn[other], drawn[last]];
  }
  return drawn;
}
