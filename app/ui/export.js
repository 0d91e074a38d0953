/** What a reader takes along: one self-contained page, and a transcript. */

import { actionJson } from "./actions.js";
import { messagesOf, speaker } from "./conversation.js";
import { fragment } from "./markdown.js";
import { save } from "./parts.js";
import { agreementInWords } from "./sentences.js";
import { number, question, tokensOf } from "./words.js";

const named = ({ name, media_type: type, bytes, sha256 }) => `${name}, ${type}, ${number(bytes)} bytes, file-${sha256}`;

const fenced = (text) => `\`\`\`json\n${text}\n\`\`\``;
/** An answer in Markdown: the calls of an action as JSON. */
const answered = (content, action) => (action?.calls ? fenced(actionJson(action, content)) : content);

/** What was asked as [head, Markdown]; the head is empty for a task of one text. */
function asked(resource) {
  const messages = messagesOf(resource);
  if (messages === null) return [["", resource.task]];
  return messages.map((message) => [speaker(message, messages), [message.text, message.calls.length ? fenced(actionJson(message, JSON.stringify(message.calls))) : ""].filter(Boolean).join("\n\n")]);
}

/** Markdown with the task, the verdict, each candidate's versions and the critiques of them. */
export function transcript(resource) {
  const { task, task_file: whole, evidence, strategy, status, verdict, proposals, usage, created_at: created, id } = resource;
  const parts = [`# ${question(task).slice(0, 120)}`, `${strategy}, ${status}, ${created}, ${number(tokensOf(usage))} tokens, ${id}`, "## Task", ...asked(resource).flatMap(([head, text]) => [head && `### ${head}`, text]).filter(Boolean)];
  if (whole) parts.push(`This is its beginning and its end. The whole task: ${named(whole)}`);
  const files = evidence.filter(({ file }) => file);
  if (files.length) parts.push("## Files", files.map(({ id, file }) => `- ${id}: ${named(file)}`).join("\n"));
  if (verdict) {
    parts.push("## Verdict", answered(verdict.content, verdict.action) ?? "Answers side by side.", ...[agreementInWords(resource)].filter(Boolean), "## Ranking", verdict.ranking.map(({ rank, agent_id: agent, score }) => `${rank}. ${agent}${score === null ? "" : `: ${score.toFixed(3)}`}`).join("\n"));
    if (verdict.dissent.length) parts.push("## Dissent", verdict.dissent.map(({ agent_id: agent, preferred }) => `- ${agent} prefers ${preferred}`).join("\n"));
  }
  for (const { agent_id: agent, model, content, action, revisions, critiques } of proposals) {
    parts.push(`## ${agent}${model ? ` (${model})` : ""}`);
    for (const { version, content: text, action: acted } of revisions) parts.push(`### Version ${version + 1}`, answered(text, acted));
    parts.push("### Its best version", answered(content, action) ?? "No answer.");
    for (const { agent_id: critic, round, verdict: judged, issues } of critiques) parts.push(`### ${critic} in round ${round}: ${judged}`, issues.map(({ severity, claim, where, fix }) => `- ${severity}: ${claim} (${where}) ${fix}`).join("\n") || "No issue.");
  }
  return `${parts.join("\n\n")}\n`;
}

const CSP = "default-src 'none'; style-src 'unsafe-inline'";

/** Saves what the view shows, with its styles, as one HTML file without scripts. */
export async function download(resource) {
  const { id, task } = resource;
  const styles = await Promise.all(["tokens", "page"].map(async (name) => (await fetch(`/ui/${name}.css`)).text()));
  const shown = document.querySelector("[data-done]").cloneNode(true);
  for (const control of shown.querySelectorAll(".acts, .jumpbar, .replay, form, .lanetabs, input, select, img, .foot button, header .end")) control.remove();
  for (const button of shown.querySelectorAll("button")) {
    const words = document.createElement("span");
    words.append(...button.childNodes);
    button.replaceWith(words);
  }
  for (const link of shown.querySelectorAll("a")) link.removeAttribute("href");
  const section = document.createElement("section");
  section.append(Object.assign(document.createElement("h2"), { textContent: "Task" }));
  for (const [head, text] of asked(resource)) section.append(...(head ? [Object.assign(document.createElement("h3"), { textContent: head })] : []), fragment(text));
  const title = Object.assign(document.createElement("title"), { textContent: question(task).slice(0, 120) });
  // As text: this page's policy lets no element carry styles, not even of another document.
  const page = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${CSP}">
<meta name="viewport" content="width=device-width">${title.outerHTML}<style>${styles.join("\n")}</style></head>
<body><main>${shown.outerHTML}<div class="wrap md">${section.outerHTML}</div></main></body></html>\n`;
  save(`${id}.html`, "text/html", page);
}
