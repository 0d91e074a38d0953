/** Actions: answers that call the client's tools, or reply with a text; and messages of a conversation, with such calls. */

import { callsIn, speaker } from "./conversation.js";
import { parsed } from "./council.js";
import { html } from "./html.js";
import { Markdown } from "./markdown.js";
import { Copy, Icon } from "./parts.js";

/** Whether a browser holds every number of a JSON value as it was written. */
function exact(value) {
  if (typeof value === "number") return Number.isFinite(value) && (!Number.isInteger(value) || Number.isSafeInteger(value));
  return value === null || typeof value !== "object" || Object.values(value).every(exact);
}

/** Characters that reorder or hide text, and blanks that nobody sees. */
const UNSEEN = /[\p{Default_Ignorable_Code_Point}\p{Zl}\p{Zp}\u007f-\u009f]/gu;
const escaped = (characters) => characters.split("").map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`).join("");
/** JSON with the characters escaped that reorder or hide text; it stays the same JSON. */
export const visible = (json) => json.replace(UNSEEN, escaped);

/** A value as JSON to read and to copy; `written` stands for one whose numbers a browser would round. */
const shown = (value, written) => visible(exact(value) ? JSON.stringify(value, null, 2) : written);

/** An action as JSON; `content` has it in words. */
export const actionJson = ({ calls, reply }, content) => (calls ? shown({ calls }, content) : JSON.stringify({ reply }, null, 2));

/** Calls with their arguments; `lines` have each as the gateway wrote it. */
export const Calls = ({ calls, lines, copies = false }) => html`<ol class="calls">${calls.map((call, place) => {
  const text = shown(call.arguments, lines[place] ?? lines[0]);
  return html`<li key=${place}><div class="row"><${Icon} name="tool" /><code class="grow anywhere">${call.name}</code>${copies ? html`<span class="acts"><${Copy} text=${text}>Copy arguments<//></span>` : ""}</div><pre class="sh" tabindex="0" dir="ltr"><code>${text}</code></pre></li>`;
})}</ol>`;

/** An answer: the calls of an action, a program, or a text in Markdown, which a reply is, too. */
export function Answer({ content, action = null, code = false, big = false }) {
  if (action?.calls) return html`<${Calls} calls=${action.calls} lines=${content.split("\n")} copies=${true} />`;
  return code ? html`<pre class="sh" tabindex="0" dir="ltr"><code>${content}</code></pre>` : html`<${Markdown} big=${big} text=${content} />`;
}

/** The text of an ended call whose answer is an action. */
export function Acted({ text, dim = false }) {
  const read = parsed(text);
  const calls = callsIn(read);
  return calls.length ? html`<${Calls} calls=${calls} lines=${[text]} />` : html`<${Markdown} text=${typeof read?.reply === "string" ? read.reply : text} dim=${dim} />`;
}

/** A conversation. What an assistant said is Markdown, as an answer is; all else stands as it was given. */
export const Messages = ({ messages }) => html`<ol class="messages" aria-label="Conversation">${messages.map((message, place) => html`<li key=${place} data-role=${message.role}><b class="small quiet anywhere">${speaker(message, messages)}</b>
  ${message.text === "" ? "" : message.role === "assistant" ? html`<${Markdown} text=${message.text} />` : html`<pre class="sh" tabindex="0" dir="auto">${message.text}</pre>`}
  ${message.calls.length ? html`<${Calls} calls=${message.calls} lines=${message.calls.map((call) => JSON.stringify(call.arguments))} />` : ""}</li>`)}</ol>`;
