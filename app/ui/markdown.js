/** Markdown that a model wrote: text, never code. Links and pictures are shown as their words and addresses. */

import { html, useLayoutEffect, useRef } from "./html.js";
import { Marked } from "./vendor/marked.js";
import "./vendor/purify.js";

const TEXT_CHARS_MAX = 100_000;
/**
 * What the parser reads of a text at once. It is quadratic in lines of one block, in characters of one word and in marks of
 * emphasis, and fills each row of a table up to the width of its head. A text beyond these bounds is shown as it is written.
 */
const LINES_MAX = 1_000;
const WORD_CHARS_MAX = 2_000;
/** A table's cells take two characters each where no row is filled up; a short text may have this many. */
const CELLS = 500;
/** Quotes and lists that one line begins within each other. */
const NESTED = /^(?:[ \t]*(?:>|(?:[*+-]|\d{1,9}[.)])[ \t])){7}/;
/** Characters times marks of emphasis in a paragraph; beyond, its marks are text. */
const EMPHASIS_MAX = 1_000_000;
/** Characters of shown addresses: a definition may be referred to in every word. */
const ADDRESSES_CHARS_MAX = 200_000;

/** Thrown within the parser, as its own calls nested too deep are. */
const tooMuch = () => new RangeError("The text takes too much work.");

function checkWork(text) {
  const lines = text.split("\n");
  const bars = lines.reduce((most, line) => Math.max(most, line.split("|").length - 1), 0);
  const word = text.split(/\s/).some(({ length }) => length > WORD_CHARS_MAX);
  if (word || lines.length > LINES_MAX || lines.length * bars > Math.max(CELLS, text.length) || lines.some((line) => NESTED.test(line))) throw tooMuch();
}

/** The value of `read`, or of `instead` for a text that takes too much work or nests too deep. */
function bounded(read, instead) {
  try {
    return read();
  } catch (error) {
    if (error instanceof RangeError) return instead();
    throw error;
  }
}

const weighed = { paragraph: "", heavy: false };
/** Whether the marks of emphasis in a paragraph are too many; the parser asks at each of them. */
function emphasisIsHeavy(paragraph) {
  if (paragraph !== weighed.paragraph) {
    Object.assign(weighed, { paragraph, heavy: paragraph.length * (paragraph.split(/[*_]/).length - 1) > EMPHASIS_MAX });
  }
  return weighed.heavy;
}

let addressesChars = 0;
function address(href) {
  addressesChars += href.length;
  if (addressesChars > ADDRESSES_CHARS_MAX) throw tooMuch();
  return `<code>${escaped(href)}</code>`;
}

const escaped = (text) =>
  text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);

const marked = new Marked({
  gfm: true,
  // Tags within a line are text, so that no open one changes how the blocks behind it are read.
  tokenizer: { tag: () => undefined, emStrong: (_, paragraph) => (emphasisIsHeavy(paragraph) ? undefined : false) },
  renderer: {
    html: ({ text }) => escaped(text),
    image: ({ text, href }) => `${escaped(text)} ${address(href)}`,
    link({ tokens, href }) {
      const words = this.parser.parseInline(tokens);
      return words === escaped(href) ? address(href) : `${words} ${address(href)}`;
    },
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});
const TAGS = "p br hr h3 h4 h5 h6 ul ol li strong em del code pre blockquote table thead tbody tr th td".split(" ");
const BLOCKS = new Set(["P", "UL", "OL", "LI", "BLOCKQUOTE", "H3", "H4", "H5", "H6"]);
const LOWER = { H1: "h3", H2: "h3", H3: "h4" };

function parsed(text) {
  if (text.length > TEXT_CHARS_MAX) throw tooMuch();
  checkWork(text);
  addressesChars = 0;
  return marked.parse(text);
}

/** A fragment of the document with nothing in it that runs, loads, leads elsewhere, or has a name. */
export function fragment(text) {
  const content = bounded(() => parsed(text), () => null);
  if (content === null) {
    const made = document.createDocumentFragment();
    made.append(Object.assign(document.createElement("pre"), { textContent: text, tabIndex: 0 }));
    return made;
  }
  const clean = globalThis.DOMPurify.sanitize(content, {
    ALLOWED_TAGS: [...TAGS, "h1", "h2"],
    ALLOWED_ATTR: ["start"],
    RETURN_DOM_FRAGMENT: true,
  });
  for (const heading of clean.querySelectorAll("h1, h2, h3")) {
    const lower = document.createElement(LOWER[heading.tagName]);
    lower.append(...heading.childNodes);
    heading.replaceWith(lower);
  }
  for (const block of clean.children) block.dir = "auto";
  for (const code of clean.querySelectorAll("pre")) Object.assign(code, { tabIndex: 0, dir: "ltr" });
  return clean;
}

/** The blocks of `text` that nothing written behind them can change: all but the last of its whole lines. */
function settledIn(text) {
  const lines = text.slice(0, text.lastIndexOf("\n") + 1);
  const tokens = bounded(() => (checkWork(lines), marked.lexer(lines)), () => []);
  const last = tokens.findLastIndex(({ type }) => type !== "space");
  const settled = tokens.slice(0, Math.max(0, last)).map(({ raw }) => raw).join("");
  return text.startsWith(settled) ? settled : "";
}

const DEFINITION = /\[[^\]]+\]:/;

