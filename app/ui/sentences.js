/**
 * The sentences about a deliberation. One function computes each from the resource and the recorded facts, so that it says
 * no more than they do; no model wrote them. `name` gives the word for an agent, and `council` is null once the facts are gone.
 */

import { expired, fateOf, repeats } from "./council.js";
import { compared } from "./reading.js";
import { duration, NONE, number, plural, sentence, title } from "./words.js";

const NAMED_MAX = 3;
// A wait below this is no reason for anything.
const WAIT_MS = 500;

/** `a, b and c`; of many the first ones, and how many more there are. */
export function listed(words) {
  if (words.length > NAMED_MAX + 1) return `${words.slice(0, NAMED_MAX).join(", ")} and ${number(words.length - NAMED_MAX)} more`;
  return words.length > 1 ? `${words.slice(0, -1).join(", ")} and ${words.at(-1)}` : words.join("");
}

const ended = (text) => (/[.?!…]$/.test(text) ? text : `${text}.`);
const unique = (items) => [...new Set(items)];
const agents = (calls, name) => listed(unique(calls.map(({ agent_id: id }) => name(id))).sort());

/** `items` by `key(item)`, in the order in which the keys come first. */
function grouped(items, key) {
  const groups = new Map();
  for (const item of items) groups.set(key(item), [...(groups.get(key(item)) ?? []), item]);
  return [...groups.values()];
}

const inRound = (purpose, round) => `${purpose}${round > 0 ? ` of round ${round}` : ""}`;

const FATES = { failed: "failed", late: "came too late", stopped: "stopped", unanswered: "without an answer" };
const counted = (fates) => Object.entries(FATES).map(([fate, words]) => [fates.filter((other) => other === fate).length, words]).filter(([count]) => count > 0).map(([count, words]) => `${number(count)} ${words}`);

/** A stage in the rail: { count, words, icon }; `until` is the moment at which the council is shown. */
export function stageInWords(council, stage, until) {
  const calls = council.inStage(stage.stage);
  const fates = calls.map((call) => fateOf(call, council));
  const answered = fates.filter((fate) => fate === "answered").length;
  const count = `${number(answered)} of ${number(calls.length)}`;
  const took = duration((stage.closedAt ?? council.endedAt ?? until) - stage.openedAt);
  if (stage.closedAt === null && council.endedAt === null) {
    const writing = calls.filter(({ finished, firstAt }) => !finished && firstAt).length;
    const again = calls.filter((call) => !call.finished && repeats(call) > 0).length;
    const failed = fates.filter((fate) => fate === "failed").length;
    return { count, icon: "spin", words: [`${took} so far`, writing ? `${number(writing)} write` : "", again ? `${number(again)} asked again` : "", failed ? `${number(failed)} failed` : ""].filter(Boolean).join(", ") };
  }
  const lacking = counted(fates);
  const heard = answered === calls.length ? "all answered" : answered === 0 ? ["nobody answered", ...lacking].join(", ") : lacking.join(", ");
  const cause = stage.closedAt === null ? "the end came first" : { quorum: "closed by its quorum", deadline: "closed by its deadline" }[stage.reason];
  return { count, icon: answered === calls.length ? "check" : answered === 0 ? "cross" : "alert", words: [took, heard, cause].filter(Boolean).join(", ") };
}

/** Who has an answer that counts. */
export function whoAnswered({ proposals, ended_at: end }, name = (agent) => agent) {
  const of = (...statuses) => proposals.filter(({ status }) => statuses.includes(status));
  const answered = of("answered").length;
  const lacking = [["failed", "failed"], ["late", "came too late"], ["skipped", "had not answered at the end"], ["pending", end === null ? "has yet to answer" : "had not answered at the end"]]
    .map(([status, words]) => [of(status), words]).filter(([those]) => those.length > 0).map(([those, words]) => `${agents(those, name)} ${words}`);
  if (answered === proposals.length) return proposals.length === 1 ? "Its one member answered." : `All ${number(answered)} members answered.`;
  const head = answered === 0 ? "No member has an answer that counts" : `${number(answered)} of ${plural(proposals.length, "member")} answered`;
  return `${head}: ${lacking.join("; ")}.`;
}

const BY = { client: "A client", disconnect: "Its client left, which", superseded: "A newer request", deadline: "Its client's own deadline", operator: "An operator" };
const PROBLEMS = {
  poisoned: "Coordinators died or hung over it", budget_exhausted: "Its budget does not admit the first stage", no_answers: "No agent answered", deadline_exceeded: "The time was over",
  no_agreement: "Too few members agree", strategy_drift: "Its strategy has changed", unknown_strategy: "No coordinator has its strategy",
};

