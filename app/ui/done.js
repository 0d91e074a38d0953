/** A finished deliberation: the verdict and why it won first, then the ranking, the evidence, the bill, and the facts. */

import { ballots } from "./council.js";
import { download, transcript } from "./export.js";
import { recorded } from "./gateway.js";
import { Head } from "./head.js";
import { html, useEffect, useMemo, useState } from "./html.js";
import { Markdown } from "./markdown.js";
import { CLIENTS } from "./new.js";
import { Copy, counted, Figures, Icon, initials, Note, save, Seats, Severity } from "./parts.js";
import { Bump, Criteria, firsts, Matrix, Pairs, pairsOf, Tallies } from "./ranking.js";
import { Replay } from "./replay.js";
import { address } from "./router.js";
import { may, revealed } from "./state.js";
import { difference } from "./diff.js";
import { saveEvents, since, told, useFiltered } from "./waterfall.js";
import { cachedShare, family, money, NONE, number, ordinal, plural, sentence, shuffled, title, tokensOf } from "./words.js";

const ROMAN = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"];
const CODES = {
  unscored: "no ballot or comparison was recorded, so fewer tokens rank first",
};

/** The readings of a finished council that several sections share. */
function reading(resource, council) {
  const ids = resource.agents.map(({ agent_id: id }) => id);
  const drawn = shuffled(ids, resource.seed);
  const letters = new Map(drawn.map((id, index) => [id, index < 26 ? String.fromCharCode(65 + index) : `#${index + 1}`]));
  const shown = revealed.value === "on";
  const weights = Object.fromEntries(resource.constraints.rubric.map(({ id, weight }) => [id, weight]));
  const stages = (council?.stages ?? []).map(({ stage, round }) => ({ round, cast: ballots(council, stage, weights) })).filter(({ cast }) => cast.length);
  const standing = new Map((resource.verdict?.ranking ?? []).map((each) => [each.agent_id, each]));
  const last = stages.at(-1)?.cast ?? [];
  return {
    letter: (id) => letters.get(id) ?? id,
    name: (id) => (shown ? id : letters.has(id) ? `candidate ${letters.get(id)}` : id),
    judge: (id) => (shown ? id : `judge ${ROMAN[ids.indexOf(id)] ?? ids.indexOf(id) + 1}`),
    shown, stages, last, standing, pairs: pairsOf(council),
    // Among the texts that stand in the ranking.
    firsts: firsts(last, (agent) => standing.get(agent)?.version),
    work: new Map(resource.proposals.map((each) => [each.agent_id, each])),
  };
}

/** Why it won, composed from figures of the verdict; no model wrote it. */
function reasons(resource, read) {
  const { verdict, strategy } = resource;
  const { winner, ranking, margin, tie, tally } = verdict;
  const said = [];
  const cast = read.firsts.filter(({ could }) => could(winner));
  if (cast.length) {
    const first = cast.filter(({ chosen }) => chosen.includes(winner)).length;
    said.push(`${number(first)} of the ${plural(cast.length, "judge")} who could rank it put it first.${verdict.dissent.length ? "" : " No judge preferred another candidate."}`);
  }
  const mine = read.work.get(winner);
  const others = ranking.filter(({ agent_id: id }) => id !== winner).flatMap(({ agent_id: id }) => read.work.get(id)?.criteria ?? []);
  const leads = (mine?.criteria ?? []).filter(({ id, score }) => others.filter((each) => each.id === id).every((each) => each.score < score)).map(({ id }) => title(id).toLowerCase());
  if (leads.length) said.push(`It leads on ${leads.join(" and ")}.`);
  const group = tally.find(({ agents }) => agents.includes(winner));
  if (group) said.push(`${number(group.final ?? group.votes)} of ${number(tally.reduce((sum, { votes, final }) => sum + (final ?? votes), 0))} answers say the same.`);
  if (mine?.checks.length) said.push(`It passes ${number(mine.checks.filter(({ passed }) => passed).length)} of ${plural(mine.checks.length, "test")}.`);
  if (tie) said.push("It shares the first place; the rule for ties chose it.");
  else if (ranking[1] && margin !== null) said.push(`It stands ${margin.toFixed(2)} before ${read.name(ranking[1].agent_id)}.`);
  if (said.length === 0) said.push(strategy === "single" ? "One agent was asked, and nobody compared its answer." : "No score or vote compares it with the others.");
  const grave = (mine?.critiques ?? []).flatMap(({ issues }) => issues).filter(({ severity }) => severity !== "minor");
  const version = read.standing.get(winner)?.version;
  if (grave.length && version) said.push(`It is version ${version + 1}, after ${plural(grave.length, "major issue")}: “${grave[0].claim}”`);
  return said;
}

