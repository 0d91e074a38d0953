/** A finished council as several sections read it: letters for names, ballots, first choices and works. */

import { ballots, fateOf, parsed, shownTo } from "./council.js";
import { shuffled } from "./words.js";

const ROMAN = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"];
// Means of the same scores in another order may differ in their last digits.
const EQUAL = 1e-9;

/** Each judge's first choices among the texts whose version is `versionOf(agent, candidates)`. */
export function firsts(cast, versionOf) {
  return cast.map(({ judge, candidates }) => {
    const judged = candidates.filter(({ agent, version }) => version === versionOf(agent, candidates));
    const best = Math.max(...judged.map(({ mean }) => mean));
    const chosen = judged.filter(({ mean }) => best - mean < EQUAL).map(({ agent }) => agent).sort();
    return { judge, chosen, could: (agent) => judged.some((candidate) => candidate.agent === agent) };
  });
}

/** The recorded comparisons of pairs. */
function pairsOf(council) {
  return [...(council?.calls.values() ?? [])].flatMap((call) => {
    const said = call.output === "pair" && fateOf(call, council) === "answered" ? parsed(call.finished.text) : null;
    if (said === null) return [];
    const shown = new Map(shownTo(call).map(({ letter, agent }) => [letter, agent]));
    return [{ id: call.call_id, judge: call.agent_id, pair: [...shown.values()], winner: shown.get(said.winner) ?? null, margin: said.margin }];
  });
}

/** Whether a score, a vote, a comparison or a test ranks the candidates of a verdict. */
export const compared = ({ ranking }) => ranking.length > 1 && ranking.some(({ score }) => score !== null);

/** The reading; `council` is null where the facts are gone, and names are letters unless `shown`. */
export function reading(resource, council, shown) {
  const ids = resource.agents.map(({ agent_id: id }) => id);
  const drawn = shuffled(ids, resource.seed);
  const letters = new Map(drawn.map((id, index) => [id, index < 26 ? String.fromCharCode(65 + index) : `#${index + 1}`]));
  const weights = Object.fromEntries(resource.constraints.rubric.map(({ id, weight }) => [id, weight]));
  const stages = (council?.stages ?? []).map(({ stage, round }) => ({ round, cast: ballots(council, stage, weights) })).filter(({ cast }) => cast.length);
  const standing = new Map((resource.verdict?.ranking ?? []).map((place) => [place.agent_id, place]));
  const last = stages.at(-1)?.cast ?? [];
  return {
    letter: (id) => letters.get(id) ?? id,
    name: (id) => (shown ? id : letters.has(id) ? `candidate ${letters.get(id)}` : id),
    judge: (id) => (shown ? id : `judge ${ROMAN[ids.indexOf(id)] ?? ids.indexOf(id) + 1}`),
    shown, stages, last, standing, pairs: pairsOf(council),
    // Among the texts that stand in the ranking.
    firsts: firsts(last, (agent) => standing.get(agent)?.version),
    work: new Map(resource.proposals.map((work) => [work.agent_id, work])),
  };
}