/** A detail as a sentence; one of several lines ends with no sentence. */
const lines = (detail) => (detail.includes("\n") ? detail : ended(sentence(detail)));

/** How it ended, as { head, words }; null for a verdict. */
export function ending({ status, problem, cancellation, status_reason: reason, usage }) {
  if (status === "completed" || !["failed", "cancelled", "timeout"].includes(status)) return null;
  if (status === "cancelled") {
    const why = cancellation?.reason ?? reason;
    const cut = cancellation?.cut.length ? ` ${plural(cancellation.cut.length, "call")} ${cancellation.cut.length === 1 ? "was" : "were"} stopped.` : "";
    return { head: `${BY[cancellation?.by] ?? BY.client} stopped it.`, words: `${why ? ended(sentence(why)) : "No reason was given."}${cut}` };
  }
  const head = `${PROBLEMS[problem?.code] ?? (problem ? title(problem.code) : status === "timeout" ? PROBLEMS.deadline_exceeded : "It failed")}.`;
  return { head, words: `${problem ? lines(problem.detail) : ""}${usage.calls === 0 ? " No model was asked." : ""}`.trim() };
}

/** What failed, a sentence for each cause; numbers alone make no other cause. */
export function whatFailed(resource, council, name = (agent) => agent) {
  if (council === null) return stalls(resource, name);
  const failed = [...council.calls.values()].filter((call) => fateOf(call, council) === "failed");
  return grouped(failed, ({ finished: { problem } }) => `${problem.code} ${problem.detail.replace(/\d+/g, "0")}`).map((calls) => {
    const stages = listed(grouped(calls, ({ purpose, round }) => `${purpose} ${round}`).map((those) => `${number(those.length)} in ${inRound(those[0].purpose, those[0].round)}`));
    return `${plural(calls.length, "call")} failed (${stages}; ${agents(calls, name)}): ${ended(calls[0].finished.problem.detail)}`;
  });
}

/** The same of a resource whose facts are gone, by the codes that it keeps. */
function stalls({ participation }, name) {
  const failed = (participation?.stalled ?? []).filter(({ code }) => code !== null && code !== "call_cancelled");
  return grouped(failed, ({ code }) => code).map((those) => `${plural(those.reduce((sum, { calls }) => sum + calls, 0), "call")} failed with ${those[0].code} (${listed(unique(those.map(({ purpose, round }) => inRound(purpose, round))))}; ${agents(those, name)}).`);
}

/** The least number of `size` members whose share is `share`, a decimal: 0.56 of 25 is 14, and more in binary. */
function membersOf(share, size) {
  const [, whole, part = "", exponent = "0"] = String(share).match(/^(\d+)(?:\.(\d+))?(?:e(-?\d+))?$/);
  const scale = 10n ** BigInt(part.length - Number(exponent));
  return Number((BigInt(whole + part) * BigInt(size) + scale - 1n) / scale);
}

/** Whether a reply that states the dissent stands in place of the verdict's answer. */
export const standsIn = ({ agreed = null, content, call_id: call }) => agreed === false && content !== null && call === null;

/** The members whose answers equal that of the winner, as the verdict counts them. */
const equal = ({ tally, winner }) => tally.find((votes) => votes.agents.includes(winner));

/** Whether as many members as demanded give the verdict's answer; empty where none is demanded. */
export function agreementInWords({ verdict, constraints, agents: members, proposals }) {
  const { agreed = null, winner } = verdict;
  if (agreed === null) return "";
  const called = proposals.find(({ agent_id: id }) => id === winner)?.action?.calls?.map(({ name }) => name) ?? [];
  const tools = constraints.actions?.tools.filter(({ name }) => called.includes(name)) ?? [];
  const shares = [constraints, ...tools].map(({ agreement_min: share }) => share ?? null).filter((share) => share !== null);
  const needed = Math.max(...shares.map((share) => membersOf(share, members.length)));
  const group = equal(verdict);
  const given = group ? (group.final ?? group.votes) : 0;
  const [which, instead] = standsIn(verdict) ? ["the leading", ", so this reply stands in its place"] : ["this", ""];
  return `The demanded agreement was ${agreed ? "" : "not "}reached: ${number(given)} of ${plural(members.length, "member")} ${given === 1 ? "gives" : "give"} ${which} answer, and ${number(needed)} must${instead}.`;
}

