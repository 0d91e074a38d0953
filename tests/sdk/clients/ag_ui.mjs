// AG-UI's client, which verifies every stream: it runs each strategy, and joins the run at random moments.
import { isDeepStrictEqual } from "node:util";
import { HttpAgent } from "@ag-ui/client";

const [url, strategies, joins] = [process.argv[1], JSON.parse(process.argv[2]), Number(process.argv[3])];
const PAUSE_MS = 45;
const TASK = { id: "message-1", role: "user", content: "Write a function that merges two sorted lists." };

async function applied(agent, parameters) {
  const events = [];
  const { result } = await agent.runAgent(parameters, { onEvent: ({ event }) => void events.push({ ...event, at: performance.now() }) });
  const messages = Object.fromEntries(agent.messages.map((message) => [message.id, message]));
  return { view: { messages, state: agent.state }, events, result };
}

async function joined(threadId, runId) {
  const found = await applied(new HttpAgent({ url: `${url}/ag-ui/connect`, threadId }), { runId });
  const kinds = found.events.map(({ type }) => type);
  const snapshot = kinds.slice(0, 4).join();
  if (snapshot !== "RUN_STARTED,MESSAGES_SNAPSHOT,STATE_SNAPSHOT,ACTIVITY_SNAPSHOT") throw new Error(snapshot);
  return found;
}

function midText(events, at) {
  const begun = events.filter(({ type, at: time }) => type === "TEXT_MESSAGE_START" && time < at);
  const ended = events.filter(({ type, at: time }) => type === "TEXT_MESSAGE_END" && time < at);
  return begun.length > ended.length;
}

const report = {};
for (const strategy of strategies) {
  const threadId = `thread-${strategy}`;
  const agent = new HttpAgent({ url: `${url}/ag-ui`, threadId, initialMessages: [TASK] });
  let running = true;
  const begun = new Promise((done) => agent.subscribe({ onRunStartedEvent: done }));
  const forwardedProps = { deliberation: { strategy, seed: 11 } };
  const run = applied(agent, { runId: "run-1", forwardedProps }).finally(() => (running = false));
  await Promise.race([begun, run]);
  const views = [];
  while (running && views.length < joins) {
    views.push(joined(threadId, "run-1"));
    await new Promise((done) => setTimeout(done, Math.random() * 2 * PAUSE_MS));
  }
  const first = await run;
  views.push(joined(threadId, "run-1"));
  const found = await Promise.all(views);
  report[strategy] = {
    joins: found.length,
    midText: found.filter(({ events: [{ at }] }) => midText(first.events, at)).length,
    differ: found.filter(({ view }) => !isDeepStrictEqual(view, first.view)).map(({ view }) => view),
    messages: first.view.messages,
    kinds: [...new Set(first.events.map(({ type }) => type))],
    last: first.events.at(-1),
  };
}
console.log(JSON.stringify(report));