function caretAt(drawn, family) {
  let end = drawn;
  while (BLOCKS.has(end.lastElementChild?.tagName)) end = end.lastElementChild;
  end.append(Object.assign(document.createElement("span"), { className: `caret ${family}` }));
}

/** Characters that a step reads, more only where a block is longer. */
const STEP_CHARS = 1_000;

/** The first settled blocks of `text`, of about STEP_CHARS. */
function nextSettled(text) {
  for (let length = STEP_CHARS; ; length *= 2) {
    const settled = settledIn(text.slice(0, length));
    if (settled !== "" || length >= text.length) return settled;
  }
}

/**
 * Draws the next blocks of `text` in `box`; returns whether all of it is drawn. Blocks that can no longer change are drawn
 * once, so that a draw of a growing text, which its caret shows, costs the length of the open block. `drawn` is kept from
 * one draw to the next: { settled, open }, at first empty.
 */
export function draw(box, drawn, written, caret) {
  const text = written.replace(/\r\n?/g, "\n");
  // A definition of a link changes the blocks before it, which the end shows.
  const inOne = text.length > TEXT_CHARS_MAX || (!caret && DEFINITION.test(text));
  if (inOne || !text.startsWith(drawn.settled)) {
    box.replaceChildren();
    Object.assign(drawn, { settled: "", open: [] });
  }
  const rest = text.slice(drawn.settled.length);
  const settled = inOne ? "" : nextSettled(rest);
  const whole = settled === "" || rest.length <= STEP_CHARS;
  const open = whole ? fragment(rest.slice(settled.length)) : document.createDocumentFragment();
  if (whole && caret) caretAt(open, caret);
  for (const node of drawn.open) node.remove();
  Object.assign(drawn, { settled: drawn.settled + settled, open: [...open.childNodes] });
  box.append(...(settled ? [fragment(settled)] : []), open);
  return whole;
}

const FRAME_MS = 8;
/** The texts to draw by their boxes, in the order in which they were asked for; each draws a step, and says whether it has ended. */
const waiting = new Map();

/** A frame draws for FRAME_MS, at least a step; what is left waits for the next frame. */
function drawSome() {
  const end = performance.now() + FRAME_MS;
  for (const [box, step] of waiting) {
    let whole = step();
    while (!whole && performance.now() < end) whole = step();
    if (whole) waiting.delete(box);
    if (performance.now() >= end) break;
  }
  if (waiting.size > 0) requestAnimationFrame(drawSome);
}

/** A text of a model. A `big` one is drawn at once, all others in frames. */
export function Markdown({ text, big = false, caret = null, dim = false }) {
  const box = useRef(null);
  const drawn = useRef(null);
  useLayoutEffect(() => {
    const { current } = box;
    drawn.current ??= { settled: "", open: [] };
    const step = () => draw(current, drawn.current, text ?? "", caret);
    if (big) while (!step());
    else {
      if (waiting.size === 0) requestAnimationFrame(drawSome);
      waiting.set(current, step);
    }
  }, [text, caret]);
  return html`<div ref=${box} dir="auto" class=${`md${big ? " big" : ""}${dim ? " dim" : ""}`} />`;
}