function Degraded({ resource }) {
  const { degraded, problem, participation } = resource;
  const cut = (degraded?.cut ?? []).map(({ purpose, round, by }) => `${title(purpose)}${round ? ` of round ${round}` : ""} was left out: ${by === "deadline" ? "the time was over" : `the budget of ${by} did not admit it`}.`);
  const words = (degraded?.reasons ?? []).map((each) => `${/^[a-z_]+$/.test(each) ? title(CODES[each] ?? each) : each.replace(/\.$/, "")}.`);
  const stalled = (participation?.stalled ?? []).map(({ agent_id: id, purpose, code }) => `${id} gave nothing in ${purpose}${code ? ` (${code})` : ""}.`);
  if (degraded) return html`<${Note} tone="warn" head="Degraded." action=${may("submit") ? html`<a class="btn sm" href=${address("new", { from: resource.id })}>Run again</a>` : null}>${[...new Set([...words, ...cut, ...stalled])].join(" ")}<//>`;
  if (problem) return html`<${Note} tone=${resource.status === "failed" ? "bad" : "warn"} head=${`${title(problem.code)}.`}>${problem.detail}<//>`;
  return null;
}

function Minority({ resource, read }) {
  return resource.verdict.dissent.map(({ agent_id: judge, preferred }) => {
    const ballot = read.last.find((each) => each.judge === judge);
    const of = (agent) => ballot?.candidates.find((each) => each.agent === agent && each.version === read.standing.get(agent)?.version);
    const [theirs, winners] = [of(preferred), of(resource.verdict.winner)];
    // Of the criteria, the one that speaks most for the other candidate.
    const gap = ({ id, score }) => score - (winners?.criteria.find((each) => each.id === id)?.score ?? score);
    const strongest = [...(theirs?.criteria ?? [])].sort((left, right) => gap(right) - gap(left))[0];
    return html`<div class="minority" key=${judge}><h3><${Icon} name="people" /><span>Minority report: ${read.judge(judge)} prefers ${read.name(preferred)}</span></h3>
      ${strongest ? html`<blockquote dir="auto">“${strongest.rationale}”</blockquote>` : ""}
      ${theirs && winners ? html`<p class="small quiet">It gave ${read.name(preferred)} ${theirs.mean.toFixed(1)} and ${read.name(resource.verdict.winner)} ${winners.mean.toFixed(1)}${strongest ? `; on ${title(strongest.id).toLowerCase()} ${strongest.score}` : ""}. <a class="link" href="#ranking" onClick=${(event) => jump(event, "ranking")}>Its whole ballot</a></p>` : ""}</div>`;
  });
}

