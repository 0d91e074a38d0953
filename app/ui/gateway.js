/** The gateway as a page of its own origin asks it: requests that say what was wrong, and streams that go on. */

/** The statuses in which a deliberation has ended; events of these names are its last. */
export const ENDS = ["completed", "failed", "cancelled", "timeout"];

/** What the gateway refused; `message` is its own sentence, with the remedies. */
export class Refused extends Error {
  constructor(status, problem) {
    const faults = (problem?.errors ?? []).map((fault) => `${fault.pointer}: ${fault.detail} ${fault.remedy}`);
    super([problem?.detail ?? `The gateway answered ${status}.`, ...faults].join("\n"));
    this.status = status;
  }
}

/** The JSON that a path answers with; null where it has nothing to say. Throws Refused. */
export async function asked(path, { method = "GET", body, headers = {} } = {}) {
  const init = { method, headers: { Accept: "application/json", ...headers } };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, init);
  const said = answer.headers.get("Content-Type")?.includes("json") ? await answer.json() : null;
  if (!answer.ok) throw new Refused(answer.status, said);
  return said;
}

const AGAIN_MS = 2_000;

/**
 * Follows a stream: `heard` has a function for each type of event, `said` is told when the connection breaks and is back,
 * `refused` when it will not be. Returns what ends it. An EventSource reconnects by itself and names the last event it
 * had, but gives up when it is refused, as by a proxy while the gateway restarts: then another one goes on from there.
 */
export function followed(path, heard, said, refused) {
  let after = null;
  let source = null;
  let timer = null;
  const open = () => {
    const url = new URL(path, location.origin);
    if (after !== null) url.searchParams.set("after", after);
    source = new EventSource(url);
    source.onopen = () => said("");
    source.onerror = async () => {
      said("The connection is lost; it is being taken up again.");
      if (source.readyState !== EventSource.CLOSED) return;
      const status = await fetch("/login").then((answer) => answer.status, () => null);
      if (status === 401) refused();
      else if (timer !== false) timer = setTimeout(open, AGAIN_MS);
    };
    for (const [type, take] of Object.entries(heard)) {
      source.addEventListener(type, (frame) => {
        if (frame.lastEventId !== "") after = frame.lastEventId;
        take(JSON.parse(frame.data));
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
