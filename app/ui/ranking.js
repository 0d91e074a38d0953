/** How the candidates were judged: by criterion, judge by judge, over the rounds, in groups and in pairs. */

import { visible } from "./actions.js";
import { html, useState } from "./html.js";
import { Icon } from "./parts.js";
import { compared, firsts } from "./reading.js";
import { NONE, number, ordinal, plural, sentence, title } from "./words.js";

const SCALE = 10;

export function Criteria({ resource, read }) {
  const winner = read.work.get(resource.verdict.winner);
  if (!winner?.criteria.length) return null;
  const all = resource.proposals.flatMap(({ agent_id: id, criteria }) => criteria.map((each) => ({ ...each, agent: id })));
  const low = Math.max(0, Math.floor(Math.min(...all.map(({ score }) => score))) - 1);
  const x = (score) => `${((100 * (score - low)) / (SCALE - low)).toFixed(1)}%`;
  return html`<div><h3>By criterion <span class="muted plain">filled: ${read.letter(winner.agent_id)}, open: the others, scale ${low} to ${SCALE}</span></h3><div class="crit">${winner.criteria.map(({ id, score }) => html`
    <span title=${resource.constraints.rubric.find((each) => each.id === id)?.description}>${title(id)}</span><span class="dots" aria-hidden="true">${all.filter((each) => each.id === id && each.agent !== winner.agent_id).map((each) => html`<i style=${{ "--x": x(each.score) }} />`)}<i class="w" style=${{ "--x": x(score) }} /></span><b>${score.toFixed(1)}</b>`)}</div></div>`;
}

/** A judge's candidates in their final versions, best first, with the score by `criterion` ("" is the weighted mean). */
function ordered(ballot, read, criterion) {
  const score = ({ mean, criteria }) => (criterion === "" ? mean : criteria.find(({ id }) => id === criterion)?.score ?? null);
  return ballot.candidates.filter(({ agent, version }) => version === read.standing.get(agent)?.version)
    .map((each) => ({ ...each, score: score(each) })).filter((each) => each.score !== null).sort((left, right) => right.score - left.score);
}

export function Matrix({ resource, read }) {
  const [criterion, setCriterion] = useState("");
  const [open, setOpen] = useState(null);
  const { ranking, winner } = resource.verdict;
  const ids = resource.constraints.rubric.map(({ id }) => id);
  const rows = read.last.map((ballot) => ({ ballot, scored: ordered(ballot, read, criterion) }));
  const mean = (agent) => {
    const scores = rows.flatMap(({ scored }) => scored.filter((candidate) => candidate.agent === agent).map(({ score }) => score));
    return scores.length ? (scores.reduce((sum, score) => sum + score, 0) / scores.length).toFixed(2) : NONE;
  };
  const version = (agent) => (ranking.some((place) => place.version) ? ` v${read.standing.get(agent).version + 1}` : "");
  const chosen = open && rows.find(({ ballot }) => ballot.judge === open.judge)?.scored.find(({ agent }) => agent === open.agent);
  return html`<div class="row seg-row"><div class="seg" role="group" aria-label="Criterion">${["", ...ids].map((id) => html`<button key=${id} aria-pressed=${id === criterion} onClick=${() => setCriterion(id)}>${id === "" ? "All" : title(id)}</button>`)}</div></div>
    <div class="scrollx" tabindex="0" role="region" aria-label="Ballots, table"><table class="matrix" style=${{ "--n": ranking.length }}><caption class="vh">Scores: judges in rows, candidates in columns, best first</caption>
      <thead><tr><th scope="col"><span class="vh">Judge</span></th>${ranking.map(({ agent_id: id }) => html`<th scope="col" key=${id}><span class=${`letter${id === winner ? " win" : ""}`}>${read.letter(id)}</span><span class="muted small">${version(id)}</span>${read.shown ? html`<span class="name">${id}</span><span class="model">${read.work.get(id)?.model ?? ""}</span>` : ""}</th>`)}</tr></thead>
      <tbody>${rows.map(({ ballot, scored }) => html`<tr key=${ballot.judge}><th scope="row">${read.shown ? ballot.judge : read.judge(ballot.judge).replace("judge", "Judge")}</th>${ranking.map(({ agent_id: id }) => {
        if (id === ballot.judge) return html`<td key=${id} class="own" title="No agent judges its own candidate">${read.shown ? "its own" : "recused"}</td>`;
        const one = scored.find(({ agent }) => agent === id);
        if (!one) return html`<td key=${id} class="own">not shown</td>`;
        const rank = scored.filter(({ score }) => score > one.score).length + 1;
        return html`<td key=${id} class=${rank === 1 ? "first" : ""} style=${{ "--p": Math.round(Math.max(0, one.score - 4) * 6) }}><button aria-expanded=${chosen === one} title="Show the reasons" onClick=${() => setOpen(chosen === one ? null : { judge: ballot.judge, agent: id })}><b>${one.score.toFixed(1)}</b><small>${ordinal(rank)}${read.shown ? html`<span class="o">, seen as ${one.letter}</span>` : ""}</small></button></td>`;
      })}</tr>`)}</tbody>
      <tfoot><tr><th scope="row">Mean, of 10</th>${ranking.map(({ agent_id: id }) => html`<td key=${id}>${mean(id)}</td>`)}</tr><tr><th scope="row">Score, 0 to 1</th>${ranking.map(({ agent_id: id, score }) => html`<td key=${id}>${score === null ? NONE : score.toFixed(2)}</td>`)}</tr></tfoot></table></div>
    ${chosen ? html`<div class="minority reasons" role="region" aria-label="Reasons"><h3><span>${read.judge(open.judge)} on ${read.name(open.agent)}${version(open.agent).replace(" v", ", version ")}</span></h3><dl class="given">${chosen.criteria.map(({ id, score, rationale }) => html`<dt key=${id}>${title(id)} ${score}</dt><dd dir="auto">${rationale}</dd>`)}</dl></div>` : html`<p class="foot">Choose a cell to read its judge’s reasons.</p>`}`;
}