function Why({ resource, read }) {
  const { verdict } = resource;
  if (verdict.winner === null) return html`<aside class="why" aria-label="Why there is no winner"><div><h3>No winner</h3><p>${resource.strategy === "independent" ? "The answers stand side by side: this strategy ranks nothing." : "The text is made from several answers, and no single one won."}</p></div></aside>`;
  const seats = read.firsts.map(({ chosen, could }) => (could(verdict.winner) ? { name: chosen.length === 1 ? read.letter(chosen[0]) : "=", fill: chosen.includes(verdict.winner) ? "full" : "ring" } : { name: "–", fill: "rest" }));
  const score = read.standing.get(verdict.winner)?.score;
  const figures = [["score", score === null || score === undefined ? NONE : score.toFixed(2)], ["margin", verdict.margin === null ? NONE : verdict.margin.toFixed(2)],
    ["agreement", verdict.agreement === null ? NONE : verdict.agreement.toFixed(2), verdict.agreement === null ? "" : "Kendall τ"],
    ["independent ballots", verdict.effective_votes === null ? NONE : verdict.effective_votes.toFixed(1), read.last.length ? `of ${read.last.length}` : ""]];
  return html`<aside class="why" aria-label="Why it won"><div><h3>Why it won</h3><div class="ballots">${seats.length ? html`<figure><${Seats} width=${116} seats=${seats} label=${`First places: ${seats.filter(({ fill }) => fill === "full").length} of ${seats.length} judges for the winner; its author may not rank it`} /><figcaption>first places</figcaption></figure>` : ""}
      <div>${reasons(resource, read).map((each) => html`<p key=${each} dir="auto">${each}</p>`)}</div></div></div>
    <${Figures} label="Figures of the verdict" items=${figures} /><${Criteria} resource=${resource} read=${read} /><${Minority} resource=${resource} read=${read} /></aside>`;
}

