/**
 * Uses the types that openapi-typescript generates, with openapi-fetch for requests and the streaming library for events:
 * create, watch until the end, list, read events, cancel, and handle typed errors.
 *
 *     node roundtrip.js URL KEY    # prints the results as JSON
 */

import { EventStream } from "deliberation-stream";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Schemas = components["schemas"];
type Deliberation = Schemas["Deliberation"];
type DeliberationEvent = Schemas["DeliberationEvent"];
type DeliberationRequest = Schemas["DeliberationRequest"];

const MARK = "openapi-typescript";
const [url, key] = process.argv.slice(2);
if (url === undefined || key === undefined) throw new Error("URL and KEY are needed");
const headers = { Authorization: `Bearer ${key}` };
const client = createClient<paths>({ baseUrl: url, headers: { ...headers, Accept: "application/json" } });

function request(strategy: DeliberationRequest["strategy"]): DeliberationRequest {
  return { task: "Merge two sorted lists.", num_agents: 2, strategy, seed: 7, metadata: { sdk: MARK } };
}

async function created(body: DeliberationRequest, idempotencyKey?: string): Promise<Deliberation> {
  const header = idempotencyKey === undefined ? {} : { "Idempotency-Key": idempotencyKey };
  const { data, error } = await client.POST("/deliberations", { body, params: { header } });
  if (error !== undefined) throw new Error(error.detail);
  return data;
}

async function read(deliberation_id: string): Promise<Deliberation> {
  const { data, error } = await client.GET("/deliberations/{deliberation_id}", { params: { path: { deliberation_id } } });
  if (error !== undefined) throw new Error(error.detail);
  return data;
}

/** The winner in the terminal event, and whether every rebuilt text equals the recorded one. */
async function watched(deliberation_id: string): Promise<[winner: string | null, rebuilt: boolean]> {
  const streamed = new Map<string, string>();
  let [winner, rebuilt] = [null as string | null, true];
  const stream = new EventStream<DeliberationEvent>(url as string, deliberation_id, { after: "0", headers });
  for await (const event of stream) {
    switch (event.type) {
      case "call.delta":
        streamed.set(event.call_id, stream.texts.get(event.call_id)?.text ?? "");
        break;
      case "call.finished":
        rebuilt &&= event.text === null || streamed.get(event.call_id) === event.text;
        break;
      case "deliberation.completed":
        winner = event.verdict?.winner ?? null;
        break;
    }
  }
  return [winner, rebuilt];
}

async function eventsOf(deliberation_id: string): Promise<number> {
  let [after, count] = ["0", 0];
  for (;;) {
    const params = { path: { deliberation_id }, query: { after, deltas: false, limit: 5 } };
    const { data, error } = await client.GET("/deliberations/{deliberation_id}/events", { params });
    if (error !== undefined) throw new Error(error.detail);
    if (data === undefined || !("next" in data)) throw new Error("no page");
    count += data.items.length;
    if (data.ended) return count;
    after = data.next;
  }
}

function summary(error: Schemas["Problem"] | undefined): [number, string, string | null] {
  if (error === undefined) throw new Error("not refused");
  return [error.status, error.code, error.errors[0]?.pointer ?? null];
}

const first = await created(request("best_of_n"), `sdk-${MARK}`);
const again = await created(request("best_of_n"), `sdk-${MARK}`);
const [winner, rebuilt] = await watched(first.id);
const ended = await read(first.id);
const listed = await client.GET("/deliberations", {
  params: { query: { limit: 10, metadata: { "metadata.sdk": MARK } } },
  querySerializer: { object: { style: "form", explode: true } },
});
const doomed = await created(request("council"));
await client.POST("/deliberations/{deliberation_id}/cancel", {
  params: { path: { deliberation_id: doomed.id } },
  body: { reason: "changed my mind" },
});
await watched(doomed.id);
const stopped = await read(doomed.id);
const invalid = await client.POST("/deliberations", { body: { ...request("single"), role: "NOBODY" } });
const unknown = await client.GET("/deliberations/{deliberation_id}", {
  params: { path: { deliberation_id: "nothing-here" } },
});
console.log(
  JSON.stringify({
    id: first.id,
    again: again.id,
    status: ended.status,
    winner: ended.verdict?.winner ?? null,
    listed: (listed.data?.items ?? []).map((item) => item.id),
    events: await eventsOf(first.id),
    told_winner: winner,
    cancelled: stopped.status,
    reason: stopped.status_reason,
    refusals: [summary(invalid.error), summary(unknown.error)],
    rebuilt,
  }),
);
