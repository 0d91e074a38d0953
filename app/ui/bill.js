/** The bill of a finished deliberation: tokens by member and stage, and the cost where engines have a price. */

import { html } from "./html.js";
import { save } from "./parts.js";
import { cachedShare, family, money, number, plural, sentence, tokensOf } from "./words.js";

export function Bill({ resource, council, read }) {
  const { by_stage: stages, by_agent: agents } = resource.usage;
  const purposes = [...new Set(stages.map(({ purpose }) => purpose))];
  const cross = new Map();
  for (const call of council?.calls.values() ?? []) {
    const key = `${call.agent_id} ${call.purpose}`;
    if (call.finished) cross.set(key, (cross.get(key) ?? 0) + tokensOf(call.finished.usage));
  }
  const most = Math.max(1, ...cross.values());
  const ofPurpose = (purpose) => stages.filter((stage) => stage.purpose === purpose);
  const sum = (items) => items.reduce((total, usage) => total + tokensOf(usage), 0);
  const models = new Map(resource.proposals.map(({ agent_id: id, model }) => [id, model]));
  const priced = resource.usage.cost !== null;
  const csv = () => {
    const rows = [["member", ...purposes, "cached_tokens", "tokens", "cost", "currency"], ...agents.map((agent) => [agent.agent_id, ...purposes.map((purpose) => cross.get(`${agent.agent_id} ${purpose}`) ?? ""), agent.cached_tokens, tokensOf(agent), agent.cost?.amount ?? "", agent.cost?.currency ?? ""])];
    save(`${resource.id}-bill.csv`, "text/csv", rows.map((row) => row.join(",")).join("\n"));
  };
  return html`<section class="block" id="bill" aria-labelledby="bh"><header><h2 id="bh">Bill</h2><p>Tokens per member and stage, prompts and texts together. ${plural(resource.usage.calls, "call")}${resource.usage.cost?.unpriced_calls ? `, ${plural(resource.usage.cost.unpriced_calls, "of them")} without a price` : priced ? "" : "; the engines have no price"}.</p><button class="linked end body" onClick=${csv}>CSV</button></header>
    <div class="scrollx" tabindex="0" role="region" aria-label="Bill, table"><table class="bill"><thead><tr><th scope="col">Member</th>${purposes.map((purpose) => html`<th scope="col" class="num" key=${purpose}><span class=${`ph ${family(purpose)}`}>${purpose}</span></th>`)}<th scope="col" class="num">Cached</th><th scope="col" class="num">Tokens</th><th scope="col" class="num">Cost</th></tr></thead>
      <tbody>${agents.map((agent) => html`<tr key=${agent.agent_id}><th scope="row">${sentence(read.name(agent.agent_id))}${read.shown ? html`<small>${models.get(agent.agent_id) ?? ""}</small>` : ""}</th>${purposes.map((purpose) => {
        const tokens = cross.get(`${agent.agent_id} ${purpose}`);
        return html`<td class=${`num ${family(purpose)}`} key=${purpose}>${number(tokens)}${tokens ? html`<i class="hb" style=${{ "--v": `${((100 * tokens) / most).toFixed(0)}%` }} />` : ""}</td>`;
      })}<td class="num">${cachedShare(agent)}</td><td class="num"><b>${number(tokensOf(agent))}</b></td><td class="num">${money(agent.cost)}</td></tr>`)}</tbody>
      <tfoot><tr><th scope="row">All</th>${purposes.map((purpose) => html`<td class="num" key=${purpose}>${number(sum(ofPurpose(purpose)))}</td>`)}<td class="num">${cachedShare(resource.usage)}</td><td class="num">${number(tokensOf(resource.usage))}</td><td class="num">${money(resource.usage.cost)}</td></tr></tfoot></table></div></section>`;
}
