/** Rebuilds the text of each call from deltas, which may repeat or belong to an abandoned attempt. */

import { TERMINAL_TYPES } from "./events.js";

/** The text of a call's newest attempt, from its character number `begin` on. */
export interface CallText {
  readonly call_id: string;
  readonly agent_id: string;
  readonly attempt: number;
  readonly text: string;
  /** 0 unless pieces were lost: expired ones cannot be replayed. */
  readonly begin: number;
  readonly finished: boolean;
}

type Writable = { -readonly [Key in keyof CallText]: CallText[Key] } & { characters: number };

/** The number of code points, which the gateway counts; a JavaScript string counts UTF-16 units. */
function length(text: string): number {
  let characters = 0;
  for (const _ of text) characters += 1;
  return characters;
}

/** Whether a gap of this reason leads to other events under the same sequences. */
function isOfOtherEvents(reason: unknown): boolean {
  return reason === "epoch" || reason === "beyond_end";
}

function place(known: Writable, offset: number, piece: string): void {
  const at = offset - known.begin;
  if (at === known.characters) {
    known.text += piece;
    known.characters += length(piece);
    return;
  }
  if (at < 0 || at > known.characters) {
    // After a gap the text starts again.
    known.begin = offset;
    known.text = piece;
  } else {
    const characters = [...known.text];
    if (characters.slice(at, at + length(piece)).join("") === piece) return;
    // The attempt restarted here and invalidated the rest.
    known.text = characters.slice(0, at).join("") + piece;
  }
  known.characters = length(known.text);
}

/** Call id → its text. `apply` takes every event of a stream, in order. */
export class Texts implements Iterable<readonly [string, CallText]> {
  readonly #texts = new Map<string, Writable>();

  get(callId: string): CallText | undefined {
    return this.#texts.get(callId);
  }

  [Symbol.iterator](): Iterator<readonly [string, CallText]> {
    return this.#texts.entries();
  }

  /**
   * Updates the texts with an event. The recorded text of `call.finished` replaces the streamed one; a failed call
   * keeps its streamed text. A snapshot replaces all unfinished texts, and a change of the log removes all texts.
   */
  apply(event: { readonly type: string }): void {
    const fields = event as { readonly type: string } & Record<string, unknown>;
    switch (fields.type) {
      case "call.started":
        this.#attempt(fields);
        break;
      case "call.delta": {
        const text = this.#attempt(fields);
        if (text.attempt !== fields["attempt"] || text.finished) break;
        place(text, Number(fields["offset"]), String(fields["text"]));
        break;
      }
      case "call.finished": {
        const text = this.#attempt(fields);
        if (typeof fields["text"] === "string") {
          text.text = fields["text"];
          text.begin = 0;
          text.characters = length(text.text);
        }
        text.finished = true;
        break;
      }
      case "stream.gap":
        if (isOfOtherEvents(fields["reason"])) this.#texts.clear();
        break;
      case "deliberation.snapshot":
        this.#restart(fields["unfinished"] as readonly Record<string, unknown>[]);
        break;
    }
  }

  /** Keeps only the texts of finished calls. */
  forgetUnfinished(): void {
    for (const [callId, text] of this.#texts) if (!text.finished) this.#texts.delete(callId);
  }

  #restart(unfinished: readonly Record<string, unknown>[]): void {
    this.forgetUnfinished();
    for (const call of unfinished) {
      const text = String(call["text"]);
      const characters = length(text);
      this.#texts.set(String(call["call_id"]), {
        call_id: String(call["call_id"]),
        agent_id: String(call["agent_id"]),
        attempt: Number(call["attempt"]),
        text,
        begin: Number(call["offset"]) - characters,
        finished: false,
        characters,
      });
    }
  }

  /** The text of this attempt or of a newer known one; a finished call has no newer attempts. */
  #attempt(fields: Record<string, unknown>): Writable {
    const call_id = String(fields["call_id"]);
    const attempt = Number(fields["attempt"]);
    let known = this.#texts.get(call_id);
    if (known === undefined || (known.attempt < attempt && !known.finished)) {
      const agent_id = String(fields["agent_id"]);
      known = { call_id, agent_id, attempt, text: "", begin: 0, finished: false, characters: 0 };
      this.#texts.set(call_id, known);
    }
    return known;
  }
}

/**
 * Deliberation id → its texts. `apply` takes every event of a multiplexed stream, in order.
 *
 * The texts of a deleted deliberation are removed. A stream of `all` deliberations never ends, so there the next event
 * also removes the texts of a deliberation that has ended.
 */
export class TextsOfSeveral implements Iterable<readonly [string, Texts]> {
  readonly #texts = new Map<string, Texts>();
  #ended: string | null = null;

  constructor(readonly all: boolean) {}

  get(deliberationId: string): Texts | undefined {
    return this.#texts.get(deliberationId);
  }

  [Symbol.iterator](): Iterator<readonly [string, Texts]> {
    return this.#texts.entries();
  }

  /** Updates the texts with an event: see `Texts.apply`. */
  apply(event: { readonly type: string }): void {
    if (this.#ended !== null) this.#texts.delete(this.#ended);
    this.#ended = null;
    const fields = event as { readonly type: string } & Record<string, unknown>;
    const id = String(fields["deliberation_id"]);
    switch (fields.type) {
      case "call.started":
      case "call.delta":
      case "call.finished":
      case "deliberation.snapshot": {
        const texts = this.#texts.get(id) ?? new Texts();
        this.#texts.set(id, texts);
        texts.apply(event);
        break;
      }
      case "stream.gap":
        if (isOfOtherEvents(fields["reason"])) this.#texts.clear();
        break;
      case "deliberations.snapshot":
        for (const texts of this.#texts.values()) texts.forgetUnfinished();
        break;
      case "deliberation.deleted":
        this.#texts.delete(id);
        break;
      default:
        if (this.all && TERMINAL_TYPES.has(fields.type)) this.#ended = id;
    }
  }
}
