/** Plots of the last 15 minutes, each with its figure, and all of them as one table. */

import { html } from "./html.js";
import { Table } from "./parts.js";
import { clock, NONE, number } from "./words.js";

const WIDTH = 200;
const HEIGHT = 44;
const SPAN_MS = 15 * 60_000;
// Longer than the time between two samples: the gateway was away in between.
const GAP_MS = 25_000;

const percent = (share) => `${Math.round(100 * share)} %`;
const seconds = (value) => `${value.toFixed(2)} s`;
const whole = (value) => number(Math.round(value));
// Field of a sample, name, unit, how a figure is written, and the least end of the axis.
const PLOTS = [
  ["active", "Deliberations", "active", whole, 1],
  ["running", "Calls", "at engines", whole, 1],
  ["waiting", "Calls", "waiting", whole, 1],
  ["tokens_per_s", "Written", "tokens per second", whole, 1],
  ["cached_share", "Prompts", "cached", percent, 1],
  ["ttft_s", "First token", "median", seconds, 0.1],
];

/** The known values of a field in runs without gaps, as points [x, y]. */
function runsOf(samples, field, most) {
  const end = Date.parse(samples.at(-1).at);
  const runs = [];
  let last = null;
  for (const sample of samples) {
    const at = Date.parse(sample.at);
    if (sample[field] === null) last = null;
    else {
      if (last === null || at - last > GAP_MS) runs.push([]);
      runs.at(-1).push([WIDTH * (1 - (end - at) / SPAN_MS), HEIGHT * (1 - sample[field] / most)].map((each) => each.toFixed(1)));
      last = at;
    }
  }
  return runs;
}

function Plot({ samples, field, name, unit, written, least }) {
  const values = samples.map((sample) => sample[field]).filter((value) => value !== null);
  const most = Math.max(least, ...values);
  const runs = runsOf(samples, field, most);
  const now = samples.at(-1)[field];
  return html`<div class="plot1"><h3>${name}</h3><div class="v">${now === null ? NONE : written(now)} <small>${unit}</small></div>
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">${runs.map((points) => html`
      <path class="a" d=${`M${points[0][0]} ${HEIGHT} L${points.map((point) => point.join(" ")).join(" L")} L${points.at(-1)[0]} ${HEIGHT}Z`} /><path class="l" d=${`M${points.map((point) => point.join(" ")).join(" L")} l0 0`} />`)}</svg>
    <div class="ends"><span>15 min ago</span><span>at most ${values.length ? written(Math.max(...values)) : NONE}</span></div></div>`;
}

export function Plots({ samples }) {
  return html`<section class="block" aria-labelledby="ph"><header><h2 id="ph">Last 15 minutes</h2><p>A sample in 10 s, as this gateway saw it. Each plot begins at 0.</p></header>
    ${samples.length === 0 ? html`<p class="quiet">The first sample comes 10 s after the gateway's start.</p>` : html`
    <div class="plots">${PLOTS.map(([field, name, unit, written, least]) => html`<${Plot} key=${field} ...${{ samples, field, name, unit, written, least }} />`)}</div>
    <details class="gap"><summary>As a table</summary><div class="tall"><${Table} name="Last 15 minutes" head=${[["Time"], ...PLOTS.map(([, name, unit]) => [`${name}, ${unit}`, "num"])]}>${samples.toReversed().map((sample) => html`<tr key=${sample.at}><th scope="row">${clock(sample.at)}</th>${PLOTS.map(([field, , , written]) => html`<td class="num">${sample[field] === null ? NONE : written(sample[field])}</td>`)}</tr>`)}<//></div></details>`}</section>`;
}
