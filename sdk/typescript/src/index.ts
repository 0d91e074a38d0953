/** The events of one deliberation or of several, over any number of connections, without gap or duplicate. */

export { EventStream, MultiplexedStream, StreamLost, StreamRefused } from "./stream.js";
export type { MultiplexedOptions, Problem, StreamOptions } from "./stream.js";
export type { AnyEvent } from "./events.js";
export type { Retry, Waits } from "./follower.js";
export { type CallText, Texts, TextsOfSeveral } from "./texts.js";
export { type Frame, SseDecoder } from "./sse.js";
