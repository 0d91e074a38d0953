/** The versions of a candidate with its critiques, or two candidates' answers side by side. */

import { Answer } from "./actions.js";
import { fateOf } from "./council.js";
import { difference, linesOf } from "./diff.js";
import { recorded } from "./gateway.js";
import { html, useEffect, useMemo, useState } from "./html.js";
import { Icon, Severity } from "./parts.js";
import { roundsInWords } from "./sentences.js";
import { NONE, ordinal, title } from "./words.js";

function Rounds({ resource, council, read }) {
  const rounds = roundsInWords(resource, council, read.name);
  if (rounds.length === 0) return null;
  return html`<ul class="changed">${rounds.map(([round, changed, words]) => html`<li key=${round}><${Icon} name=${changed ? "swap" : "pause"} /><span>${words}</span></li>`)}</ul>`;
}

/** The versions of a candidate, oldest first: those beside the best one, and the best one. */
function versionsOf(work, standing, council) {
  if (!work || work.content === null) return [];
  const version = standing?.version ?? work.revisions.length;
  const revised = (council?.of(work.agent_id) ?? []).filter((call) => call.output === "revision" && fateOf(call, council) === "answered");
  return [...work.revisions, { version, round: revised[version - 1]?.round ?? 0, content: work.content, action: work.action, responses: null }].sort((left, right) => left.version - right.version);
}

/** The author's responses to issues, from the recorded revisions: { agent: [[round, responses]] }. */
function useResponses(resource, council) {
  const [responses, setResponses] = useState(new Map());
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
      setResponses(said);
    }).catch(() => {});
  }, [resource.id, revises]);
  return responses;
}

const Side = ({ parts, side, code }) => html`<div class="md pre">${linesOf(parts, side, code).map(({ code: within, pieces }, index) => html`
  <div key=${index} data-code=${within ? "" : null} dir=${within ? "ltr" : "auto"}>${pieces.map(([kind, text]) => (kind === "same" ? text : kind === "ins" ? html`<ins>${text}</ins>` : html`<del>${text}</del>`))}${"\n"}</div>`)}</div>`;

const named = ({ version, round }) => `version ${version + 1}${round ? `, round ${round}` : ""}`;

const Letter = ({ agent, read, winner }) => html`<span class=${`letter${agent === winner ? " win" : ""}`}>${read.letter(agent)}</span>`;

function Issues({ work, responses, read }) {
  const { critiques, revisions, agent_id: agent } = work;
  return html`<div class="side-i"><h3>Issues that critics found</h3>${critiques.length === 0 ? html`<p class="small quiet">No critique of it counts.</p>` : ""}<ul class="issues">${critiques.map((critique) => {
    const answered = responses.get(`${agent} ${critique.round}`) ?? revisions.find(({ round }) => round === critique.round)?.responses ?? [];
    const ofRound = critiques.filter(({ round }) => round === critique.round);
    const before = ofRound.slice(0, ofRound.indexOf(critique)).reduce((sum, { issues }) => sum + issues.length, 0);
    return html`<li key=${`${critique.agent_id}${critique.round}`}><p class="muted">${read.name(critique.agent_id)} in round ${critique.round}: ${critique.verdict}${critique.issues.length ? "" : ", no issue"}</p>
      ${critique.issues.map((issue, index) => {
        const answer = answered.find(({ issue: place }) => place === before + index + 1);
        return html`<div class="issue" key=${index}><div class="row"><${Severity} level=${issue.severity} /></div><p dir="auto">“${issue.claim}” <span class="muted">${issue.where}</span></p><p dir="auto" class="muted">${issue.evidence} Fix: ${issue.fix}</p>${answer ? html`<p dir="auto">${answer.decision === "accept" ? "Accepted" : "Refused"}: ${answer.reason}</p>` : ""}</div>`;
      })}</li>`;
  })}</ul></div>`;
}

/** Both candidates' figures, criterion by criterion. */
function Measures({ works, read, ranked }) {
  const ids = works[0].criteria.map(({ id }) => id);
  const of = ({ criteria }, id) => criteria.find((criterion) => criterion.id === id)?.score.toFixed(1) ?? NONE;
  const passed = ({ checks }) => (checks.length ? `${checks.filter((check) => check.passed).length} of ${checks.length}` : NONE);
  const rows = [
    ...(ranked ? [["Rank", (work) => (work.rank === null ? NONE : ordinal(work.rank))], ["Score", ({ score }) => (score === null ? NONE : score.toFixed(2))]] : []),
    ...ids.map((id) => [title(id), (work) => of(work, id)]), ...(works.some(({ checks }) => checks.length) ? [["Tests", passed]] : []),
  ];
  return html`<div class="side-i"><h3>How they compare</h3>${rows.length ? html`<table><thead><tr><th scope="col"><span class="vh">Figure</span></th>${works.map(({ agent_id: id }) => html`<th scope="col" class="num" key=${id}>${read.letter(id)}</th>`)}</tr></thead><tbody>${rows.map(([word, write]) => html`<tr key=${word}><th scope="row">${word}</th>${works.map((work) => html`<td class="num" key=${work.agent_id}>${write(work)}</td>`)}</tr>`)}</tbody></table>` : html`<p class="small quiet">No score, vote or test compares them.</p>`}</div>`;
}

