/** A finished deliberation: the verdict and why it won first, then the ranking, the evidence, the bill, and the facts. */

import { actionJson, Answer, visible } from "./actions.js";
import { Bill } from "./bill.js";
import { asRequested } from "./conversation.js";
import { download, transcript } from "./export.js";
import { asAsked, wholeTask } from "./files.js";
import { request } from "./gateway.js";
import { Head } from "./head.js";
import { html, useState } from "./html.js";
import { CLIENTS } from "./new.js";
import { Copy, counted, Figures, Icon, initials, Note, save, Seats, Sure, tell } from "./parts.js";
import { Bump, Criteria, Matrix, Pairs, Tallies } from "./ranking.js";
import { compared, reading } from "./reading.js";
import { Replay } from "./replay.js";
import { address, go } from "./router.js";
import { agreementInWords, citedInWords, ending, proposersInWords, shortcomings, standsIn, verdictFigures, whatExpired, whatFailed, whoAnswered, whyFirst } from "./sentences.js";
import { may, revealed } from "./state.js";
import { Versions } from "./versions.js";
import { saveEvents, since, told, useFiltered } from "./waterfall.js";
import { NONE, number, ordinal, plural, sentence, title } from "./words.js";

const SENTENCES_MAX = 4;

/** The first sentences, and the others behind a click. */
function Sentences({ items }) {
  if (items.length === 0) return null;
  const [shown, others] = [items.slice(0, SENTENCES_MAX), items.slice(SENTENCES_MAX)];
  return html`<ul class="said">${shown.map((words) => html`<li key=${words} dir="auto">${words}</li>`)}</ul>${others.length ? html`<details><summary>${number(others.length)} more</summary><ul class="said">${others.map((words) => html`<li key=${words} dir="auto">${words}</li>`)}</ul></details>` : ""}`;
}

function Shortfall({ resource, council, read }) {
  const again = may("submit") ? html`<a class="btn sm" href=${address("new", { from: resource.id })}>Run again</a>` : null;
  if (resource.degraded) return html`<${Note} tone="warn" head="Degraded." action=${again}><${Sentences} items=${shortcomings(resource, council, read.name)} /><//>`;
  const end = ending(resource);
  if (end === null) return null;
  return html`<${Note} tone=${resource.status === "failed" ? "bad" : "warn"} head=${end.head} action=${again}>${end.words}<//>`;
}

function Minority({ resource, read }) {
  return resource.verdict.dissent.map(({ agent_id: judge, preferred }) => {
    const ballot = read.last.find((cast) => cast.judge === judge);
    const of = (agent) => ballot?.candidates.find((candidate) => candidate.agent === agent && candidate.version === read.standing.get(agent)?.version);
    const [theirs, winners] = [of(preferred), of(resource.verdict.winner)];
    // Of the criteria, the one that speaks most for the other candidate.
    const gap = ({ id, score }) => score - (winners?.criteria.find((criterion) => criterion.id === id)?.score ?? score);
    const strongest = [...(theirs?.criteria ?? [])].sort((left, right) => gap(right) - gap(left))[0];
    return html`<div class="minority" key=${judge}><h3><${Icon} name="people" /><span>Minority report: ${read.judge(judge)} prefers ${read.name(preferred)}</span></h3>
      ${strongest ? html`<blockquote dir="auto">“${strongest.rationale}”</blockquote>` : ""}
      ${theirs && winners ? html`<p class="small quiet">It gave ${read.name(preferred)} ${theirs.mean.toFixed(1)} and ${read.name(resource.verdict.winner)} ${winners.mean.toFixed(1)}${strongest ? `; on ${title(strongest.id).toLowerCase()} ${strongest.score}` : ""}. <a class="link" href="#ranking" onClick=${(event) => jump(event, "ranking")}>Its whole ballot</a></p>` : ""}</div>`;
  });
}

function Why({ resource, read }) {
  const { verdict } = resource;
  if (verdict.winner === null) return html`<aside class="why" aria-label="Why there is no winner"><div><h3>No winner</h3><p>${resource.strategy === "independent" ? "The answers stand side by side: this strategy ranks nothing." : "The text is made from several answers, and no single one won."}</p></div></aside>`;
  const instead = standsIn(verdict);
  const head = instead ? "Why no answer stands" : compared(verdict) ? "Why it won" : "Why this answer";
  const said = [agreementInWords(resource), ...(instead ? [] : whyFirst(resource, read))].filter(Boolean);
  const seats = read.firsts.map(({ chosen, could }) => (could(verdict.winner) ? { name: chosen.length === 1 ? read.letter(chosen[0]) : "=", fill: chosen.includes(verdict.winner) ? (chosen.length === 1 ? "full" : "half") : "ring" } : { name: "–", fill: "rest" }));
  const of = (fill) => seats.filter((seat) => seat.fill === fill).length;
  return html`<aside class="why" aria-label=${head}><div><h3>${head}</h3><div class="ballots">${seats.length ? html`<figure><${Seats} width=${116} seats=${seats} label=${`First places: ${of("full")} of ${plural(seats.length, "judge")} for it alone, ${of("half")} for it and another; ${of("rest")} could not rank it`} /><figcaption>first places</figcaption></figure>` : ""}
      <div>${said.map((words) => html`<p key=${words} dir="auto">${words}</p>`)}</div></div></div>
    <${Figures} label="Figures of the verdict" items=${verdictFigures(resource, read)} /><${Criteria} resource=${resource} read=${read} /><${Minority} resource=${resource} read=${read} /></aside>`;
}