/** The candidates' ranks and the judges' first choices over the rounds: columns of { word, ranks: Map(agent → rank), firsts }. */
function columns(resource, read) {
  const byMean = (word, cast, versionOf) => {
    const sums = new Map();
    for (const { candidates } of cast) {
      for (const { agent, version, mean } of candidates) {
        if (version === versionOf(agent, candidates)) sums.set(agent, [...(sums.get(agent) ?? []), mean]);
      }
    }
    const means = [...sums].map(([agent, all]) => [agent, all.reduce((sum, each) => sum + each, 0) / all.length]);
    return { word, ranks: new Map(means.map(([agent, mean]) => [agent, means.filter(([, other]) => other > mean).length + 1])), firsts: firsts(cast, versionOf) };
  };
  const newest = (agent, candidates) => Math.max(...candidates.filter((each) => each.agent === agent).map(({ version }) => version));
  const final = { word: "Verdict", ranks: new Map(resource.verdict.ranking.map(({ agent_id: id, rank }) => [id, rank])), firsts: read.firsts };
  const cast = read.stages[0]?.cast ?? [];
  const revised = cast.some(({ candidates }) => candidates.some(({ version }) => version > 0) && candidates.some(({ version }) => version === 0));
  return [...(revised ? [byMean("Drafts", cast, () => 0)] : []), ...read.stages.slice(0, -1).map((each) => byMean(`Round ${each.round}`, each.cast, newest)), final];
}

