/** Streams the events of deliberations over any number of connections, without gaps or duplicates. */

export { EventStream, MultiplexedStream, StreamLost, StreamRefused } from "./stream.js";
export type { MultiplexedOptions, Problem, StreamOptions } from "./stream.js";
export type { AnyEvent } from "./events.js";
export type { Retry, Waits } from "./follower.js";
export { type CallText, Texts, TextsOfSeveral } from "./texts.js";
export { type Frame, SseDecoder } from "./sse.js";
