/** Requests to the gateway with readable errors, and streams that reconnect. */

/** The final statuses of a deliberation, which are also the names of its terminal events. */
export const ENDS = ["completed", "failed", "cancelled", "timeout"];

/** A refusal of the gateway; `message` has its detail and remedies. */
export class Refused extends Error {
  constructor(status, problem) {
    const faults = (problem?.errors ?? []).map((fault) => `${fault.pointer}: ${fault.detail} ${fault.remedy}`);
    super([problem?.detail ?? `The gateway answered ${status}.`, ...faults].join("\n"));
    this.status = status;
  }
}

/** The JSON response of a path; null for other responses. Throws Refused. */
export async function request(path, { method = "GET", body, headers = {} } = {}) {
  const init = { method, headers: { Accept: "application/json", ...headers } };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers["Content-Type"] = "application/json";
  }
  const response = await fetch(path, init);
  const content = response.headers.get("Content-Type")?.includes("json") ? await response.json() : null;
  if (!response.ok) throw new Refused(response.status, content);
  return content;
}

const RECONNECT_MS = 2_000;

/**
 * Follows a stream and returns a function that ends it. `handlers` has a function per event type. `onStatus` gets a text
 * when the connection breaks or is restored; `onLogout` is called when the session has ended. An EventSource reconnects
 * at its last event, but gives up after a refusal, as by a proxy while the gateway restarts; then another one resumes.
 */
export function follow(path, handlers, onStatus, onLogout) {
  let after = null;
  let source = null;
  let timer = null;
  const open = () => {
    const url = new URL(path, location.origin);
    if (after !== null) url.searchParams.set("after", after);
    source = new EventSource(url);
    source.onopen = () => onStatus("");
    source.onerror = async () => {
      onStatus("The connection is lost; reconnecting.");
      if (source.readyState !== EventSource.CLOSED) return;
      const status = await fetch("/login").then((response) => response.status, () => null);
      if (status === 401) onLogout();
      else if (timer !== false) timer = setTimeout(open, RECONNECT_MS);
    };
    for (const [type, handle] of Object.entries(handlers)) {
      source.addEventListener(type, (frame) => {
        if (frame.lastEventId !== "") after = frame.lastEventId;
        handle(JSON.parse(frame.data));
      });
    }
  };
  open();
  return () => {
    clearTimeout(timer);
    timer = false;
    source.close();
  };
}
