/** The position of a viewer in a stream, over any number of connections. Pure: no clock, no network. */

import { parsed, TERMINAL_TYPES } from "./events.js";
import type { Frame } from "./sse.js";

const HEARTBEATS_MISSED = 3;

/** Waiting times in milliseconds. */
export interface Waits {
  /** Before the first reconnect, unless the gateway sets `retry:`; it doubles with every failure. */
  readonly firstMs: number;
  /** The bound of that delay. */
  readonly mostMs: number;
  /** The bound on a connection's silence until the gateway states its heartbeat; then it is three heartbeats. */
  readonly idleMs: number;
  /** The bound on the silence over all attempts. */
  readonly timeoutMs: number;
}

export const WAITS: Waits = { firstMs: 1_000, mostMs: 30_000, idleMs: 30_000, timeoutMs: 120_000 };

/** The stream broke for `reason`; reconnect number `attempt` (from 1) follows in `delayMs`. */
export interface Retry {
  readonly attempt: number;
  readonly delayMs: number;
  readonly reason: string;
}

/**
 * Decides which frames are new, at which cursor the next connection resumes, and how long to wait for it. `of` names
 * the deliberations of a multiplexed stream, which has `ended` with the last of them; with an empty `of` it never ends.
 * Null is a stream of one deliberation.
 */
export class Follower {
  /** The id of the last event, null before the first. */
  cursor: string | null = null;
  ended = false;
  duplicates = 0;
  idleMs: number;
  readonly #waits: Waits;
  #retryMs: number;
  #position: readonly [epoch: string, sequence: bigint] | null = null;

  readonly #unended: Set<unknown> | null;

  constructor(waits: Waits, of: readonly string[] | null = null) {
    this.#unended = of === null ? null : new Set(of);
    this.#waits = waits;
    this.#retryMs = waits.firstMs;
    this.idleMs = waits.idleMs;
  }

  /** Whether a frame has new data. Updates the cursor, delays, heartbeat, and whether the stream has ended. */
  take(frame: Frame): boolean {
    if (frame.retryMs !== null) this.#retryMs = frame.retryMs;
    if (frame.id !== null && !this.#advance(frame.id)) {
      this.duplicates += 1;
      return false;
    }
    if (frame.event === "stream.opened") {
      const heartbeatS = parsed(frame.data)?.["heartbeat_s"];
      if (typeof heartbeatS === "number" && heartbeatS > 0) this.idleMs = HEARTBEATS_MISSED * 1_000 * heartbeatS;
    } else if (frame.event === "stream.gap") {
      // Another log may repeat sequence numbers, so later frames are not duplicates.
      this.#position = null;
    } else if (TERMINAL_TYPES.has(frame.event)) {
      this.ended = this.#unended === null || this.#isLast(this.#unended, frame);
    }
    return frame.data !== "";
  }

  /** Whether this is the end of the last named deliberation. */
  #isLast(unended: Set<unknown>, frame: Frame): boolean {
    return unended.delete(parsed(frame.data)?.["deliberation_id"]) && unended.size === 0;
  }

  /** Whether an id is new. Sequences increase within one epoch, the part before the last dash. */
  #advance(id: string): boolean {
    const found = /^(.+)-([0-9]{1,19})$/.exec(id);
    const position = found === null ? null : ([found[1] ?? "", BigInt(found[2] ?? "0")] as const);
    const last = this.#position;
    if (position !== null && last !== null && position[0] === last[0] && position[1] <= last[1]) return false;
    this.cursor = id;
    this.#position = position;
    return true;
  }

  /**
   * Milliseconds before reconnect number `attempt` (from 1) since the last data, at least the delay that the gateway
   * set. `chance` in [0, 1) adds up to half of it as jitter, so that viewers do not reconnect at once.
   */
  delayMs(attempt: number, retryAfterMs: number, chance: number): number {
    const grown = Math.min(this.#retryMs * 2 ** Math.min(attempt - 1, 16), Math.max(this.#waits.mostMs, this.#retryMs));
    return Math.max(grown, retryAfterMs) * (1 + chance / 2);
  }
}
