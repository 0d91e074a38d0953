/** Streams the events of one or several deliberations over HTTP; reconnects by cursor until the end. */

import { type AnyEvent, parsed } from "./events.js";
import { Follower, type Retry, type Waits, WAITS } from "./follower.js";
import { type Frame, SseDecoder } from "./sse.js";
import { Texts, TextsOfSeveral } from "./texts.js";

const MEDIA = "text/event-stream";
/** Statuses to retry beside 5xx. */
const RETRIED: ReadonlySet<number> = new Set([408, 425, 429]);

/** A problem document (RFC 9457). */
export interface Problem {
  readonly code: string;
  readonly title: string;
  readonly detail: string;
  readonly status: number;
  readonly request_id: string;
}

export interface StreamOptions {
  /** Cursor to resume after; "0" is the beginning, and without one the stream starts with a snapshot. */
  readonly after?: string | undefined;
  /** Whether to stream `call.delta` events; by default only for a single deliberation. */
  readonly deltas?: boolean | undefined;
  /** Only logged events of these types. */
  readonly types?: readonly string[] | undefined;
  /** Headers of every connection, for example `Authorization`; a function is called for each connection. */
  readonly headers?: Record<string, string> | (() => Record<string, string> | Promise<Record<string, string>>) | undefined;
  /** `include` to send a session cookie to another origin. */
  readonly credentials?: RequestCredentials | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly waits?: Partial<Waits> | undefined;
  readonly onRetry?: ((retry: Retry) => void) | undefined;
  readonly fetch?: typeof globalThis.fetch | undefined;
}

export interface MultiplexedOptions extends StreamOptions {
  /** The deliberations to follow; by default all of the tenant, including future ones. */
  readonly deliberations?: readonly string[] | undefined;
  /** Only events of deliberations with one of these statuses before or after the event. */
  readonly statuses?: readonly string[] | undefined;
}

/** A final refusal of the gateway. */
export class StreamRefused extends Error {
  override readonly name = "StreamRefused";

  constructor(
    readonly status: number,
    /** Null without a problem document. */
    readonly problem: Problem | null,
  ) {
    super(`${status}: ${problem?.detail ?? "no problem document"}`);
  }
}

/** No data came within the timeout; `status` is the last refusal's, null without a response. */
export class StreamLost extends Error {
  override readonly name = "StreamLost";

  constructor(
    reason: string,
    readonly status: number | null,
  ) {
    super(reason);
  }
}

/** A connection broke before the stream's end. */
class Broken extends Error {
  constructor(
    reason: string,
    readonly status: number | null = null,
    readonly retryAfterMs = 0,
  ) {
    super(reason);
  }
}

/** The events after a cursor, over any number of connections; `R` rebuilds the texts from them. */
abstract class FollowedStream<E extends AnyEvent, R extends { apply(event: AnyEvent): void }> implements AsyncIterable<E> {
  readonly #url: string;
  readonly #options: StreamOptions;
  readonly #waits: Waits;
  readonly #follower: Follower;

  /** `of` names several deliberations, or all if it is empty; null is one. Every connection sends `filters`. */
  constructor(
    url: string,
    path: string,
    options: StreamOptions,
    of: readonly string[] | null,
    private readonly filters: readonly (readonly [name: string, value: string])[],
    /** Rebuilt from the yielded events. */
    readonly texts: R,
  ) {
    this.#url = `${url.replace(/\/+$/, "")}${path}`;
    this.#options = options;
    this.#waits = { ...WAITS, ...options.waits };
    this.#follower = new Follower(this.#waits, of);
  }

  /** The id of the last yielded event, at which another stream can resume. */
  get cursor(): string | null {
    return this.#follower.cursor ?? this.#options.after ?? null;
  }

  /** Number of repeated events that were dropped. */
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

