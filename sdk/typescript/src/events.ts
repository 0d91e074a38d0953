/** What the helper itself reads of events; a generated type says the rest. */

/** Any event. `EventStream<E>` gives out a narrower type, for example one that openapi-typescript has generated. */
export interface AnyEvent {
  readonly type: string;
}

/** The types that end a stream. */
export const TERMINAL_TYPES: ReadonlySet<string> = new Set([
  "deliberation.completed",
  "deliberation.failed",
  "deliberation.cancelled",
  "deliberation.timeout",
]);

/** The object that data holds; null where it holds none. */
export function parsed(data: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(data);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}
