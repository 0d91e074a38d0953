// The official client of A2A for JavaScript: a task is asked for, streamed, read, listed and refused.
import { Role, TaskState } from "@a2a-js/sdk";
import { ClientFactory } from "@a2a-js/sdk/client";

function asking(text, messageId) {
  const part = { content: { $case: "text", value: text }, metadata: {}, filename: "", mediaType: "text/plain" };
  const nothing = { taskId: "", metadata: {}, extensions: [], referenceTaskIds: [] };
  const message = { messageId, contextId: "js", role: Role.ROLE_USER, parts: [part], ...nothing };
  return { tenant: "", message, configuration: undefined, metadata: { strategy: "vote", num_agents: 3, seed: 7 } };
}

const text = ({ parts }) => parts.map(({ content }) => content.value).join("\n");

const client = await new ClientFactory().createFromUrl(process.argv[1]);
const asked = await client.sendMessage(asking("Name a colour.", "m-1"));

const kinds = new Set();
let streamed = "";
for await (const { payload } of client.sendMessageStream(asking("Name a city.", "m-2"))) {
  kinds.add(payload.$case);
  if (payload.$case === "artifactUpdate") streamed += text(payload.value.artifact);
}

const everyState = { status: TaskState.TASK_STATE_UNSPECIFIED, pageToken: "", includeArtifacts: true };
const { tasks } = await client.listTasks({ tenant: "", contextId: "js", ...everyState });
const read = await client.getTask({ tenant: "", id: asked.id });
const refused = await client.cancelTask({ tenant: "", id: asked.id, metadata: {} }).catch(({ name }) => name);
const [whole, again] = [asked, read].map(({ artifacts }) => text(artifacts[0]));
const listed = tasks.map(({ artifacts }) => text(artifacts[0]));
console.log(JSON.stringify({ whole, again, kinds: [...kinds], streamed, listed, refused }));
