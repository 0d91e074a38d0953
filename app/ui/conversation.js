/** A conversation as its messages: the task is their transcript, in which each begins with a mark that no author can know. */

import { parsed } from "./council.js";
import { title } from "./words.js";

const MARK = /carries the mark ([0-9a-f]{12})\.\n\n\[/;

/** The calls of tools in a JSON value, which somebody else wrote; none where it has another form. */
export const callsIn = (value) => (Array.isArray(value?.calls) && value.calls.every((call) => typeof call?.name === "string" && call.arguments !== undefined) ? value.calls : []);

/** A message with the calls that stand in the last line of an assistant's. */
function message([role, name, said]) {
  const end = said.lastIndexOf("\n");
  const calls = role === "assistant" ? callsIn(parsed(said.slice(end + 1))) : [];
  return { role, name, text: calls.length ? said.slice(0, Math.max(0, end)) : said, calls };
}

/** The messages of a deliberation; null where its task is one text, or only the beginning and the end of a conversation are there. */
export function messagesOf({ task, turns = 1 }) {
  const mark = turns > 1 ? task.match(MARK)?.[1] : undefined;
  if (mark === undefined) return null;
  const parts = task.split(new RegExp(`\n\n\\[${mark} (\\w+) ?([^\\]\n]*)\\]\n`)).slice(1);
  if (parts.length !== 3 * turns) return null;
  return Array.from({ length: turns }, (_, index) => message(parts.slice(3 * index, 3 * index + 3)));
}

/** Who says a message; of what a tool returned, which tool. */
export function speaker({ role, name }, messages) {
  if (role !== "tool") return `${title(role)}${name ? ` ${name}` : ""}`;
  const called = messages.flatMap(({ calls }) => calls).find(({ id }) => id === name);
  return `Result of ${called?.name ?? name}`;
}

/** The messages as a request has them. */
const asConversation = (messages) => messages.map(({ role, name, text, calls }) => ({ role, ...(name ? { name } : {}), text, ...(calls.length ? { calls } : {}) }));

/** What a deliberation was asked, as a request says it. */
export const asRequested = ({ task, turns }) => {
  const messages = messagesOf({ task, turns });
  return messages ? { conversation: asConversation(messages) } : { task };
};
