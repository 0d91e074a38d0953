/**
 * One event stream for all tabs of a browser. The tab that holds the lock follows every deliberation that some tab
 * watches, and passes the events on. When it closes, the next tab takes over from the oldest cursor of all.
 */

import { signal } from "./html.js";

const RECONNECT_MS = 2_000;
const TYPES = [
  "deliberation.accepted", "deliberation.resumed", "deliberation.cancelling", "deliberation.deleted",
  "deliberation.completed", "deliberation.failed", "deliberation.cancelled", "deliberation.timeout",
  "stage.opened", "stage.closed", "call.started", "call.waiting", "call.delta", "call.finished", "tool.started", "tool.used", "stream.gap",
];

/** "", or "lost" while the stream is being opened again. */
export const connection = signal("");

const own = crypto.getRandomValues(new Uint32Array(2)).join("-");
const watched = new Map();
const leading = { followed: new Map(), source: null, timer: null, after: null };
let channel = null;

const sequence = (cursor) => Number(cursor.slice(cursor.lastIndexOf("-") + 1));
const earlier = (left, right) => (sequence(left) <= sequence(right) ? left : right);

/** Says it to the other tabs and to this one. */
function say(message) {
  channel?.postMessage(message);
  hear(message);
}

function hear(message) {
  switch (message.kind) {
    case "watch":
      if (leading.lock) follow(message);
      break;
    case "leave":
      if (leading.lock) forget(message);
      break;
    case "leader":
      for (const [id, { cursor }] of watched) say({ kind: "watch", tab: own, id, cursor });
      break;
    case "connection":
      connection.value = message.state;
      if (message.refused) for (const each of watched.values()) each.onRefused();
      break;
    case "event":
      deliver(message);
      break;
  }
}

function deliver({ id, cursor, event }) {
  const each = watched.get(id);
  if (each === undefined) return;
  if (event.type === "stream.gap") each.onGap();
  if (cursor === null || sequence(cursor) <= sequence(each.cursor)) return;
  each.cursor = cursor;
  each.onEvent(event);
}

/** As the leader: another deliberation, or another tab for one. */
function follow({ tab, id, cursor }) {
  const tabs = leading.followed.get(id) ?? new Set();
  tabs.add(tab);
  leading.followed.set(id, tabs);
  leading.after = leading.after === null ? cursor : earlier(leading.after, cursor);
  open();
}

function forget({ tab, id }) {
  const tabs = leading.followed.get(id);
  if (!tabs?.delete(tab) || tabs.size > 0) return;
  leading.followed.delete(id);
  open();
}

function open() {
  clearTimeout(leading.timer);
  leading.timer = setTimeout(() => {
    leading.source?.close();
    leading.source = null;
    if (leading.followed.size === 0) {
      leading.after = null;
      connection.value = "";
      return;
    }
    const query = new URLSearchParams({ deltas: "true", text: "answer", after: leading.after });
    for (const id of leading.followed.keys()) query.append("deliberation", id);
    const source = new EventSource(`/events?${query}`);
    leading.source = source;
    source.addEventListener("stream.opened", () => say({ kind: "connection", state: "" }));
    source.onerror = () => {
      if (source !== leading.source) return;
      const refused = source.readyState === EventSource.CLOSED;
      say({ kind: "connection", state: "lost", refused });
      // After a refusal, as by a proxy while the gateway restarts, an EventSource gives up.
      if (refused) leading.timer = setTimeout(open, RECONNECT_MS);
    };
    source.onmessage = move;
    for (const type of TYPES) {
      source.addEventListener(type, (frame) => {
        const cursor = move(frame);
        const event = { ...JSON.parse(frame.data), ...(cursor === null ? {} : { id: cursor }) };
        const ids = event.deliberation_id === null ? leading.followed.keys() : [event.deliberation_id];
        for (const id of [...ids]) say({ kind: "event", id, cursor, event });
      });
    }
  }, 0);
}

function move(frame) {
  if (frame.lastEventId === "") return null;
  leading.after = frame.lastEventId;
  return frame.lastEventId;
}

async function lead(held) {
  leading.lock = true;
  say({ kind: "leader" });
  await held;
}

/** Takes part in the tenant's stream. Where the browser offers no locks (plain http), each tab has a stream of its own. */
export function joinStream(tenant) {
  const name = `deliberations of ${tenant}`;
  const forever = new Promise(() => {});
  addEventListener("pagehide", () => {
    for (const id of watched.keys()) say({ kind: "leave", tab: own, id });
  });
  if (navigator.locks === undefined) {
    lead(forever);
    return;
  }
  channel = new BroadcastChannel(name);
  channel.onmessage = ({ data }) => hear(data);
  navigator.locks.request(name, () => lead(forever));
}

/** Calls `onEvent` with each event after `cursor`, `onGap` when events are lost, `onRefused` when the stream is refused. */
export function watch(id, cursor, { onEvent, onGap, onRefused }) {
  watched.set(id, { cursor, onEvent, onGap, onRefused });
  say({ kind: "watch", tab: own, id, cursor });
  return () => {
    if (watched.delete(id)) say({ kind: "leave", tab: own, id });
  };
}
