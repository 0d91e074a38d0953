/** Markdown that a model wrote: text, never code. Links and pictures are shown as their words and addresses. */

import { html, useLayoutEffect, useRef } from "./html.js";
import { Marked } from "./vendor/marked.js";
import "./vendor/purify.js";

const TEXT_CHARS_MAX = 100_000;
const escaped = (text) =>
  text.replace(/[&<>"']/g, (each) => `&#${each.charCodeAt(0)};`);

const marked = new Marked({
  gfm: true,
  renderer: {
    html: ({ text }) => escaped(text),
    image: ({ text, href }) => `${escaped(text)} <code>${escaped(href)}</code>`,
    link({ tokens, href }) {
      const words = this.parser.parseInline(tokens);
      return words === escaped(href) ? `<code>${words}</code>` : `${words} <code>${escaped(href)}</code>`;
    },
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});
const TAGS = "p br hr h3 h4 h5 h6 ul ol li strong em del code pre blockquote table thead tbody tr th td".split(" ");
const BLOCKS = new Set(["P", "UL", "OL", "LI", "BLOCKQUOTE", "H3", "H4", "H5", "H6"]);
const LOWER = { H1: "h3", H2: "h3", H3: "h4" };

/** A fragment of the document with nothing in it that runs, loads, leads elsewhere, or has a name. */
export function fragment(text) {
  const made = document.createElement("template");
  if (text.length > TEXT_CHARS_MAX) {
    made.content.append(Object.assign(document.createElement("pre"), { textContent: text }));
    return made.content;
  }
  const clean = globalThis.DOMPurify.sanitize(marked.parse(text), {
    ALLOWED_TAGS: [...TAGS, "h1", "h2"],
    ALLOWED_ATTR: ["start"],
    RETURN_DOM_FRAGMENT: true,
  });
  for (const heading of clean.querySelectorAll("h1, h2, h3")) {
    const lower = document.createElement(LOWER[heading.tagName]);
    lower.append(...heading.childNodes);
    heading.replaceWith(lower);
  }
  for (const scrolls of clean.querySelectorAll("pre")) scrolls.tabIndex = 0;
  for (const block of clean.children) block.dir = "auto";
  return clean;
}

export function Markdown({ text, big = false, caret = null, dim = false }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    const drawn = fragment(text ?? "");
    if (caret) {
      const mark = Object.assign(document.createElement("span"), { className: "caret" });
      let end = drawn;
      while (BLOCKS.has(end.lastElementChild?.tagName)) end = end.lastElementChild;
      end.append(mark);
    }
    box.current.replaceChildren(drawn);
  }, [text, caret]);
  return html`<div ref=${box} dir="auto" class=${`md${big ? " big" : ""}${dim ? " dim" : ""}${caret ? ` ${caret}` : ""}`} />`;
}
