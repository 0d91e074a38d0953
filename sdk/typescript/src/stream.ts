/** Events over HTTP, of one deliberation or of several, reconnected by cursor until there are no more. */

import { type AnyEvent, parsed } from "./events.js";
import { Follower, type Retry, type Waits, WAITS } from "./follower.js";
import { type Frame, SseDecoder } from "./sse.js";
import { Texts, TextsOfSeveral } from "./texts.js";

const MEDIA = "text/event-stream";
/** Beside 5xx: what may be answered otherwise a moment later. */
const RETRIED: ReadonlySet<number> = new Set([408, 425, 429]);

/** A problem document (RFC 9457), as far as it is read here. */
export interface Problem {
  readonly code: string;
  readonly title: string;
  readonly detail: string;
  readonly status: number;
  readonly request_id: string;
}

export interface StreamOptions {
  /** Cursor to go on after; "0" is the beginning, and without one the stream begins with a snapshot. */
  readonly after?: string | undefined;
  /** Whether `call.delta` events are wanted; by default in a stream of one deliberation. */
  readonly deltas?: boolean | undefined;
  /** Logged events of these types only. */
  readonly types?: readonly string[] | undefined;
  /** Sent with every connection, for example `Authorization`; asked for anew each time when it is a function. */
  readonly headers?: Record<string, string> | (() => Record<string, string> | Promise<Record<string, string>>) | undefined;
  /** `include` where a session's cookie belongs to another origin. */
  readonly credentials?: RequestCredentials | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly waits?: Partial<Waits> | undefined;
  readonly onRetry?: ((retry: Retry) => void) | undefined;
  readonly fetch?: typeof globalThis.fetch | undefined;
}

export interface MultiplexedOptions extends StreamOptions {
  /** These deliberations alone; without any, all of the tenant's, also those that are yet to come. */
  readonly deliberations?: readonly string[] | undefined;
  /** Statuses that a deliberation has before an event or after it. */
  readonly statuses?: readonly string[] | undefined;
}

/** The gateway answered, and a later attempt would be answered alike. */
export class StreamRefused extends Error {
  override readonly name = "StreamRefused";

  constructor(
    readonly status: number,
    /** Null when it told none. */
    readonly problem: Problem | null,
  ) {
    super(`${status}: ${problem?.detail ?? "no problem document"}`);
  }
}

/** Nothing was heard for as long as patience lasts; `status` is of the last refusal, null without an answer. */
export class StreamLost extends Error {
  override readonly name = "StreamLost";

  constructor(
    reason: string,
    readonly status: number | null,
  ) {
    super(reason);
  }
}

/** A connection ended before the stream did. */
class Broken extends Error {
  constructor(
    reason: string,
    readonly status: number | null = null,
    readonly retryAfterMs = 0,
  ) {
    super(reason);
  }
}

/** Events after a cursor, over any number of connections; `R` is what rebuilds the texts from them. */
abstract class FollowedStream<E extends AnyEvent, R extends { apply(event: AnyEvent): void }> implements AsyncIterable<E> {
  readonly #url: string;
  readonly #options: StreamOptions;
  readonly #waits: Waits;
  readonly #follower: Follower;

  /** `of` are several deliberations, or all if it is empty; null is one. `filters` are asked for with every connection. */
  constructor(
    url: string,
    path: string,
    options: StreamOptions,
    of: readonly string[] | null,
    private readonly filters: readonly (readonly [name: string, value: string])[],
    /** Rebuilt from what was given out. */
    readonly texts: R,
  ) {
    this.#url = `${url.replace(/\/+$/, "")}${path}`;
    this.#options = options;
    this.#waits = { ...WAITS, ...options.waits };
    this.#follower = new Follower(this.#waits, of);
  }

  /** The id of the last event that was given out: kept with what was made of the events, another stream goes on there. */
  get cursor(): string | null {
    return this.#follower.cursor ?? this.#options.after ?? null;
  }

  /** Events that came again and were left out. */
  get duplicates(): number {
    return this.#follower.duplicates;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<E, void, undefined> {
    for await (const frame of this.frames()) {
      const event = (parsed(frame.data) ?? { type: frame.event }) as unknown as E;
      this.texts.apply(event);
      yield event;
    }
  }

