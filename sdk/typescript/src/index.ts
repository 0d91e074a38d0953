/** The gateway's routes as functions, and streams of events over any number of connections, without gaps or duplicates. */

// build.py puts the generated functions and types there.
export * from "./client/index.js";
export { createClient, createConfig } from "./client/client/index.js";

export { EventStream, MultiplexedStream, StreamLost, StreamRefused } from "./stream.js";
export type { MultiplexedOptions, StreamOptions } from "./stream.js";
export type { AnyEvent } from "./events.js";
export type { Retry, Waits } from "./follower.js";
export { type CallText, Texts, TextsOfSeveral } from "./texts.js";
export { type Frame, SseDecoder } from "./sse.js";
