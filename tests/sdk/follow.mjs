// Follows one scripted stream with the TypeScript helper and prints what came of it.
//
//     node follow.mjs MODULE URL frames|events OPTIONS

import { pathToFileURL } from "node:url";

const [module, url, mode, options] = process.argv.slice(2);
const { EventStream, StreamRefused } = await import(pathToFileURL(module).href);
const waits = { firstMs: 1, idleMs: 5_000, patienceMs: 5_000 };
const retries = [];
const stream = new EventStream(url, "d-1", { ...JSON.parse(options), waits, onRetry: (retry) => retries.push(retry) });
const shown = [];
let refused = null;
try {
  if (mode === "frames") for await (const frame of stream.frames()) shown.push([frame.id, frame.event]);
  else for await (const event of stream) shown.push(event.type);
} catch (error) {
  if (!(error instanceof StreamRefused)) throw error;
  refused = { status: error.status, code: error.problem?.code ?? null };
}
const texts = Object.fromEntries(
  [...stream.texts].map(([id, { attempt, text, begin, finished }]) => [id, { attempt, text, begin, finished }]),
);
const { cursor, duplicates } = stream;
console.log(JSON.stringify({ shown, refused, texts, cursor, duplicates, attempts: retries.map((retry) => retry.attempt) }));
