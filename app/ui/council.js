/** A council as its recorded events tell it up to a moment: stages, calls and their texts. */

import { at } from "./words.js";

const chars = (text) => [...text].length;

/** Puts `piece` at the character `offset` of a call's text, in code points, which the gateway counts. */
function place(call, offset, piece) {
  const kept = offset === call.chars ? call.text : [...call.text].slice(0, offset).join("");
  Object.assign(call, { text: kept + piece, chars: Math.min(offset, call.chars) + chars(piece) });
}

/** Events that decide nothing, and expire ten minutes after they were written. */
const VIEWS = new Set(["call.started", "call.waiting", "call.delta"]);

/** `events` may be given one by one as they come: `apply` changes the council. */
export class Council {
  constructor(events = []) {
    this.stages = [];
    this.calls = new Map();
    this.events = [];
    this.facts = 0;
    this.takeovers = [];
    this.startedAt = null;
    this.endedAt = null;
    this.version = 0;
    for (const event of events) this.apply(event);
  }

  apply(event) {
    this.version += 1;
    const ts = at(event.ts);
    this.startedAt ??= ts;
    if (event.type !== "call.delta") this.events.push(event);
    if (!VIEWS.has(event.type)) this.facts += 1;
    switch (event.type) {
      case "stage.opened":
        this.stages.push({ ...event, openedAt: ts, closedAt: null, reason: null, seen: [] });
        for (const planned of event.calls) {
          this.calls.set(planned.call_id, {
            ...planned, purpose: event.purpose, round: event.round, stage: event.stage, openedAt: ts,
            startedAt: null, attempt: 0, attempts: [], text: "", chars: 0, firstAt: null, waiting: null, uses: [], using: null, finished: null, finishedAt: null,
          });
        }
        break;
      case "stage.closed":
        Object.assign(this.stages.find(({ stage }) => stage === event.stage) ?? {}, { closedAt: ts, reason: event.reason, seen: event.seen });
        break;
      case "call.started": {
        const call = this.calls.get(event.call_id);
        if (!call || call.finished || event.attempt <= call.attempt) break;
        Object.assign(call, { startedAt: ts, attempt: event.attempt, model: event.model, text: "", chars: 0, firstAt: null, waiting: null });
        call.attempts.push(ts);
        break;
      }
      case "call.waiting": {
        const call = this.calls.get(event.call_id);
        if (call && !call.finished) call.waiting = event;
        break;
      }
      case "call.delta": {
        const call = this.calls.get(event.call_id);
        if (!call || call.finished || call.attempt > event.attempt) break;
        if (event.attempt > call.attempt) Object.assign(call, { attempt: event.attempt, text: "", chars: 0 });
        call.firstAt ??= ts;
        call.waiting = null;
        place(call, event.offset, event.text);
        break;
      }
      case "call.finished": {
        const call = this.calls.get(event.call_id);
        if (!call) break;
        Object.assign(call, { finished: event, finishedAt: ts, waiting: null, model: event.model ?? call.model });
        if (event.text !== null) call.text = event.text;
        break;
      }
      case "tool.started":
      case "tool.used": {
        const call = this.calls.get(event.call_id);
        if (!call) break;
        call.using = event.type === "tool.started" ? event.name : null;
        if (event.type === "tool.used") call.uses.push({ ...event, endedAt: ts });
        break;
      }
      case "deliberation.resumed":
        this.takeovers.push(ts);
        break;
      case "deliberation.completed":
      case "deliberation.failed":
      case "deliberation.cancelled":
      case "deliberation.timeout":
        this.endedAt = ts;
        break;
    }
  }

  /** The calls of an agent in the order of their stages. */
  of(agentId) {
    return [...this.calls.values()].filter((call) => call.agent_id === agentId);
  }

  inStage(stage) {
    return [...this.calls.values()].filter((call) => call.stage === stage);
  }
}

/** The outputs that are an answer to the task, with a text that grows. */
export const WRITES = new Set(["answer", "revision", "turn", "fusion", "program"]);

/** The requests of a call that repeat a failed one, by its outcome or else its last start. Each turn of tools takes one more request. */
export function repeats(call) {
  const turns = Math.max(0, ...call.uses.map(({ turn }) => turn));
  return Math.max(0, (call.finished?.attempt ?? call.attempt) - 1 - turns);
}

/**
 * What became of a call: "answered", "failed", "stopped" by a fact, "late" (its stage closed before it answered),
 * "unanswered" (nothing came before the stage or the deliberation ended), or "open".
 */
export function fateOf(call, council) {
  const { finished } = call;
  if (finished?.problem) return finished.problem.code === "call_cancelled" ? "stopped" : "failed";
  const stage = council.stages.find((opened) => opened.stage === call.stage);
  if (stage.closedAt === null) return finished ? "answered" : council.endedAt === null ? "open" : "unanswered";
  if (stage.seen.includes(call.call_id)) return "answered";
  return finished ? "late" : "unanswered";
}

/** Whether the starts of calls have expired: then waits and earlier attempts are unknown. */
export const expired = (council) => [...council.calls.values()].some(({ finished, attempts }) => finished && asked(finished) && attempts.length === 0);

/** Whether an outcome came from a request to an engine. */
export const asked = (finished) => finished.usage.calls > 0 || finished.text !== null;

/** The object that a call's text is, or null: only answers are plain text. */
export function parsed(text) {
  try {
    const read = JSON.parse(text);
    return read !== null && typeof read === "object" ? read : null;
  } catch {
    return null;
  }
}

const AGENT = ([letter, shown]) => {
  const [agent, version = "0"] = shown.split("#");
  return { letter, agent, version: Number(version) };
};

/** The candidates that a call was shown: the letter that it saw, the agent, and the version of its text. */
export const shownTo = (call) => Object.entries(call.labels).map(AGENT);

/**
 * The ballots of a scoring stage: for each judge the weighted mean and the scores of each candidate that it was shown.
 * `weights` are those of the rubric.
 */
export function ballots(council, stage, weights) {
  const cast = [];
  for (const call of council.inStage(stage)) {
    const scores = call.output === "score" && fateOf(call, council) === "answered" ? parsed(call.finished.text) : null;
    if (scores === null) continue;
    const candidates = shownTo(call).flatMap(({ letter, agent, version }) => {
      const criteria = scores[letter]?.criteria;
      if (!Array.isArray(criteria)) return [];
      const weight = criteria.reduce((sum, { id }) => sum + (weights[id] ?? 1), 0);
      const mean = criteria.reduce((sum, { id, score }) => sum + score * (weights[id] ?? 1), 0) / weight;
      return [{ letter, agent, version, criteria, mean }];
    });
    cast.push({ judge: call.agent_id, candidates });
  }
  return cast;
}
