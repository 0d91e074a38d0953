/** The event fields that this library reads; generated types describe the rest. */

/** Any event. `EventStream<E>` yields a narrower type, for example one that openapi-typescript generates. */
export interface AnyEvent {
  readonly type: string;
}

/** The event types that end a stream. */
export const TERMINAL_TYPES: ReadonlySet<string> = new Set([
  "deliberation.completed",
  "deliberation.failed",
  "deliberation.cancelled",
  "deliberation.timeout",
]);

/** The JSON object in `data`; null without one. */
export function parsed(data: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(data);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}