function Verdict({ resource, read }) {
  const { verdict } = resource;
  if (verdict === null || verdict.content === null && verdict.winner === null && resource.strategy !== "independent") return html`<article class="verdict" id="verdict"><div><h2>No verdict</h2><p class="quiet">${resource.problem?.detail ?? "It ended before an answer could be chosen."}</p></div></article>`;
  const version = read.standing.get(verdict.winner)?.version;
  const texts = verdict.content === null ? resource.proposals.filter(({ content }) => content) : null;
  return html`<article class="verdict" id="verdict"><div><h2 class="vh">Verdict</h2><div class="by">${verdict.winner ? html`<span class="letter win">${read.letter(verdict.winner)}</span><span>Candidate ${read.letter(verdict.winner)}${version === undefined ? "" : `, version ${version + 1}`}${read.shown ? html`, by <b>${verdict.winner}</b>${read.work.get(verdict.winner)?.model ? `, ${read.work.get(verdict.winner).model}` : ""}` : ""}</span>` : html`<span>${texts ? "Answers side by side" : "Made from several answers"}</span>`}
        ${verdict.content === null ? "" : html`<span class="acts"><${Copy} text=${() => document.querySelector("#verdict .md").innerText}>Copy text<//><${Copy} text=${verdict.content}>Copy Markdown<//></span>`}</div>
      ${texts ? texts.map((each) => html`<h3 key=${each.agent_id}>${read.name(each.agent_id)}</h3><${Markdown} text=${each.content} />`) : resource.strategy === "execute" ? html`<pre class="sh" tabindex="0" dir="auto"><code>${verdict.content}</code></pre>` : html`<${Markdown} big=${true} text=${verdict.content} />`}</div>
    <${Why} resource=${resource} read=${read} /></article>`;
}

function Ranking({ resource, read }) {
  const { verdict } = resource;
  if (!verdict?.ranking.length) return null;
  return html`<section class="block" id="ranking" aria-labelledby="rh"><header><h2 id="rh">Ranking</h2><p>${read.last.length ? "Each judge read the others’ candidates without names, in an order of its own." : "By the rule of the strategy."}</p></header>
    <div class="ranks"><div>${read.last.length ? html`<${Matrix} resource=${resource} read=${read} />` : html`<div class="scrollx" tabindex="0" role="region" aria-label="Ranking, table"><table><thead><tr><th scope="col">Rank</th><th scope="col">Candidate</th><th scope="col" class="num">Score</th><th scope="col" class="num">Tests</th></tr></thead><tbody>${verdict.ranking.map(({ agent_id: id, rank, score }) => {
      const checks = read.work.get(id)?.checks ?? [];
      return html`<tr key=${id}><td>${ordinal(rank)}</td><th scope="row"><span class=${`letter${id === verdict.winner ? " win" : ""}`}>${read.letter(id)}</span> ${read.shown ? id : ""}</th><td class="num">${score === null ? NONE : score.toFixed(2)}</td><td class="num">${checks.length ? `${checks.filter(({ passed }) => passed).length} of ${checks.length}` : NONE}</td></tr>`;
    })}</tbody></table></div>`}</div>
    <div><${Bump} resource=${resource} read=${read} /><${Tallies} resource=${resource} read=${read} /><${Pairs} read=${read} /></div></div></section>`;
}

const isRevised = ({ output, finished }) => output === "revision" && finished && !finished.problem;

/** The texts that each round of critiques changed, in words. */
function Rounds({ resource, council, read }) {
  const rounds = (council?.stages ?? []).filter(({ purpose }) => purpose === "critique").map(({ round }) => round);
  if (rounds.length === 0) return null;
  const content = (round) => resource.proposals.every(({ critiques }) => critiques.every((each) => each.round !== round || each.issues.every(({ severity }) => severity === "minor")));
  const changed = (round) => [...council.calls.values()].filter((call) => call.round === round && isRevised(call)).map(({ agent_id: id }) => read.name(id));
  return html`<ul class="changed">${rounds.map((round) => html`<li key=${round}><${Icon} name=${changed(round).length ? "swap" : "pause"} /><span>Round ${round} changed ${changed(round).length ? `the text of ${changed(round).sort().join(", ")}` : content(round) ? "no text: its critics found no major issue" : "no text"}.</span></li>`)}</ul>`;
}

/** The versions of a candidate, oldest first: those beside the best one, and the best one. */
function versionsOf(work, standing, council) {
  if (!work || work.content === null) return [];
  const version = standing?.version ?? work.revisions.length;
  const revised = council?.of(work.agent_id).filter(isRevised) ?? [];
  return [...work.revisions, { version, round: revised[version - 1]?.round ?? 0, content: work.content, responses: null }].sort((left, right) => left.version - right.version);
}

/** The author's responses to issues, from the recorded revisions: { agent: [[round, responses]] }. */
function useResponses(resource, council) {
  const [found, setFound] = useState(new Map());
  const revises = council?.stages.some(({ purpose }) => purpose === "revise");
  useEffect(() => {
    if (!revises) return;
    recorded(resource.id, { text: "raw", types: "call.finished" }).then(({ events }) => {
      const said = new Map();
      for (const event of events) {
        const call = council.calls.get(event.call_id);
        if (call?.output !== "revision" || event.text === null) continue;
        try {
          said.set(`${event.agent_id} ${call.round}`, JSON.parse(event.text).responses ?? []);
        } catch {
          // A lenient reading has no responses.
        }
      }
      setFound(said);
    }).catch(() => {});
  }, [resource.id, revises]);
  return found;
}

function Versions({ resource, read, council }) {
  const { verdict } = resource;
  const withTexts = resource.proposals.filter(({ content }) => content !== null);
  const [agent, setAgent] = useState(verdict?.winner ?? withTexts[0]?.agent_id);
  const responses = useResponses(resource, council);
  const work = read.work.get(agent);
  const versions = versionsOf(work, read.standing.get(agent), council);
  const [pair, setPair] = useState(null);
  const [left, right] = (pair !== null && pair.agent === agent ? pair.chosen : [0, versions.length - 1]).map((index) => versions[index]);
  const texts = useMemo(() => (left && right && left !== right ? difference(left.content, right.content) : null), [left?.content, right?.content]);
  if (withTexts.length === 0) return null;
  const choose = (side) => (event) => {
    const now0 = [versions.indexOf(left), versions.indexOf(right)];
    now0[side] = Number(event.target.value);
    setPair({ agent, chosen: now0 });
  };
  const named = ({ version, round }) => `version ${version + 1}${round ? `, round ${round}` : ""}`;
  const drawn = (kind) => html`<div class="md pre" dir="auto">${texts.filter(([each]) => each === "same" || each === kind).map(([each, text]) => (each === "same" ? text : each === "ins" ? html`<ins>${text}</ins>` : html`<del>${text}</del>`))}</div>`;
  return html`<section class="block" id="versions" aria-labelledby="vh"><header><h2 id="vh">Versions and critiques</h2><p>${versions.length > 1 ? "Each change, and the issues that asked for it." : "It was not revised; its critiques stand beside it."}</p><div class="row end wrapx">
      <select class="field" aria-label="Candidate" value=${agent} onChange=${(event) => setAgent(event.target.value)}>${withTexts.map(({ agent_id: id }) => html`<option value=${id}>${read.shown ? id : `Candidate ${read.letter(id)}`}</option>`)}</select>
      ${versions.length > 1 ? [left, right].map((each, side) => html`<select class="field" aria-label=${side ? "Right text" : "Left text"} value=${versions.indexOf(each)} onChange=${choose(side)}>${versions.map((one, index) => html`<option value=${index}>${named(one)}</option>`)}</select>`) : ""}</div></header>
    <${Rounds} resource=${resource} council=${council} read=${read} />
    <div class=${`diff${texts ? "" : " one"}`}>${texts ? html`<div><h3><span class="letter">${read.letter(agent)}</span>${title(named(left))}</h3>${drawn("del")}</div><div><h3><span class=${`letter${agent === verdict?.winner ? " win" : ""}`}>${read.letter(agent)}</span>${title(named(right))}${agent === verdict?.winner && right.responses === null ? ", verdict" : ""}</h3>${drawn("ins")}</div>`
      : html`<div><h3><span class="letter">${read.letter(agent)}</span>${versions.length ? `Version ${versions[0].version + 1}` : ""}</h3><${Markdown} text=${work?.content ?? ""} /></div>`}
      <div class="side-i"><h3>Issues that critics found</h3>${(work?.critiques ?? []).length === 0 ? html`<p class="small quiet">No critic read it.</p>` : ""}<ul class="issues">${(work?.critiques ?? []).map((critique) => {
        const answered = responses.get(`${agent} ${critique.round}`) ?? work.revisions.find(({ round }) => round === critique.round)?.responses ?? [];
        const before = work.critiques.filter(({ round }) => round === critique.round).slice(0, work.critiques.filter(({ round }) => round === critique.round).indexOf(critique)).reduce((sum, { issues }) => sum + issues.length, 0);
        return html`<li key=${`${critique.agent_id}${critique.round}`}><p class="muted">${read.name(critique.agent_id)} in round ${critique.round}: ${critique.verdict}${critique.issues.length ? "" : ", no issue"}</p>
          ${critique.issues.map((issue, index) => {
            const answer = answered.find(({ issue: number0 }) => number0 === before + index + 1);
            return html`<div class="issue" key=${index}><div class="row"><${Severity} level=${issue.severity} /></div><p dir="auto">“${issue.claim}” <span class="muted">${issue.where}</span></p><p dir="auto" class="muted">${issue.evidence} Fix: ${issue.fix}</p>${answer ? html`<p dir="auto">${answer.decision === "accept" ? "Accepted" : "Refused"}: ${answer.reason}</p>` : ""}</div>`;
          })}</li>`;
      })}</ul></div></div></section>`;
}

function Bill({ resource, council, read }) {
  const { by_stage: stages, by_agent: agents } = resource.usage;
  const purposes = [...new Set(stages.map(({ purpose }) => purpose))];
  const cross = new Map();
  for (const call of council?.calls.values() ?? []) {
    const key = `${call.agent_id} ${call.purpose}`;
    if (call.finished) cross.set(key, (cross.get(key) ?? 0) + tokensOf(call.finished.usage));
  }
  const most = Math.max(1, ...cross.values());
  const ofPurpose = (purpose) => stages.filter((each) => each.purpose === purpose);
  const sum = (items) => items.reduce((total, each) => total + tokensOf(each), 0);
  const models = new Map(resource.proposals.map(({ agent_id: id, model }) => [id, model]));
  const priced = resource.usage.cost !== null;
  const csv = () => {
    const rows = [["member", ...purposes, "cached_tokens", "tokens", "cost", "currency"], ...agents.map((each) => [each.agent_id, ...purposes.map((purpose) => cross.get(`${each.agent_id} ${purpose}`) ?? ""), each.cached_tokens, tokensOf(each), each.cost?.amount ?? "", each.cost?.currency ?? ""])];
    save(`${resource.id}-bill.csv`, "text/csv", rows.map((row) => row.join(",")).join("\n"));
  };
  return html`<section class="block" id="bill" aria-labelledby="bh"><header><h2 id="bh">Bill</h2><p>Tokens per member and stage, prompts and texts together. ${plural(resource.usage.calls, "call")}${resource.usage.cost?.unpriced_calls ? `, ${plural(resource.usage.cost.unpriced_calls, "of them")} without a price` : priced ? "" : "; the engines have no price"}.</p><button class="linked end body" onClick=${csv}>CSV</button></header>
    <div class="scrollx" tabindex="0" role="region" aria-label="Bill, table"><table class="bill"><thead><tr><th scope="col">Member</th>${purposes.map((purpose) => html`<th scope="col" class="num" key=${purpose}><span class=${`ph ${family(purpose)}`}>${purpose}</span></th>`)}<th scope="col" class="num">Cached</th><th scope="col" class="num">Tokens</th><th scope="col" class="num">Cost</th></tr></thead>
      <tbody>${agents.map((each) => html`<tr key=${each.agent_id}><th scope="row">${sentence(read.name(each.agent_id))}<small>${models.get(each.agent_id) ?? ""}</small></th>${purposes.map((purpose) => {
        const tokens = cross.get(`${each.agent_id} ${purpose}`);
        return html`<td class=${`num ${family(purpose)}`} key=${purpose}>${number(tokens)}${tokens ? html`<i class="hb" style=${{ "--v": `${((100 * tokens) / most).toFixed(0)}%` }} />` : ""}</td>`;
      })}<td class="num">${cachedShare(each)}</td><td class="num"><b>${number(tokensOf(each))}</b></td><td class="num">${money(each.cost)}</td></tr>`)}</tbody>
      <tfoot><tr><th scope="row">All</th>${purposes.map((purpose) => html`<td class="num" key=${purpose}>${number(sum(ofPurpose(purpose)))}</td>`)}<td class="num">${cachedShare(resource.usage)}</td><td class="num">${number(tokensOf(resource.usage))}</td><td class="num">${money(resource.usage.cost)}</td></tr></tfoot></table></div></section>`;
}

const FACTS_SHOWN = 12;
function Facts({ resource, council, read }) {
  const [shown, field] = useFiltered(council.events, read.name);
  const [all, setAll] = useState(false);
  const newest = shown.toReversed();
  return html`<section class="block" id="facts" aria-labelledby="fah"><header><h2 id="fah">Facts</h2><p>${plural(council.events.length, "event")} in the log; the seed was ${resource.seed}. Kept until ${new Date(resource.retention_until).toLocaleDateString("en-GB", { day: "numeric", month: "long", year: "numeric" })}.</p><div class="row end">${field}<button class="btn sm" onClick=${() => saveEvents(council, resource.id)}><${Icon} name="down" />NDJSON</button></div></header>
    <div class="scrollx" tabindex="0" role="region" aria-label="Facts, table"><table class="factlist"><thead><tr><th scope="col" class="when">At</th><th scope="col" class="type">Type</th><th scope="col">What happened</th><th scope="col" class="num">Cursor</th></tr></thead><tbody>${(all ? newest : newest.slice(0, FACTS_SHOWN)).map((event) => html`<tr key=${event.id}><td class="muted">${since(council, event)} s</td><td><code>${event.type}</code></td><td dir="auto">${told(event, read.name)}</td><td class="num muted mono">${event.id}</td></tr>`)}</tbody></table></div>
    ${!all && newest.length > FACTS_SHOWN ? html`<p class="foot"><button class="linked" onClick=${() => setAll(true)}>All ${number(newest.length)}</button></p>` : ""}</section>`;
}

function jump(event, id) {
  event.preventDefault();
  const target = document.getElementById(id);
  target?.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  target?.setAttribute("tabindex", "-1");
  target?.focus({ preventScroll: true });
}

/** The body of a request that asks the same. */
const sameBody = ({ task, agents, strategy, parameters, rounds, seed, evidence, workspace }) => ({
  task, agents: counted(agents), strategy, parameters, seed, ...(rounds > 1 ? { rounds } : {}), ...(evidence.length ? { evidence: evidence.map(({ id, title: name, text, source }) => ({ id, title: name, text, source })) } : {}),
  ...(workspace?.git ? { workspace: { git: workspace.git, ref: workspace.ref } } : {}),
});

export function Done({ resource, council }) {
  const read = reading(resource, council);
  const winner = resource.verdict?.winner;
  const seats = resource.agents.map(({ agent_id: id, role }) => ({ name: initials(role), fill: read.work.get(id)?.status === "answered" ? "full" : "rest" }));
  const sections = [["verdict", "Verdict"], ...(resource.verdict?.ranking.length ? [["ranking", "Ranking"]] : []), ["versions", "Versions"], ...(council ? [["replay", "Replay"]] : []), ["bill", "Bill"], ...(council ? [["facts", "Facts"]] : [])];
  return html`<div class="wrap" data-done=${resource.id} data-winner=${winner}>
    <${Head} resource=${resource} seats=${seats} label=${`${plural(seats.length, "seat")}, ${seats.filter(({ fill }) => fill === "full").length} with an answer that counted`} actions=${html`
      ${may("submit") ? html`<a class="btn" href=${address("new", { from: resource.id })}><${Icon} name="again" />Run again</a>` : ""}<${Copy} small=${false} text=${() => CLIENTS.curl(sameBody(resource))}>Copy as curl<//>
      <details class="menu"><summary class="btn"><${Icon} name="down" />Save</summary><div><button onClick=${() => download(resource)}>One page (HTML)</button><button onClick=${() => save(`${resource.id}.md`, "text/markdown", transcript(resource))}>Transcript (Markdown)</button><button onClick=${() => save(`${resource.id}.json`, "application/json", JSON.stringify(resource, null, 2))}>Resource (JSON)</button></div></details>`} />
    <${Degraded} resource=${resource} />
    <div class="jumpbar"><nav class="jump" aria-label="On this page">${sections.map(([id, word]) => html`<a key=${id} href=${`#${id}`} onClick=${(event) => jump(event, id)}>${word}</a>`)}</nav>
      <label class="switch"><input type="checkbox" role="switch" checked=${read.shown} onChange=${(event) => { revealed.value = event.target.checked ? "on" : "off"; }} /><i></i><span><span class="long">Reveal names</span><span class="short">Names</span></span></label></div>
    <${Verdict} resource=${resource} read=${read} /><${Ranking} resource=${resource} read=${read} /><${Versions} resource=${resource} read=${read} council=${council} />
    ${council ? html`<${Replay} resource=${resource} council=${council} read=${read} />` : ""}<${Bill} resource=${resource} council=${council} read=${read} />${council ? html`<${Facts} resource=${resource} council=${council} read=${read} />` : html`<section class="block"><p class="quiet">The facts of this deliberation are past their retention; ballots and replay went with them.</p></section>`}</div>`;
}