/** The verdict's answer: its calls as they are, a program as code, and a dissent in place of an answer without marks. */
function Decided({ resource: { verdict, strategy } }) {
  if (standsIn(verdict)) return html`<div class="md big pre" dir="auto">${visible(verdict.content)}</div>`;
  return html`<${Answer} big=${true} content=${verdict.content} action=${verdict.action} code=${strategy === "execute"} />`;
}

/** What copies the verdict's answer: calls as JSON or as they are written in programs, a text with its marks or without. */
function Copies({ verdict: { action, content } }) {
  if (action?.calls) return html`<span class="acts"><${Copy} text=${actionJson(action, content)}>Copy JSON<//><${Copy} text=${content}>Copy as calls<//></span>`;
  return html`<span class="acts"><${Copy} text=${() => document.querySelector("#verdict .md, #verdict pre").innerText}>Copy text<//><${Copy} text=${content}>Copy Markdown<//></span>`;
}

function Author({ verdict, read }) {
  const { winner } = verdict;
  const version = read.standing.get(winner)?.version;
  if (standsIn(verdict)) return html`<span>In place of an answer: too few members agree</span>`;
  if (winner === null) return html`<span>${verdict.content === null ? "Answers side by side" : "Made from several answers"}</span>`;
  return html`<span class=${`letter${compared(verdict) ? " win" : ""}`}>${read.letter(winner)}</span><span>Candidate ${read.letter(winner)}${version === undefined ? "" : `, version ${version + 1}`}${read.shown ? html`, by <b>${winner}</b>${read.work.get(winner)?.model ? `, ${read.work.get(winner).model}` : ""}` : ""}</span>`;
}

function NoVerdict({ resource, council, read }) {
  return html`<article class="verdict none" id="verdict"><div><h2>No verdict</h2><p class="quiet">${whoAnswered(resource, read.name)}</p>
    <${Sentences} items=${whatFailed(resource, council, read.name)} /></div></article>`;
}

function Verdict({ resource, council, read }) {
  const { verdict, strategy } = resource;
  if (verdict === null || (verdict.content === null && verdict.winner === null && strategy !== "independent")) return html`<${NoVerdict} resource=${resource} council=${council} read=${read} />`;
  const texts = verdict.content === null ? resource.proposals.filter(({ content }) => content) : null;
  return html`<article class="verdict" id="verdict"><div><h2 class="vh">Verdict</h2><div class="by"><${Author} verdict=${verdict} read=${read} />${verdict.content === null ? "" : html`<${Copies} verdict=${verdict} />`}</div>
      ${texts ? texts.map((proposal) => html`<h3 key=${proposal.agent_id}>${sentence(read.name(proposal.agent_id))}</h3><${Answer} content=${proposal.content} action=${proposal.action} />`) : html`<${Decided} resource=${resource} />`}<${Sentences} items=${[proposersInWords(resource, read.name), ...citedInWords(verdict)].filter(Boolean)} />
      ${resource.constraints.actions ? html`<div class="counted"><${Tallies} resource=${resource} read=${read} /></div>` : ""}</div>
    <${Why} resource=${resource} read=${read} /></article>`;
}

function Standings({ resource, read }) {
  const { verdict } = resource;
  return html`<div class="scrollx" tabindex="0" role="region" aria-label="Ranking, table"><table><thead><tr><th scope="col">Rank</th><th scope="col">Candidate</th><th scope="col" class="num">Score</th><th scope="col" class="num">Tests</th></tr></thead><tbody>${verdict.ranking.map(({ agent_id: id, rank, score }) => {
    const checks = read.work.get(id)?.checks ?? [];
    return html`<tr key=${id}><td>${ordinal(rank)}</td><th scope="row"><span class=${`letter${id === verdict.winner ? " win" : ""}`}>${read.letter(id)}</span> ${read.shown ? id : ""}</th><td class="num">${score === null ? NONE : score.toFixed(2)}</td><td class="num">${checks.length ? `${checks.filter(({ passed }) => passed).length} of ${checks.length}` : NONE}</td></tr>`;
  })}</tbody></table></div>`;
}

function Ranking({ resource, read }) {
  return html`<section class="block" id="ranking" aria-labelledby="rh"><header><h2 id="rh">Ranking</h2><p>${read.last.length ? "Each judge read the others’ candidates without names, in an order of its own." : "By the rule of the strategy."}</p></header>
    <div class="ranks"><div>${read.last.length ? html`<${Matrix} resource=${resource} read=${read} />` : html`<${Standings} resource=${resource} read=${read} />`}</div>
    <div><${Bump} resource=${resource} read=${read} />${resource.constraints.actions ? "" : html`<${Tallies} resource=${resource} read=${read} />`}<${Pairs} read=${read} /></div></div></section>`;
}

