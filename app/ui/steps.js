/** A strategy's steps as a small picture, with what each costs where a quote is given. */

import { html } from "./html.js";
import { family, plural, short, tokensOf } from "./words.js";

const PURPOSE = /^[a-z]+/;

/** `stages` are those of a quote: then each step has its calls, of all rounds together. */
export function Steps({ strategy, stages = [] }) {
  if (!strategy) return null;
  const costs = (purpose) => {
    const of = stages.filter((stage) => stage.purpose === purpose);
    if (of.length === 0) return "";
    const [calls, tokens] = of.reduce(([a, b], { expected }) => [a + expected.calls, b + tokensOf(expected)], [0, 0]);
    return `${plural(calls, "call")}, ${short(tokens)} tokens`;
  };
  return html`<ol class="steps" aria-label="Steps">${strategy.steps.map((step) => {
    const [purpose] = step.match(PURPOSE);
    const rest = step.slice(purpose.length).trim();
    return html`<li class=${`${family(purpose)}${rest.startsWith("×") ? " loop" : ""}`} key=${step}><b>${purpose}</b>${costs(purpose) || rest.replace("× R", "each round")}</li>`;
  })}</ol>`;
}
