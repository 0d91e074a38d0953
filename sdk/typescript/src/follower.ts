/** Where a viewer of a stream stands, over any number of connections. Pure: no clock, no network. */

import { parsed, TERMINAL_TYPES } from "./events.js";
import type { Frame } from "./sse.js";

const HEARTBEATS_MISSED = 3;

/** How long is waited, in milliseconds. */
export interface Waits {
  /** Before the first reconnect, until the gateway says otherwise by `retry:`; it doubles with every failure. */
  readonly firstMs: number;
  /** What it doubles up to. */
  readonly mostMs: number;
  /** How long a connection may be silent, until the gateway has told its heartbeat; then it is three of those. */
  readonly idleMs: number;
  /** How long nothing at all may come, over all attempts. */
  readonly patienceMs: number;
}

export const WAITS: Waits = { firstMs: 1_000, mostMs: 30_000, idleMs: 30_000, patienceMs: 120_000 };

/** The stream broke: `attempt` (from 1) follows in `delayMs`, because of `reason`. */
export interface Retry {
  readonly attempt: number;
  readonly delayMs: number;
  readonly reason: string;
}

/**
 * Decides what of a stream is shown, where the next connection goes on, and how long to wait for it. A stream `of` several
 * deliberations has `ended` with the last of them, one of all (none is named) never; null is a stream of one.
 */
export class Follower {
  /** The id of the last event that was shown or passed over, null before there is one. */
  cursor: string | null = null;
  ended = false;
  duplicates = 0;
  idleMs: number;
  readonly #waits: Waits;
  #retryMs: number;
  #shown: readonly [epoch: string, sequence: bigint] | null = null;

  readonly #unended: Set<unknown> | null;

  constructor(waits: Waits, of: readonly string[] | null = null) {
    this.#unended = of === null ? null : new Set(of);
    this.#waits = waits;
    this.#retryMs = waits.firstMs;
    this.idleMs = waits.idleMs;
  }

  /** Whether a frame is to be shown. Moves the cursor; heeds `retry:`, the heartbeat, gaps and the end. */
  take(frame: Frame): boolean {
    if (frame.retryMs !== null) this.#retryMs = frame.retryMs;
    if (frame.id !== null && !this.#advanced(frame.id)) {
      this.duplicates += 1;
      return false;
    }
    if (frame.event === "stream.opened") {
      const heartbeatS = parsed(frame.data)?.["heartbeat_s"];
      if (typeof heartbeatS === "number" && heartbeatS > 0) this.idleMs = HEARTBEATS_MISSED * 1_000 * heartbeatS;
    } else if (frame.event === "stream.gap") {
      // Another log may give the same numbers out again: nothing that follows is a duplicate.
      this.#shown = null;
    } else if (TERMINAL_TYPES.has(frame.event)) {
      this.ended = this.#unended === null || this.#isLast(this.#unended, frame);
    }
    return frame.data !== "";
  }

  /** Whether this end is that of the last of the deliberations that are named, and have not ended. */
  #isLast(unended: Set<unknown>, frame: Frame): boolean {
    return unended.delete(parsed(frame.data)?.["deliberation_id"]) && unended.size === 0;
  }

  /** Whether an id is new; sequences only grow within one epoch, the part before the last dash. */
  #advanced(id: string): boolean {
    const found = /^(.+)-([0-9]{1,19})$/.exec(id);
    const place = found === null ? null : ([found[1] ?? "", BigInt(found[2] ?? "0")] as const);
    const shown = this.#shown;
    if (place !== null && shown !== null && place[0] === shown[0] && place[1] <= shown[1]) return false;
    this.cursor = id;
    this.#shown = place;
    return true;
  }

  /**
   * Milliseconds before reconnect number `attempt` (from 1) since the last sign of life: at least what the gateway asked
   * for. `chance` in [0, 1) adds up to half of it, so that viewers do not come back all at once.
   */
  delayMs(attempt: number, retryAfterMs: number, chance: number): number {
    const grown = Math.min(this.#retryMs * 2 ** Math.min(attempt - 1, 16), Math.max(this.#waits.mostMs, this.#retryMs));
    return Math.max(grown, retryAfterMs) * (1 + chance / 2);
  }
}