  /** The same events as unparsed frames; does not update `texts`. */
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
          aliveAt = performance.now(); // the consumer's time does not count as silence
        }
        if (follower.ended) return;
      } catch (error) {
        if (!(error instanceof Broken)) throw error;
        broken = error;
      }
      attempt += 1;
      if (performance.now() - aliveAt >= this.#waits.timeoutMs) throw new StreamLost(broken.message, broken.status);
      const delayMs = follower.delayMs(attempt, broken.retryAfterMs, Math.random());
      this.#options.onRetry?.({ attempt, delayMs, reason: broken.message });
      await this.#sleep(delayMs);
    }
  }

  /** The frames of one connection; null for other data. Throws Broken if a reconnect may help. */
  async *#connection(): AsyncGenerator<Frame | null, void, undefined> {
    const controller = new AbortController();
    const abort = (): void => controller.abort(this.#options.signal?.reason);
    this.#options.signal?.throwIfAborted();
    this.#options.signal?.addEventListener("abort", abort, { once: true });
    try {
      const response = await this.#withinIdle(this.#request(controller.signal), controller);
      const reader = await this.#reader(response, controller);
      if (reader !== null) yield* this.#decode(reader, controller);
    } finally {
      this.#options.signal?.removeEventListener("abort", abort);
      controller.abort();
    }
  }

  async #request(signal: AbortSignal): Promise<Response> {
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

  /** Awaits `next`; throws Broken after too long a silence. */
  async #withinIdle<T>(next: Promise<T>, controller: AbortController): Promise<T> {
    const idleMs = this.#follower.idleMs;
    let silent = false;
    const timer = setTimeout(() => {
      silent = true;
      controller.abort();
    }, idleMs);
    try {
      return await next;
    } catch (error) {
      if (silent) throw new Broken(`no data for ${idleMs} ms`);
      this.#options.signal?.throwIfAborted();
      throw error instanceof Broken ? error : new Broken(`the connection broke: ${String(error)}`);
    } finally {
      clearTimeout(timer);
    }
  }

  /** The reader of a response that is a stream; null when the stream has ended. */
  async #reader(
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
    const problem = parsed(await this.#withinIdle(response.text(), controller));
    const isProblem = problem !== null && "code" in problem;
    throw new StreamRefused(response.status, isProblem ? (problem as unknown as Problem) : null);
  }

  async *#decode(
    reader: ReadableStreamDefaultReader<Uint8Array>,
    controller: AbortController,
  ): AsyncGenerator<Frame | null, void, undefined> {
    const decoder = new SseDecoder();
    for (;;) {
      const { done, value } = await this.#withinIdle(reader.read(), controller);
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

  async #sleep(delayMs: number): Promise<void> {
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
 * The events of one deliberation, each once, in the order of the log, up to the terminal one.
 *
 * Events about the stream itself (`stream.*`) are included; a snapshot follows a `stream.gap`. Events of unknown types
 * are yielded unchanged. Nothing is read ahead: the gateway reports `slow_consumer` to a slow viewer, which reads the log
 * again. Leaving the loop closes the connection; the deliberation continues. Throws StreamRefused, StreamLost after the
 * timeout, and the reason of `signal`.
 */
export class EventStream<E extends AnyEvent = AnyEvent> extends FollowedStream<E, Texts> {
  /** `url` is the gateway's base URL. */
  constructor(url: string, deliberationId: string, options: StreamOptions = {}) {
    const path = `/deliberations/${encodeURIComponent(deliberationId)}/events`;
    super(url, path, options, null, options.deltas === false ? [["deltas", "false"]] : [], new Texts());
  }
}

/**
 * The events of several deliberations in one stream with one cursor; otherwise like `EventStream`.
 *
 * It ends with the last of `deliberations`, and never if none is named. `texts` are grouped by deliberation.
 */
export class MultiplexedStream<E extends AnyEvent = AnyEvent> extends FollowedStream<E, TextsOfSeveral> {
  /** `url` is the gateway's base URL. */
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