/** Which members propose the action of the verdict; empty where no member does, and where one was asked. */
export function proposersInWords({ verdict, agents: members }, name) {
  const group = equal(verdict);
  if (!verdict.action || standsIn(verdict) || !group || members.length === 1) return "";
  return `${sentence(listed(group.agents.map(name).sort()))} ${group.agents.length === 1 ? "alone proposes" : "propose"} it.`;
}

const REASONS = {
  unscored: "No ballot or comparison was recorded: the answer with the fewest tokens stands first, then a hash of the seed",
  unreviewed: "Only one answer was left, and no peer compared it",
  untested: "No test was written, so no test ranks the programs",
  budget: null, deadline: null, // Their stages are named one by one.
};

function leftOut(cut) {
  return grouped(cut, ({ purpose, by }) => `${purpose} ${by}`).map((stages) => {
    const [{ purpose, by }] = stages;
    const rounds = unique(stages.map(({ round }) => round)).filter((round) => round > 0);
    const where = rounds.length === 0 ? "" : ` of ${rounds.length === 1 ? "round" : "rounds"} ${listed(rounds.map(String))}`;
    return `${title(purpose)}${where} ${by === "deadline" ? "lacks answers or was left out: the time was over" : `was left out: the budget of ${by} did not admit it`}.`;
  });
}

/** What a verdict lacks: its reasons, the stages left out, and what failed, each once. */
export function shortcomings(resource, council, name = (agent) => agent) {
  const { degraded, participation } = resource;
  if (degraded === null) return [];
  const words = degraded.reasons.filter((reason) => REASONS[reason] !== null || degraded.cut.length === 0).map((reason) => ended(sentence(REASONS[reason] ?? reason)));
  const silent = (participation?.stalled ?? []).filter(({ code }) => code === null);
  const late = grouped(silent, ({ purpose, round }) => inRound(purpose, round)).map((those) => `${sentence(agents(those, name))} gave nothing in ${inRound(those[0].purpose, those[0].round)} before it closed.`);
  return unique([...words, ...leftOut(degraded.cut), ...whatFailed(resource, council, name), ...late]);
}

/** Why nothing compares the answer with others; null where something does. */
function uncompared({ verdict, degraded, agents: members, proposals }) {
  if (compared(verdict)) return null;
  if (members.length === 1) return "One agent was asked, and nobody compared its answer.";
  if (degraded?.reasons.includes("unscored")) return ended(REASONS.unscored);
  if (verdict.ranking.length === 1) return proposals.filter(({ status }) => status === "answered").length === 1 ? ended(REASONS.unreviewed) : "One answer stands in the ranking, and nothing compares it.";
  return "No score, vote or test compares the answers; their order says nothing.";
}

function firstPlaces({ verdict: { winner, dissent } }, read) {
  const cast = read.firsts.filter(({ could }) => could(winner));
  if (cast.length === 0) return [];
  const alone = cast.filter(({ chosen }) => chosen.length === 1 && chosen[0] === winner).length;
  const level = cast.filter(({ chosen }) => chosen.length > 1 && chosen.includes(winner)).length;
  const judges = cast.length === 1 ? "the one judge" : `the ${plural(cast.length, "judge")}`;
  const tied = level === 0 ? "" : `${alone ? ", and" : " put it first alone;"} ${number(level)} put it level with another`;
  const first = alone || level === 0 ? `${number(alone)} of ${judges} who could rank it put it first${tied}.` : `None of ${judges} who could rank it${tied}.`;
  return [first, ...(dissent.length === 0 && alone + level === cast.length ? ["No judge preferred another candidate."] : [])];
}

/** Why the answer of a verdict with a winner stands first. */
export function whyFirst(resource, read) {
  const { winner, ranking, margin, tie, tally } = resource.verdict;
  const reason = uncompared(resource);
  if (reason !== null) return [reason];
  const said = firstPlaces(resource, read);
  const mine = read.work.get(winner);
  // After a count, equal answers have equal scores.
  const next = ranking.slice(1).find(({ score }) => score !== null && score < ranking[0].score);
  const others = ranking.filter(({ agent_id: id }) => id !== winner).flatMap(({ agent_id: id }) => read.work.get(id)?.criteria ?? []);
  const rivals = (id) => others.filter((rival) => rival.id === id);
  const leads = (mine?.criteria ?? []).filter(({ id, score }) => rivals(id).length > 0 && rivals(id).every((rival) => rival.score < score)).map(({ id }) => title(id).toLowerCase());
  if (leads.length) said.push(`It leads on ${listed(leads)}.`);
  const group = equal(resource.verdict);
  if (group) said.push(`${number(group.final ?? group.votes)} of ${number(tally.reduce((sum, { votes, final }) => sum + (final ?? votes), 0))} ${mine?.checks.length ? "programs pass the same tests" : "answers say the same"}.`);
  if (mine?.checks.length) said.push(`It passes ${number(mine.checks.filter(({ passed }) => passed).length)} of ${plural(mine.checks.length, "test")}.`);
  if (tie) said.push("It shares the first place; the rule for ties chose it.");
  else if (next && margin !== null && margin > 0) said.push(`It stands ${margin.toFixed(2)} before ${read.name(next.agent_id)}.`);
  const grave = (mine?.critiques ?? []).flatMap(({ issues }) => issues).filter(({ severity }) => severity !== "minor");
  const version = read.standing.get(winner)?.version;
  if (grave.length && version) said.push(`It is version ${version + 1}, after ${plural(grave.length, "major issue")}: “${grave[0].claim}”`);
  return said;
}

