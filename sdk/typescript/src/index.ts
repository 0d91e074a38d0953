/** The events of a deliberation, over any number of connections, without gap or duplicate. */

export { EventStream, StreamLost, StreamRefused } from "./stream.js";
export type { Problem, StreamOptions } from "./stream.js";
export type { AnyEvent } from "./events.js";
export type { Retry, Waits } from "./follower.js";
export { type CallText, Texts } from "./texts.js";
export { type Frame, SseDecoder } from "./sse.js";