const FACTS_SHOWN = 12;

/** Deletes the deliberation, and goes back to the list. */
function Deletion({ id }) {
  const [fault, setFault] = useState("");
  const remove = async () => {
    try {
      await request(`/deliberations/${encodeURIComponent(id)}`, { method: "DELETE" });
      tell("Deleted.");
      go(address("deliberations"));
    } catch (error) {
      setFault(error.message);
    }
  };
  return html`<${Sure} class="btn sm danger" word="Delete" question="For good?" onSure=${remove} />${fault ? html`<p class="fault" role="alert">${fault}</p>` : ""}`;
}

function Facts({ resource, council, read }) {
  const [shown, field] = useFiltered(council.events, read.name);
  const [all, setAll] = useState(false);
  const newest = shown.toReversed();
  const kept = new Date(resource.retention_until).toLocaleDateString("en-GB", { day: "numeric", month: "long", year: "numeric" });
  return html`<section class="block" id="facts" aria-labelledby="fah"><header><h2 id="fah">Facts</h2><p>${plural(council.facts, "fact")} in the log; the seed was ${resource.seed}. Kept until ${kept}. ${whatExpired(council)}</p><div class="row end">${field}<button class="btn sm" onClick=${() => saveEvents(council, resource.id)}><${Icon} name="down" />NDJSON</button>${may("submit") ? html`<${Deletion} id=${resource.id} />` : ""}</div></header>
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
const sameBody = ({ task, turns, agents, strategy, parameters, rounds, seed, constraints, evidence, workspace }) => ({
  ...asRequested({ task, turns }), agents: counted(agents), strategy, parameters, seed, ...(constraints.actions ? { actions: constraints.actions } : {}), ...(rounds > 1 ? { rounds } : {}), ...(evidence.length ? { evidence: evidence.map(asAsked) } : {}),
  ...(workspace?.git ? { workspace: { git: workspace.git, ref: workspace.ref } } : {}),
});

function Saved({ resource }) {
  return html`<details class="menu"><summary class="btn"><${Icon} name="down" />Save</summary><div><button onClick=${() => download(resource)}>One page (HTML)</button><button onClick=${() => save(`${resource.id}.md`, "text/markdown", transcript(resource))}>Transcript (Markdown)</button><button onClick=${() => save(`${resource.id}.json`, "application/json", JSON.stringify(resource, null, 2))}>Resource (JSON)</button></div></details>`;
}

export function Done({ resource, council }) {
  const read = reading(resource, council, revealed.value === "on");
  const ranked = resource.verdict !== null && compared(resource.verdict);
  const seats = resource.agents.map(({ agent_id: id, role }) => ({ name: initials(role), fill: read.work.get(id)?.status === "answered" ? "full" : "rest" }));
  const sections = [["verdict", "Verdict"], ...(ranked ? [["ranking", "Ranking"]] : []), ...(resource.proposals.some(({ content }) => content !== null) ? [["versions", "Answers"]] : []), ...(council ? [["replay", "Replay"]] : []), ["bill", "Bill"], ...(council ? [["facts", "Facts"]] : [])];
  return html`<div class="wrap" data-done=${resource.id} data-winner=${resource.verdict?.winner}>
    <${Head} resource=${resource} seats=${seats} label=${`${plural(seats.length, "seat")}. ${whoAnswered(resource, read.name)}`} actions=${html`
      ${may("submit") ? html`<a class="btn" href=${address("new", { from: resource.id })}><${Icon} name="again" />Run again</a>` : ""}<${Copy} small=${false} text=${async () => CLIENTS.curl(sameBody({ ...resource, task: await wholeTask(resource) }))}>Copy as curl<//><${Saved} resource=${resource} />`} />
    <${Shortfall} resource=${resource} council=${council} read=${read} />
    <div class="jumpbar"><nav class="jump" aria-label="On this page">${sections.map(([id, word]) => html`<a key=${id} href=${`#${id}`} onClick=${(event) => jump(event, id)}>${word}</a>`)}</nav>
      <label class="switch"><input type="checkbox" role="switch" checked=${read.shown} onChange=${(event) => { revealed.value = event.target.checked ? "on" : "off"; }} /><i></i><span><span class="long">Reveal names</span><span class="short">Names</span></span></label></div>
    <${Verdict} resource=${resource} council=${council} read=${read} />${ranked ? html`<${Ranking} resource=${resource} read=${read} />` : ""}<${Versions} resource=${resource} read=${read} council=${council} ranked=${ranked} />
    ${council ? html`<${Replay} resource=${resource} council=${council} read=${read} />` : ""}<${Bill} resource=${resource} council=${council} read=${read} />${council ? html`<${Facts} resource=${resource} council=${council} read=${read} />` : html`<section class="block"><p class="quiet">The facts of this deliberation are past their retention; ballots and replay went with them.</p></section>`}</div>`;
}