export function Bump({ resource, read }) {
  const [table, setTable] = useState(false);
  const shown = columns(resource, read);
  const agents = resource.verdict.ranking.map(({ agent_id: id }) => id).filter((id) => shown.every(({ ranks }) => ranks.has(id)));
  if (shown.length < 2) return read.last.length ? html`<h3>Who changed their mind</h3><p class="body quiet">Each judge voted once, on texts that nobody had revised.</p>` : null;
  const { winner } = resource.verdict;
  const x = (index) => 60 + (300 * index) / (shown.length - 1);
  // Equal ranks stand close together, in the order of the letters.
  const y = (id, index) => {
    const { ranks } = shown[index];
    const equal = agents.filter((other) => ranks.get(other) === ranks.get(id)).map(read.letter).sort();
    return 44 + 50 * (ranks.get(id) - 1) + 24 * equal.indexOf(read.letter(id));
  };
  const words = agents.map((id) => `${read.letter(id)} ${shown.map(({ ranks }) => ranks.get(id)).join(", ")}`).join("; ");
  const before = new Map(shown[0].firsts.map(({ judge, chosen }) => [judge, chosen]));
  const voted = shown.at(-1).firsts.filter(({ judge, chosen }) => chosen.length && before.get(judge)?.length);
  const moved = voted.filter(({ judge, chosen }) => chosen.join() !== before.get(judge).join());
  const names = (chosen) => chosen.map(read.name).join(" and ");
  return html`<h3>Who changed their mind</h3>${table ? html`<table><thead><tr><th scope="col">Candidate</th>${shown.map(({ word }) => html`<th scope="col" class="num">${word}</th>`)}</tr></thead><tbody>${agents.map((id) => html`<tr key=${id}><th scope="row">${read.name(id)}</th>${shown.map(({ ranks }) => html`<td class="num">${ordinal(ranks.get(id))}</td>`)}</tr>`)}</tbody></table>`
    : html`<svg class="bump" viewBox=${`0 0 470 ${36 + 50 * agents.length}`} width="100%" role="img" aria-label=${`Rank of each candidate, ${shown.map(({ word }) => word).join(", ")}: ${words}`}>
      ${shown.map(({ word }, index) => html`<line x1=${x(index)} x2=${x(index)} y1="26" y2=${14 + 50 * agents.length} /><text class="ax" x=${x(index)} y="14" text-anchor="middle">${word}</text>`)}
      ${agents.map((_, place) => html`<text class="ax" x="22" y=${48 + 50 * place}>${place + 1}.</text>`)}
      ${[...agents].sort((a) => (a === winner ? 1 : -1)).map((id) => {
        const tone = id === winner ? "w" : "";
        const points = shown.map((_, index) => [x(index), y(id, index)]);
        const path = points.slice(1).reduce((drawn, [px, py], index) => {
          const [bx, by] = points[index];
          const middle = (bx + px) / 2;
          return `${drawn} C${middle} ${by} ${middle} ${py} ${px} ${py}`;
        }, `M${points[0].join(" ")}`);
        const score = read.standing.get(id)?.score;
        return html`<path class=${tone} d=${path} />${points.map(([px, py]) => html`<circle class=${tone} cx=${px} cy=${py} r="11" /><text class=${`in ${tone}`} x=${px} y=${py + 4} text-anchor="middle">${read.letter(id)}</text>`)}<text class=${tone} x="380" y=${points.at(-1)[1] + 4}>${read.shown ? id : `${ordinal(read.standing.get(id).rank)}${score === null ? "" : `, ${score.toFixed(2)}`}`}</text>`;
      })}</svg>`}
    <ul class="changed">${moved.map(({ judge, chosen }) => html`<li key=${judge}><${Icon} name="swap" /><span>${sentence(read.judge(judge))} put ${names(before.get(judge))} first among the ${shown[0].word === "Drafts" ? "drafts" : `texts of ${shown[0].word.toLowerCase()}`}, and ${names(chosen)} in the verdict.</span></li>`)}
      ${moved.length < voted.length ? html`<li><${Icon} name="pause" /><span>${moved.length ? plural(voted.length - moved.length, "other judge") : "Every judge"} kept ${voted.length - moved.length > 1 && moved.length ? "their" : "its"} first choice.</span></li>` : ""}</ul>
    <p class="foot"><button class="linked" onClick=${() => setTable(!table)}>${table ? "As a picture" : "As a table"}</button><span>Ranks before the verdict are by mean score.</span></p>`;
}

/** Equal answers, where they are counted; those of actions are whole. */
export function Tallies({ resource, read }) {
  const { tally } = resource.verdict;
  const acts = Boolean(resource.constraints.actions);
  const words = (answer) => (acts ? visible(answer) : answer.length > 120 ? `${answer.slice(0, 120)}…` : answer);
  if (tally.length === 0) return null;
  const final = tally.some(({ final: counted }) => counted !== null);
  return html`<h3>${acts ? "Actions" : "Answers"} counted</h3><div class="scrollx" tabindex="0" role="region" aria-label="Answers, table"><table><thead><tr><th scope="col">Answer</th><th scope="col" class="num">${final ? "At first" : "Votes"}</th>${final ? html`<th scope="col" class="num">At last</th>` : ""}<th scope="col">By</th></tr></thead>
    <tbody>${tally.map(({ answer, votes, final: counted, agents }) => html`<tr key=${answer}><th scope="row" dir="auto" class="answer">${words(answer)}</th><td class="num">${number(votes)}</td>${final ? html`<td class="num">${number(counted)}</td>` : ""}<td>${agents.map(read.letter).map((letter, index) => html`<span class="letter" title=${read.name(agents[index])}>${letter}</span> `)}</td></tr>`)}</tbody></table></div>`;
}

/** Comparisons of pairs: who beat whom, and by how much. */
export function Pairs({ read }) {
  if (!read.pairs?.length) return null;
  return html`<h3>Pairs</h3><div class="scrollx" tabindex="0" role="region" aria-label="Pairs, table"><table><thead><tr><th scope="col">Judge</th><th scope="col">Pair</th><th scope="col">Better</th><th scope="col" class="num">Margin, of 3</th></tr></thead>
    <tbody>${read.pairs.map(({ id, judge, pair, winner, margin }) => html`<tr key=${id}><th scope="row">${read.judge(judge)}</th><td>${pair.map((agent) => html`<span class="letter" key=${agent}>${read.letter(agent)}</span> `)}</td><td>${winner === null ? "neither" : html`<span class="letter win">${read.letter(winner)}</span>`}</td><td class="num">${winner === null ? NONE : margin}</td></tr>`)}</tbody></table></div><p class="foot">${plural(read.pairs.length, "comparison")}, each pair in both orders where the strategy asks twice.</p>`;
}