/** The evidence that the answer cites, and what of it was not given. */
export function citedInWords({ citations }) {
  const pages = (numbers) => (numbers.length === 0 ? "" : `${numbers.length === 1 ? "page" : "pages"} ${listed(numbers.map(number))} of `);
  const of = (fault) => (citations ?? []).filter((citation) => citation.fault === fault);
  const held = of(null).map(({ evidence, pages: numbers }) => (numbers.length === 0 ? evidence : `${evidence} (${numbers.length === 1 ? "page" : "pages"} ${listed(numbers.map(number))})`));
  return [
    ...(held.length ? [`It cites ${listed(held)}.`] : []),
    ...of("unknown_page").map((citation) => `It cites ${pages(citation.pages)}${citation.evidence}, which ${citation.pages.length === 1 ? "does" : "do"} not exist.`),
    ...of("unknown_evidence").map((citation) => `It cites ${citation.evidence}, which was not given.`),
  ];
}

/** Figures of the verdict as [name, value, more]. */
export function verdictFigures({ verdict }, read) {
  const { margin, agreement, effective_votes: votes, tally, winner } = verdict;
  const score = read.standing.get(winner)?.score;
  // Judges of actions agree in their ballots, though equal actions are counted too.
  const shared = tally.length > 0 && agreement === tally[0].votes / tally.reduce((sum, { votes: counted }) => sum + counted, 0);
  return [
    ["score", score === null || score === undefined ? NONE : score.toFixed(2)], ["margin", margin === null ? NONE : margin.toFixed(2)],
    ["agreement", agreement === null ? NONE : shared ? `${Math.round(100 * agreement)} %` : agreement.toFixed(2), agreement === null ? "" : shared ? "of the answers" : "Kendall τ"],
    ...(votes === null ? [] : [["independent ballots", votes.toFixed(1), read.last.length ? `of ${number(read.last.length)} cast` : ""]]),
  ];
}

/** What each round of critiques changed, as [round, changed, words]. */
export function roundsInWords(resource, council, name) {
  return (council?.stages ?? []).filter(({ purpose }) => purpose === "critique").map((stage) => {
    const { round } = stage;
    const fates = council.inStage(stage.stage).map((call) => fateOf(call, council));
    const heard = fates.filter((fate) => fate === "answered").length;
    const revisions = [...council.calls.values()].filter((call) => call.round === round && call.output === "revision");
    const kept = revisions.filter((call) => fateOf(call, council) === "answered");
    if (kept.length) return [round, true, `Round ${round} changed the text of ${listed(kept.map(({ agent_id: id }) => name(id)).sort())}.`];
    const grave = resource.proposals.some(({ critiques }) => critiques.some((critique) => critique.round === round && critique.issues.some(({ severity }) => severity !== "minor")));
    const why = heard === 0 ? `no critique came (${counted(fates).join(", ") || "none was asked for"})`
      : revisions.length ? `no revision came (${counted(revisions.map((call) => fateOf(call, council))).join(", ")})`
        : grave ? "it ended before a revision"
          : heard === fates.length ? "its critics found no major issue" : `the ${plural(heard, "critic")} of ${number(fates.length)} that answered found no major issue`;
    return [round, false, `Round ${round} changed no text: ${why}.`];
  });
}

/** The calls up to a moment, counted by their recorded outcomes. */
export function callsInWords(council) {
  const calls = [...council.calls.values()];
  const of = (fate) => calls.filter((call) => fateOf(call, council) === fate).length;
  const more = [["late", "too late"], ["stopped", "stopped"], ["unanswered", "without an answer"], ["open", "under way"]].map(([fate, words]) => [of(fate), words]).filter(([count]) => count > 0);
  return `${plural(calls.length, "call")}: ${[[of("failed"), "failed"], [calls.filter((call) => repeats(call) > 0).length, "asked again"], ...more].map(([count, words]) => `${number(count)} ${words}`).join(", ")}`;
}

