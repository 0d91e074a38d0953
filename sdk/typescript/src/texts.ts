/** What each call has said so far, rebuilt from pieces that may come twice, or from an attempt that was given up. */

import { TERMINAL_TYPES } from "./events.js";

/** The text of a call's newest attempt. Its first character is the attempt's character number `begin`. */
export interface CallText {
  readonly call_id: string;
  readonly agent_id: string;
  readonly attempt: number;
  readonly text: string;
  /** 0 unless pieces were lost: those older than their retention cannot be replayed. */
  readonly begin: number;
  readonly finished: boolean;
}

type Writable = { -readonly [Key in keyof CallText]: CallText[Key] } & { characters: number };

/** Characters as the gateway counts them: code points, where a JavaScript string counts UTF-16 units. */
function length(text: string): number {
  let characters = 0;
  for (const _ of text) characters += 1;
  return characters;
}

function place(known: Writable, offset: number, piece: string): void {
  const at = offset - known.begin;
  if (at === known.characters) {
    known.text += piece;
    known.characters += length(piece);
    return;
  }
  if (at < 0 || at > known.characters) {
    // After a hole the text begins anew.
    known.begin = offset;
    known.text = piece;
  } else {
    const characters = [...known.text];
    if (characters.slice(at, at + length(piece)).join("") === piece) return;
    // The attempt was begun again: what followed here is no longer true.
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
   * Take what an event says about texts. The recorded text of `call.finished` stands whatever was streamed; of a call
   * that failed, what it had said stays. A snapshot replaces every text that was unfinished, and when the log has become
   * another one all of them.
   */
  apply(event: { readonly type: string }): void {
    const told = event as { readonly type: string } & Record<string, unknown>;
    switch (told.type) {
      case "call.started":
        this.#attempt(told);
        break;
      case "call.delta": {
        const text = this.#attempt(told);
        if (text.attempt === told["attempt"] && !text.finished) place(text, Number(told["offset"]), String(told["text"]));
        break;
      }
      case "call.finished": {
        const text = this.#attempt(told);
        if (typeof told["text"] === "string") {
          text.text = told["text"];
          text.begin = 0;
          text.characters = length(text.text);
        }
        text.finished = true;
        break;
      }
      case "stream.gap":
        if (told["reason"] === "epoch") this.#texts.clear();
        break;
      case "deliberation.snapshot":
        this.#restart(told["unfinished"] as readonly Record<string, unknown>[]);
        break;
    }
  }

  /** Leave only the texts of calls that have finished. */
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

  /** The text of this attempt, or of a newer one that is known; a finished call has no newer attempts. */
  #attempt(told: Record<string, unknown>): Writable {
    const call_id = String(told["call_id"]);
    const attempt = Number(told["attempt"]);
    let known = this.#texts.get(call_id);
    if (known === undefined || (known.attempt < attempt && !known.finished)) {
      known = { call_id, agent_id: String(told["agent_id"]), attempt, text: "", begin: 0, finished: false, characters: 0 };
      this.#texts.set(call_id, known);
    }
    return known;
  }
}

/**
 * Deliberation id → its texts. `apply` takes every event of a stream of several, in order.
 *
 * Those of a deliberation that was deleted are forgotten; where the stream is of `all`, also those of one that has ended,
 * when the next event comes: such a stream has no end, and what it holds must have one.
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

  /** Take what an event says about texts: see `Texts.apply`. The list of a tenant's newest tells of no text. */
  apply(event: { readonly type: string }): void {
    if (this.#ended !== null) this.#texts.delete(this.#ended);
    this.#ended = null;
    const told = event as { readonly type: string } & Record<string, unknown>;
    const id = String(told["deliberation_id"]);
    switch (told.type) {
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
        if (told["reason"] === "epoch") this.#texts.clear();
        break;
      case "deliberations.snapshot":
        for (const texts of this.#texts.values()) texts.forgetUnfinished();
        break;
      case "deliberation.deleted":
        this.#texts.delete(id);
        break;
      default:
        if (this.all && TERMINAL_TYPES.has(told.type)) this.#ended = id;
    }
  }
}
