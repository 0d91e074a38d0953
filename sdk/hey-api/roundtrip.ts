/**
 * Uses the client that @hey-api/openapi-ts generates: create, wait, list, read events, cancel, and handle typed errors.
 *
 *     node roundtrip.js URL KEY    # prints the results as JSON
 */

import { createClient, createConfig } from "./client/client/index.js";
import {
  cancelDeliberation,
  createDeliberation,
  type Deliberation,
  type DeliberationRequest,
  getDeliberation,
  listDeliberations,
  type Problem,
  readDeliberationEvents,
} from "./client/index.js";

const MARK = "hey-api";
const [url, key] = process.argv.slice(2);
if (url === undefined || key === undefined) throw new Error("URL and KEY are needed");
const client = createClient(createConfig({ baseUrl: url, auth: key, headers: { Accept: "application/json" } }));

function request(strategy: NonNullable<DeliberationRequest["strategy"]>): DeliberationRequest {
  return { task: "Merge two sorted lists.", num_agents: 2, strategy, seed: 7, metadata: { sdk: MARK } };
}

async function created(body: DeliberationRequest, idempotencyKey?: string): Promise<Deliberation> {
  const headers = idempotencyKey === undefined ? {} : { "Idempotency-Key": idempotencyKey };
  const { data, error } = await createDeliberation({ client, body, headers });
  if (data === undefined) throw new Error(error.detail);
  return data;
}

async function waited(deliberation_id: string): Promise<Deliberation> {
  for (;;) {
    const { data, error } = await getDeliberation({ client, path: { deliberation_id }, headers: { Prefer: "wait=30" } });
    if (data === undefined) throw new Error(error.detail);
    switch (data.status) {
      case "completed":
      case "failed":
      case "cancelled":
      case "timeout":
        return data;
    }
  }
}

async function eventsOf(deliberation_id: string): Promise<[count: number, winner: string | null]> {
  let [after, count, winner] = ["0", 0, null as string | null];
  for (;;) {
    const query = { after, deltas: false, limit: 5 };
    const { data, error } = await readDeliberationEvents({ client, path: { deliberation_id }, query });
    if (error !== undefined) throw new Error(error.detail);
    if (data === undefined || !("next" in data)) throw new Error("no page");
    count += data.items.length;
    for (const event of data.items) {
      if (event.type === "deliberation.completed") winner = event.verdict?.winner ?? null;
    }
    if (data.ended) return [count, winner];
    after = data.next;
  }
}

function summary(error: Problem | undefined): [number, string, string | null] {
  if (error === undefined) throw new Error("not refused");
  return [error.status, error.code, error.errors[0]?.pointer ?? null];
}

const first = await created(request("best_of_n"), `sdk-${MARK}`);
const again = await created(request("best_of_n"), `sdk-${MARK}`);
const ended = await waited(first.id);
const query = { metadata: { "metadata.sdk": MARK }, limit: 10 };
const listed = await listDeliberations({ client, query, throwOnError: true });
const [events, winnerOfEvents] = await eventsOf(first.id);
const doomed = await created(request("council"));
await cancelDeliberation({
  client,
  path: { deliberation_id: doomed.id },
  body: { reason: "changed my mind" },
  throwOnError: true,
});
const stopped = await waited(doomed.id);
const invalid = await createDeliberation({ client, body: { ...request("single"), role: "NOBODY" } });
const unknown = await getDeliberation({ client, path: { deliberation_id: "nothing-here" } });
console.log(
  JSON.stringify({
    id: first.id,
    again: again.id,
    status: ended.status,
    winner: ended.verdict?.winner ?? null,
    listed: listed.data.items.map((item) => item.id),
    events,
    told_winner: winnerOfEvents,
    cancelled: stopped.status,
    reason: stopped.status_reason,
    refusals: [summary(invalid.error), summary(unknown.error)],
  }),
);