/** Where the time of an ended council went, the longest part first. */
export function whySlow(council, name) {
  if (council === null || council.stages.length === 0) return [];
  const end = council.endedAt ?? council.startedAt;
  const said = [];
  const queued = council.stages[0].openedAt - council.startedAt;
  if (queued >= WAIT_MS) said.push(`It waited ${duration(queued)} for a coordinator.`);
  const lengths = council.stages.map((stage) => ({ stage, ms: (stage.closedAt ?? end) - stage.openedAt }));
  const longest = lengths.reduce((most, stage) => (stage.ms > most.ms ? stage : most));
  said.push(`The longest stage was ${inRound(longest.stage.purpose, longest.stage.round)}: ${duration(longest.ms)} of ${duration(end - council.startedAt)}.`);
  const heard = council.inStage(longest.stage.stage).filter(({ finished }) => finished);
  const last = heard.reduce((latest, call) => (latest === null || call.finishedAt > latest.finishedAt ? call : latest), null);
  if (last) said.push(lastCall(last, name));
  const again = [...council.calls.values()].filter((call) => repeats(call) > 0);
  if (again.length) said.push(`${plural(again.length, "call")} ${again.length === 1 ? "was" : "were"} asked again after a failed request (${agents(again, name)}).`);
  const tools = [...council.calls.values()].flatMap(({ uses }) => uses);
  if (tools.length) said.push(`${plural(tools.length, "tool use")} took ${duration(tools.reduce((sum, use) => sum + use.duration_ms, 0))} together.`);
  if (council.takeovers.length) said.push(`Another coordinator took over ${council.takeovers.length === 1 ? "once" : `${number(council.takeovers.length)} times`}.`);
  return said;
}

function lastCall(call, name) {
  const { duration_ms: took, ttft_ms: first, usage } = call.finished;
  // The replica counts from its begin; what came before was a wait for a replica.
  const waited = call.finishedAt - call.openedAt - took;
  const parts = [waited >= WAIT_MS ? `${duration(waited)} before its replica began` : "", first === null ? "" : `${duration(first)} to its first token`, usage.completion_tokens ? `${plural(usage.completion_tokens, "token")} written` : ""].filter(Boolean);
  return `Its last outcome was that of ${name(call.agent_id)}, after ${duration(call.finishedAt - call.openedAt)}${parts.length ? `: ${parts.join(", ")}` : ""}.`;
}

/** What of a council's log has expired; empty where nothing has. */
export const whatExpired = (council) => (expired(council) ? "The starts and waits of its calls were kept for ten minutes and have expired: how long a call waited, and when its earlier attempts ran, is no longer known." : "");

/** The first words of the tab's title, such as "propose 2 of 3". */
export function stateInWords({ status, degraded, progress }) {
  if (progress && status === "in_progress") return `${progress.purpose} ${number(progress.calls_finished)} of ${number(progress.calls_total)}`;
  return { pending: "Waiting", in_progress: "Running", cancelling: "Stopping", completed: degraded ? "Degraded" : "Done", failed: "Failed", cancelled: "Cancelled", timeout: "Out of time" }[status];
}

/** The steps of a strategy that a council under way has yet to open, as [purpose, round]; a step for some cases only is left out. */
export function stillToCome(steps, rounds, stages) {
  const read = steps.map((step) => step.match(/^([a-z]+)( × R$| × |$)/)).filter(Boolean).map(([, purpose, times]) => ({ purpose, loops: times === " × R" }));
  const begins = read.findIndex(({ loops }) => loops);
  const before = begins < 0 ? read : read.slice(0, begins);
  const loop = read.filter(({ loops }) => loops);
  const after = begins < 0 ? [] : read.slice(begins).filter(({ loops }) => !loops);
  const once = ({ purpose }) => [purpose, 0];
  const planned = [...before.map(once), ...Array.from({ length: loop.length ? rounds : 0 }, (_, index) => loop.map(({ purpose }) => [purpose, index + 1])).flat(), ...after.map(once)];
  let next = 0;
  for (const { purpose, round } of stages) {
    const place = planned.findIndex(([name, of], index) => index >= next && name === purpose && (of === 0 || of === round));
    if (place >= 0) next = place + 1;
  }
  return planned.slice(next);
}
