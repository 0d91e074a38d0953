// What the TypeScript helper does that no scripted connection shows; HELPER names the folder of its built modules.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

const built = (name) => import(pathToFileURL(join(process.env.HELPER, name)).href);
const { EventStream, StreamLost, Texts } = await built("index.js");
const { Follower, WAITS } = await built("follower.js");

const ACCEPTED = { type: "deliberation.accepted", deliberation_id: "d-1" };
const ENDED = { type: "deliberation.failed", deliberation_id: "d-1" };

/** A stream of these events, which stays open; `left` is called when it is cancelled. */
function streamed(events, left = () => {}) {
  const text = events.map((event, at) => `id: e1-${at + 1}\nevent: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
  const body = new ReadableStream({
    start: (controller) => controller.enqueue(new TextEncoder().encode(text.join(""))),
    cancel: left,
  });
  return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
}

/** A fetch that returns these answers in turn, repeats the last one, and records its requests. */
function answering(...answers) {
  const asked = [];
  const fetch = async (url, init) => {
    asked.push({ url: String(url), headers: Object.fromEntries(init.headers) });
    init.signal.throwIfAborted();
    return answers[Math.min(asked.length, answers.length) - 1](init);
  };
  return { asked, fetch };
}

async function types(stream) {
  const seen = [];
  for await (const event of stream) seen.push(event.type);
  return seen;
}

for (const [retryMs, attempt, retryAfterMs, chance, delayMs] of [
  [null, 1, 0, 0, 1_000],
  [null, 3, 0, 0, 4_000],
  [null, 99, 0, 0, 30_000],
  [null, 1, 0, 0.5, 1_250],
  [200, 1, 0, 0, 200],
  [200, 4, 0, 0, 1_600],
  [200, 2, 7_000, 0, 7_000],
  [45_000, 1, 0, 0, 45_000],
  [45_000, 9, 0, 0, 45_000],
]) {
  test(`attempt ${attempt} after retry: ${retryMs} and Retry-After: ${retryAfterMs} waits ${delayMs} ms`, () => {
    const follower = new Follower(WAITS);
    assert.equal(follower.take({ event: "message", data: "", id: null, retryMs }), false);
    assert.equal(follower.delayMs(attempt, retryAfterMs, chance), delayMs);
  });
}

test("an error with Retry-After sets the delay, and a signal ends the wait", { timeout: 6_000 }, async () => {
  const stop = new AbortController();
  const { fetch } = answering(() => new Response(null, { status: 503, headers: { "Retry-After": "7" } }));
  const retries = [];
  const onRetry = (retry) => {
    retries.push(retry);
    stop.abort(new Error("enough"));
  };
  const waits = { firstMs: 1 };
  const stream = new EventStream("http://gateway", "d-1", { fetch, waits, onRetry, signal: stop.signal });
  await assert.rejects(types(stream), /enough/);
  assert.equal(retries.length, 1);
  assert.ok(retries[0].delayMs >= 7_000 && retries[0].delayMs <= 10_500);
  assert.equal(retries[0].reason, "the gateway answered 503");
});

for (const [failure, answer, status] of [
  ["answers", () => new Response(null, { status: 502 }), 502],
  ["is not there", () => Promise.reject(new TypeError("fetch failed")), null],
]) {
  test(`gives up on a gateway that ${failure}`, async () => {
    const { fetch } = answering(answer);
    const stream = new EventStream("http://gateway", "d-1", { fetch, waits: { firstMs: 1, timeoutMs: 5 } });
    await assert.rejects(types(stream), (error) => error instanceof StreamLost && error.status === status);
  });
}

test("a signal ends a silent stream", async () => {
  const stop = new AbortController();
  const { fetch } = answering(async (init) => {
    const response = streamed([ACCEPTED]);
    const reader = response.body.getReader();
    const body = new ReadableStream({
      start: (controller) => init.signal.addEventListener("abort", () => controller.error(init.signal.reason)),
      pull: async (controller) => controller.enqueue((await reader.read()).value),
    });
    return new Response(body, response);
  });
  const seen = [];
  await assert.rejects(async () => {
    for await (const event of new EventStream("http://gateway", "d-1", { fetch, signal: stop.signal })) {
      seen.push(event.type);
      setTimeout(() => stop.abort(new Error("enough")), 1);
    }
  }, /enough/);
  assert.deepEqual(seen, ["deliberation.accepted"]);
});

test("leaving the loop closes the connection", async () => {
  let aborted = false;
  const { asked, fetch } = answering((init) => {
    init.signal.addEventListener("abort", () => (aborted = true));
    return streamed([ACCEPTED, ENDED]);
  });
  for await (const _ of new EventStream("http://gateway", "d-1", { fetch })) break;
  assert.ok(aborted);
  assert.equal(asked.length, 1);
});

test("reads credentials for every connection, and repeats the filters", async () => {
  const { asked, fetch } = answering(() => new Response(null, { status: 500 }), () => streamed([ACCEPTED, ENDED]));
  let asks = 0;
  const headers = async () => ({ Authorization: `Bearer ${(asks += 1)}` });
  const filters = { types: ["deliberation.accepted", "deliberation.failed"], deltas: false };
  const stream = new EventStream("http://gateway/", "d-1", { fetch, headers, ...filters, waits: { firstMs: 1 } });
  assert.deepEqual(await types(stream), ["deliberation.accepted", "deliberation.failed"]);
  assert.deepEqual(asked.map((each) => each.headers.authorization), ["Bearer 1", "Bearer 2"]);
  const url = "http://gateway/deliberations/d-1/events?deltas=false&types=deliberation.accepted%2Cdeliberation.failed";
  assert.deepEqual(asked.map((each) => each.url), [url, url]);
  assert.equal(stream.cursor, "e1-2");
});

// STORIES names a file with the events of councils in every way that they can end, and the texts that follow.
for (const [name, { events, texts }] of Object.entries(JSON.parse(readFileSync(process.env.STORIES, "utf8")))) {
  test(`the texts of ${name}`, () => {
    const rebuilt = new Texts();
    for (const event of [...events, ...events]) rebuilt.apply(event);
    assert.deepEqual(Object.fromEntries([...rebuilt].map(([callId, { text }]) => [callId, text])), texts);
  });
}