export function Versions({ resource, read, council, ranked }) {
  const { verdict, strategy } = resource;
  const withTexts = resource.proposals.filter(({ content }) => content !== null);
  const [agent, setAgent] = useState(verdict?.winner ?? withTexts[0]?.agent_id);
  const [beside, setBeside] = useState("");
  const [pair, setPair] = useState(null);
  const responses = useResponses(resource, council);
  const work = read.work.get(agent);
  const other = beside !== agent && withTexts.find(({ agent_id: id }) => id === beside);
  const versions = versionsOf(work, read.standing.get(agent), council);
  const [left, right] = (pair !== null && pair.agent === agent ? pair.chosen : [0, versions.length - 1]).map((index) => versions[index]);
  const parts = useMemo(() => (left && right && left !== right ? difference(left.content, right.content) : null), [left?.content, right?.content]);
  if (withTexts.length === 0) return null;
  const code = strategy === "execute" || Boolean(left?.action?.calls ?? right?.action?.calls);
  const winner = verdict?.winner;
  const choose = (side) => (event) => {
    const chosen = [versions.indexOf(left), versions.indexOf(right)];
    chosen[side] = Number(event.target.value);
    setPair({ agent, chosen });
  };
  const option = ({ agent_id: id }) => html`<option key=${id} value=${id}>${read.shown ? id : `Candidate ${read.letter(id)}`}</option>`;
  const revised = versions.length > 1;
  const words = other ? "Two answers side by side." : revised ? "Each change, and the issues that asked for it." : "It was not revised; its critiques stand beside it.";
  const whole = ({ agent_id: of, content, action }) => html`<div key=${of}><h3><${Letter} agent=${of} read=${read} winner=${winner} />${read.shown ? of : `Candidate ${read.letter(of)}`}</h3><${Answer} content=${content} action=${action} code=${strategy === "execute"} /></div>`;
  return html`<section class="block" id="versions" aria-labelledby="vh"><header><h2 id="vh">Answers and critiques</h2><p>${words}</p><div class="row end wrapx">
      <select class="field" aria-label="Candidate" value=${agent} onChange=${(event) => setAgent(event.target.value)}>${withTexts.map(option)}</select>
      ${withTexts.length > 1 ? html`<select class="field" aria-label="Compare with" value=${other ? beside : ""} onChange=${(event) => setBeside(event.target.value)}><option value="">Compare with …</option>${withTexts.filter(({ agent_id: id }) => id !== agent).map(option)}</select>` : ""}
      ${revised && !other ? [left, right].map((text, side) => html`<select class="field" aria-label=${side ? "Right text" : "Left text"} value=${versions.indexOf(text)} onChange=${choose(side)}>${versions.map((one, index) => html`<option value=${index}>${named(one)}</option>`)}</select>`) : ""}</div></header>
    ${other ? "" : html`<${Rounds} resource=${resource} council=${council} read=${read} />`}
    <div class=${`diff${parts || other ? "" : " one"}`}>${other ? [whole(work), whole(other)]
      : parts ? html`<div><h3><span class="letter">${read.letter(agent)}</span>${title(named(left))}</h3><${Side} parts=${parts} side="del" code=${code} /></div><div><h3><${Letter} agent=${agent} read=${read} winner=${winner} />${title(named(right))}${agent === winner && right.responses === null ? ", verdict" : ""}</h3><${Side} parts=${parts} side="ins" code=${code} /></div>`
        : html`<div><h3><${Letter} agent=${agent} read=${read} winner=${winner} />${versions.length ? `Version ${versions[0].version + 1}` : ""}</h3><${Answer} content=${work?.content ?? ""} action=${work?.action} code=${strategy === "execute"} /></div>`}
      ${other ? html`<${Measures} works=${[work, other]} read=${read} ranked=${ranked} />` : html`<${Issues} work=${work} responses=${responses} read=${read} />`}</div></section>`;
}
