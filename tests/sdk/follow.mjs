// Follows one scripted stream with the TypeScript helper and prints the results.
//
//     node follow.mjs MODULE URL frames|events OPTIONS

import { pathToFileURL } from "node:url";

const [module, url, mode, options] = process.argv.slice(2);
const { EventStream, MultiplexedStream, StreamRefused } = await import(pathToFileURL(module).href);
const waits = { firstMs: 1, idleMs: 5_000, timeoutMs: 5_000 };
const retries = [];
const { of, ...filters } = JSON.parse(options);
const given = { ...filters, waits, onRetry: (retry) => retries.push(retry) };
const stream = of ? new MultiplexedStream(url, { ...given, deliberations: of }) : new EventStream(url, "d-1", given);
const shown = [];
let refused = null;
try {
  if (mode === "frames") for await (const frame of stream.frames()) shown.push([frame.id, frame.event]);
  else for await (const event of stream) shown.push(event.type);
} catch (error) {
  if (!(error instanceof StreamRefused)) throw error;
  refused = { status: error.status, code: error.problem?.code ?? null };
}
const described = (texts) =>
  Object.fromEntries(
    [...texts].map(([id, { attempt, text, begin, finished }]) => [id, { attempt, text, begin, finished }]),
  );
const texts = of ? Object.fromEntries([...stream.texts].map(([id, each]) => [id, described(each)])) : described(stream.texts);
const { cursor, duplicates } = stream;
console.log(JSON.stringify({ shown, refused, texts, cursor, duplicates, attempts: retries.map((retry) => retry.attempt) }));
