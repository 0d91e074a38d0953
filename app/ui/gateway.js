/** Requests to the gateway with readable errors. */

/** The final statuses of a deliberation, which are also the names of its terminal events. */
export const ENDS = ["completed", "failed", "cancelled", "timeout"];

/** A field's name in words, such as `Timeout seconds`, where the sentence about it does not have it; headers have none. */
function field({ location, pointer, detail }) {
  const name = location === "header" ? "" : (String(pointer ?? "").split("/").findLast((part) => /[a-z]/.test(part)) ?? "").replaceAll("_", " ");
  return detail.toLowerCase().includes(name) ? "" : `${name[0].toUpperCase()}${name.slice(1)}: `;
}

const sentence = (text) => (/[.?!]$/.test(text) ? text : `${text}.`);

/** What a fault says, with its remedy; headers are the page's own. */
export const faultInWords = (fault) => `${sentence(fault.detail)} ${fault.location === "header" ? "" : fault.remedy}`.trim();

/** A refusal of the gateway; `message` says each fault once, without the headers that the page sends. `faults` names fields or parts. */
export class Refused extends Error {
  constructor(status, problem) {
    const faults = problem?.errors ?? [];
    const said = faults.map((fault) => `${field(fault)}${faultInWords(fault)}`);
    super(said.join("\n") || (problem?.detail ?? `The gateway answered ${status}.`));
    this.status = status;
    this.faults = faults;
  }
}

/** The gateway has not answered. */
export class Away extends Error {}

let loggedOut = () => {};
/** `listener` is called when a request is refused because the session has ended. */
export const onLogout = (listener) => {
  loggedOut = listener;
};

/** The JSON response of a path; null for other responses. Throws Refused and Away. */
export async function request(path, { method = "GET", body, headers = {} } = {}) {
  const init = { method, headers: { Accept: "application/json", ...headers } };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers["Content-Type"] = "application/json";
  }
  const response = await fetch(path, init).catch(() => {
    throw new Away("The gateway does not answer. The page tries again by itself.");
  });
  const content = response.headers.get("Content-Type")?.includes("json") ? await response.json() : null;
  if (response.status === 401 && path !== "/login") loggedOut();
  if (!response.ok) throw new Refused(response.status, content);
  return content;
}

/** POSTs a form with a file: { answer, stop }, where `answer` is as that of `request`. `onShare` gets the share that is sent, up to 1. */
export function send(path, form, onShare) {
  const sent = new XMLHttpRequest();
  sent.open("POST", path);
  sent.setRequestHeader("Accept", "application/json");
  sent.responseType = "json";
  sent.upload.onprogress = ({ loaded, total }) => onShare(loaded / total);
  const answer = new Promise((resolve, reject) => {
    sent.onload = () => {
      if (sent.status === 401) loggedOut();
      if (sent.status < 400) resolve(sent.response);
      else reject(new Refused(sent.status, sent.response));
    };
    sent.onerror = sent.onabort = () => reject(new Away("The upload broke."));
  });
  sent.send(form);
  return { answer, stop: () => sent.abort() };
}

const PAGE = 1_000;

/** The recorded events of a deliberation from `after`, without growing texts unless `deltas`, and the cursor behind them. */
export async function recorded(id, { after = "0", deltas = false, text = "answer", types } = {}) {
  const events = [];
  for (let ended = false; !ended; ) {
    const query = new URLSearchParams({ after, limit: PAGE, deltas, text, ...(types ? { types } : {}) });
    const page = await request(`/deliberations/${encodeURIComponent(id)}/events?${query}`);
    events.push(...page.items);
    ended = page.items.length < PAGE;
    after = page.next ?? after;
  }
  return { events, cursor: after };
}
