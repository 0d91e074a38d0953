/** The readable strings of the agents' JSON, also while it is unfinished. */

const ESCAPES = { n: "\n", t: "\t", r: "", b: "", f: "" };

/** The string values, one below the other. Text that does not begin like JSON stays unchanged. */
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
    // A string before a colon is a name.
    if (!/^\s*:/.test(text.slice(at, at + 8))) found.push(value);
  }
  return found.join("\n\n");
}
