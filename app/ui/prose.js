/** What agents write is JSON; people read what stands in its strings, also while the end is still to come. */

const ESCAPES = { n: "\n", t: "\t", r: "", b: "", f: "" };

/** The strings that are values, one below the other. What does not begin as JSON stays as it is. */
export function prose(text) {
  if (!/^\s*[[{]/.test(text)) return text;
  const found = [];
  let at = 0;
  while (at < text.length) {
    if (text[at] !== '"') {
      at += 1;
      continue;
    }
    let value = "";
    for (at += 1; at < text.length && text[at] !== '"'; at += 1) {
      if (text[at] !== "\\") {
        value += text[at];
        continue;
      }
      at += 1;
      if (text[at] === "u") {
        value += String.fromCharCode(Number.parseInt(text.slice(at + 1, at + 5), 16) || 0x20);
        at += 4;
      } else {
        value += ESCAPES[text[at]] ?? text[at] ?? "";
      }
    }
    at += 1;
    // What a colon follows is a name.
    if (!/^\s*:/.test(text.slice(at, at + 8))) found.push(value);
  }
  return found.join("\n\n");
}
