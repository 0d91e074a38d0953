/** The difference of two texts in words. */

const WORDS_MAX = 2_000;

/** [kind, text] in order; kind is "same", "del" or "ins". Texts of many words are compared by lines. */
export function difference(before, after) {
  const split = (text, by) => text.split(by).filter((piece) => piece !== "");
  let [left, right] = [split(before, /(\s+)/), split(after, /(\s+)/)];
  if (Math.max(left.length, right.length) > WORDS_MAX) [left, right] = [split(before, /(?<=\n)/), split(after, /(?<=\n)/)];
  if (Math.max(left.length, right.length) > WORDS_MAX) return [["del", before], ["ins", after]];
  // Lengths of the longest common subsequences of all ends.
  const width = right.length + 1;
  const longest = new Uint16Array((left.length + 1) * width);
  for (let i = left.length - 1; i >= 0; i -= 1) {
    for (let j = right.length - 1; j >= 0; j -= 1) {
      longest[i * width + j] = left[i] === right[j] ? longest[(i + 1) * width + j + 1] + 1 : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  const parts = [];
  const put = (kind, text) => {
    if (parts.length && parts.at(-1)[0] === kind) parts.at(-1)[1] += text;
    else parts.push([kind, text]);
  };
  let [i, j] = [0, 0];
  while (i < left.length || j < right.length) {
    if (i < left.length && j < right.length && left[i] === right[j]) {
      put("same", left[i]);
      i += 1;
      j += 1;
    } else if (j >= right.length || (i < left.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) put("del", left[i++]);
    else put("ins", right[j++]);
  }
  return parts;
}

const FENCE = /^\s*(```|~~~)/;

/**
 * The lines of one side of a difference: { code, pieces: [[kind, text], …] }. `side` is "del" or "ins"; a line within a fence
 * is code, and all lines are where `code` is set.
 */
export function linesOf(parts, side, code = false) {
  const lines = [[]];
  for (const [kind, text] of parts) {
    if (kind !== "same" && kind !== side) continue;
    text.split("\n").forEach((piece, index) => {
      if (index > 0) lines.push([]);
      if (piece !== "") lines.at(-1).push([kind, piece]);
    });
  }
  let fenced = false;
  return lines.map((pieces) => {
    const fence = FENCE.test(pieces.map(([, text]) => text).join(""));
    const within = fenced || fence;
    if (fence) fenced = !fenced;
    return { code: code || within, pieces };
  });
}