  /** The same events as they came, unread; without `texts`. */
  async *frames(): AsyncGenerator<Frame, void, undefined> {
    const follower = this.#follower;
    let attempt = 0;
    let aliveAt = performance.now();
    while (!follower.ended) {
      let broken = new Broken("the connection was closed");
      try {
        for await (const frame of this.#connection()) {
          if (frame !== null) yield frame;
          attempt = 0;
          aliveAt = performance.now(); // how long the frame's taker needed is not silence
        }
        if (follower.ended) return;
      } catch (error) {
        if (!(error instanceof Broken)) throw error;
        broken = error;
      }
      attempt += 1;
      if (performance.now() - aliveAt >= this.#waits.patienceMs) throw new StreamLost(broken.message, broken.status);
      const delayMs = follower.delayMs(attempt, broken.retryAfterMs, Math.random());
      this.#options.onRetry?.({ attempt, delayMs, reason: broken.message });
      await this.#slept(delayMs);
    }
  }

  /** What one connection shows; null is a sign of life. Throws Broken where another one may follow. */
  async *#connection(): AsyncGenerator<Frame | null, void, undefined> {
    const controller = new AbortController();
    const abort = (): void => controller.abort(this.#options.signal?.reason);
    this.#options.signal?.throwIfAborted();
    this.#options.signal?.addEventListener("abort", abort, { once: true });
    try {
      const response = await this.#heard(this.#asked(controller.signal), controller);
      const reader = await this.#opened(response, controller);
      if (reader !== null) yield* this.#read(reader, controller);
    } finally {
      this.#options.signal?.removeEventListener("abort", abort);
      controller.abort();
    }
  }

  async #asked(signal: AbortSignal): Promise<Response> {
    const { after, types, headers, credentials } = this.#options;
    const cursor = this.#follower.cursor;
    const query = new URLSearchParams();
    for (const [name, value] of this.filters) query.append(name, value);
    if (types !== undefined && types.length > 0) query.set("types", types.join(","));
    if (cursor === null && after !== undefined) query.set("after", after);
    const sent = new Headers(typeof headers === "function" ? await headers() : headers);
    sent.set("Accept", MEDIA);
    if (cursor !== null) sent.set("Last-Event-ID", cursor);
    const filters = query.toString();
    const url = filters === "" ? this.#url : `${this.#url}?${filters}`;
    const init: RequestInit = { headers: sent, signal, cache: "no-store" };
    if (credentials !== undefined) init.credentials = credentials;
    return (this.#options.fetch ?? globalThis.fetch)(url, init);
  }

  /** What comes next, unless nothing does for too long. */
  async #heard<T>(next: Promise<T>, controller: AbortController): Promise<T> {
    const idleMs = this.#follower.idleMs;
    let silent = false;
    const timer = setTimeout(() => {
      silent = true;
      controller.abort();
    }, idleMs);
    try {
      return await next;
    } catch (error) {
      if (silent) throw new Broken(`nothing was heard for ${idleMs} ms`);
      this.#options.signal?.throwIfAborted();
      throw error instanceof Broken ? error : new Broken(`the connection broke: ${String(error)}`);
    } finally {
      clearTimeout(timer);
    }
  }

  /** The reader of a response that is a stream; null when there is nothing left to stream. */
  async #opened(
    response: Response,
    controller: AbortController,
  ): Promise<ReadableStreamDefaultReader<Uint8Array> | null> {
    if (response.status === 204) {
      this.#follower.ended = true;
      return null;
    }
    const streams = response.headers.get("Content-Type")?.startsWith(MEDIA) ?? false;
    if (response.status === 200 && streams && response.body !== null) return response.body.getReader();
    if (response.status >= 500 || RETRIED.has(response.status)) {
      const given = response.headers.get("Retry-After") ?? "";
      const retryAfterMs = /^[0-9]{1,5}$/.test(given) ? 1_000 * Number(given) : 0;
      throw new Broken(`the gateway answered ${response.status}`, response.status, retryAfterMs);
    }
    const told = parsed(await this.#heard(response.text(), controller));
    throw new StreamRefused(response.status, told !== null && "code" in told ? (told as unknown as Problem) : null);
  }

  async *#read(
    reader: ReadableStreamDefaultReader<Uint8Array>,
    controller: AbortController,
  ): AsyncGenerator<Frame | null, void, undefined> {
    const decoder = new SseDecoder();
    for (;;) {
      const { done, value } = await this.#heard(reader.read(), controller);
      if (done) return;
      yield null;
      for (const frame of decoder.feed(value)) {
        if (this.#follower.take(frame)) yield frame;
        if (frame.event === "stream.reconnect") {
          throw new Broken(`the gateway asks to reconnect: ${String(parsed(frame.data)?.["reason"])}`);
        }
        if (this.#follower.ended) return;
      }
    }
  }

  async #slept(delayMs: number): Promise<void> {
    const signal = this.#options.signal;
    signal?.throwIfAborted();
    return new Promise((resolve, reject) => {
      const wake = (): void => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", wake);
        if (signal?.aborted === true) reject(signal.reason as Error);
        else resolve();
      };
      const timer = setTimeout(wake, delayMs);
      signal?.addEventListener("abort", wake, { once: true });
    });
  }
}

/**
 * The events of one deliberation, in the order of the log, each once, until the terminal one.
 *
 * What says something about the stream itself (`stream.*`) is among them; after a `stream.gap` a snapshot tells the
 * state. Events of types that are newer than this code are given out as they are. Nothing is read ahead: whoever is slow
 * is told so by the gateway, and reads the log again. Leaving the loop closes the connection, and never stops the
 * deliberation. Throws StreamRefused, StreamLost when patience is over, and the reason of `signal`.
 */
export class EventStream<E extends AnyEvent = AnyEvent> extends FollowedStream<E, Texts> {
  /** `url` is the gateway's. */
  constructor(url: string, deliberationId: string, options: StreamOptions = {}) {
    const path = `/deliberations/${encodeURIComponent(deliberationId)}/events`;
    super(url, path, options, null, options.deltas === false ? [["deltas", "false"]] : [], new Texts());
  }
}

/**
 * The events of several deliberations in one stream, over one cursor; otherwise as an `EventStream`.
 *
 * Ends with the last of `deliberations`; where none is named it never ends. `texts` are by deliberation.
 */
export class MultiplexedStream<E extends AnyEvent = AnyEvent> extends FollowedStream<E, TextsOfSeveral> {
  /** `url` is the gateway's. */
  constructor(url: string, options: MultiplexedOptions = {}) {
    const { deliberations = [], statuses = [], deltas = false } = options;
    const filters: [string, string][] = [
      ...deliberations.map((id): [string, string] => ["deliberation", id]),
      ...statuses.map((status): [string, string] => ["status", status]),
      ...(deltas ? [["deltas", "true"] as [string, string]] : []),
    ];
    super(url, "/events", options, deliberations, filters, new TextsOfSeveral(deliberations.length === 0));
  }
}
