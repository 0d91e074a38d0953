"""`fuse`: select the best single proposal, fuse all into one text, and ship that only if it wins in both orders.

A writer that reads several candidates can beat each of them (Mixture-of-Agents, arXiv:2406.04692). More often the best
single answer wins (DeliberationBench, arXiv:2601.08835). So the fused text must beat it in both orders, because
swapping the order flips about a third of such verdicts (arXiv:2306.05685). The author of the best proposal writes, so
that no judge compares its own text, which it would prefer (arXiv:2404.13076). After the selection, a stage opens only
if the budget also holds the stages after it: half a fusion is worthless.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.deliberation.answers import TALLY_CHARS_MAX
from app.deliberation.budget import predicted
from app.deliberation.calls import Call, ChatMessage, Cost
from app.deliberation.choice.anonymity import arrangements, fence, lettered, nonce
from app.deliberation.decider import Conclusion, Strategy, StrategyDefinition
from app.deliberation.facts import Tally
from app.deliberation.outputs import Analysis, Output
from app.deliberation.prompts.council import ANSWER_FORM, judge_pair
from app.deliberation.prompts.form import Labelled, messages
from app.deliberation.specification import Specification
from app.deliberation.strategies.strategy_run import Candidate, Step, StrategyRun, written

ROUND = 1


@dataclass(frozen=True, slots=True)
class Bench:
    analyst: str
    writer: str
    judges: tuple[str, ...]


def bench(authors: Sequence[str], best: str, seed: int) -> Bench:
    """The best proposal's author writes; two judges and an analyst are drawn by the seed among the others.

    Of three authors the writer also analyses; of two, the other author also judges both orders.
    """
    others = sorted((author for author in authors if author != best), key=lambda author: nonce(seed, "bench", author))
    if not others:
        raise ValueError("a fusion takes two authors at least")
    return Bench(analyst=others[2] if len(others) > 2 else best, writer=best, judges=tuple(others[:2]))


def _fuse(specification: Specification) -> Strategy:
    run = StrategyRun(specification)
    drafts = yield from run.propose(stages_left=5)
    return (yield from continue_from(run, drafts))


def continue_from(run: StrategyRun, drafts: Sequence[Candidate]) -> Step[Conclusion]:
    run.texts_first = True
    best = yield from run.select(drafts, ROUND, stages_left=4)
    authors = [draft.author for draft in drafts]
    if run.specification.size == 1:
        return best
    if len(authors) == 1 or run.is_pair(authors):
        return _unfused(run, best, "too few proposals")
    if best.ranking[0].score is None:
        return _unfused(run, best, "no proposal is scored")
    single = next(draft for draft in drafts if draft.call_id == best.call_id)
    members = bench(authors, single.author, run.specification.seed)
    fused = yield from _fused(run, drafts, single, members)
    if fused is None:
        return replace(best, degraded=tuple(run.degraded))
    ballots = yield from run.judged(fused, single, members.judges, ROUND)
    if len(ballots) < 2:
        run.degraded.append("the fused text is not judged in both orders")
    return _gated(run, best, single, fused, ballots)


def _unfused(run: StrategyRun, best: Conclusion, reason: str) -> Conclusion:
    run.degraded.append(f"not fused: {reason}")
    return replace(best, degraded=tuple(run.degraded))


def _fused(run: StrategyRun, drafts: Sequence[Candidate], single: Candidate, members: Bench) -> Step[Candidate | None]:
    by_id = {draft.id: draft for draft in drafts}
    seed = run.specification.seed
    # Analyst and writer read the candidates under the same letters, because the analysis names them. The order is that
    # of one reviewer's ballot, so that an engine has its beginning cached. The reviewer's own draft comes last.
    reviewer = min(by_id, key=lambda author: nonce(seed, "reader", author))
    labelled = lettered((*arrangements(list(by_id), list(by_id), seed, ROUND)[reviewer], reviewer))
    texts = [run.shown(letter, by_id[candidate]) for letter, candidate in labelled.items()]

    gate = _gating(run, single, members.writer, members.judges)
    prompt = _analysis_prompt(run.specification, texts)
    agent = run.agent(members.analyst)
    call = run.call(agent, prompt, Output(kind="analysis"), labelled=labelled, judging=True)
    reserve = _fusing(run, texts, members.writer, call) + gate
    outcomes = yield from run.ask("analyse", ROUND, [call], quorum=1, stages_left=3, reserve=reserve)
    analysis = outcomes.answer(call)
    if not isinstance(analysis, Analysis):
        if outcomes.admitted:
            run.degraded.append("not fused: the analysis is missing")
        return None

    prompt = _fusion_prompt(run.specification, texts, analysis, nonce(seed, "fuse", ROUND))
    call = run.call(run.agent(members.writer), prompt, Output(kind="fusion"), labelled=labelled)
    outcomes = yield from run.ask("fuse", ROUND, [call], quorum=1, stages_left=2, reserve=gate)
    fused = written(outcomes, call, version=1)
    if fused is None and outcomes.admitted:
        run.degraded.append("not fused: the fused text is missing")
    return fused


def _gated(
    run: StrategyRun, best: Conclusion, single: Candidate, fused: Candidate, ballots: Sequence[tuple[str, str | None]]
) -> Conclusion:
    """The fused text when it won in both orders, else the best single; the tally shows the judges' votes."""
    voters = {c.id: tuple(sorted(judge for judge, winner in ballots if winner == c.id)) for c in (fused, single)}
    shipped = fused if len(voters[fused.id]) == 2 else single
    ordered = sorted((single, fused), key=lambda c: (-len(voters[c.id]), c is not shipped))
    tally = tuple(
        Tally(answer=c.text[:TALLY_CHARS_MAX], votes=len(voters[c.id]), agents=tuple(dict.fromkeys(voters[c.id])))
        for c in ordered
    )
    tally = tally if ballots else ()
    return replace(best, content=shipped.text, call_id=shipped.call_id, tally=tally, degraded=tuple(run.degraded))


def _fusing(run: StrategyRun, texts: Sequence[Labelled], writer: str, analysis: Call) -> Cost:
    specification = run.specification
    if not specification.budget.counts_tokens:
        return Cost(calls=1)
    nothing = Analysis(agreements=(), conflicts=(), gaps=())
    prompt = _fusion_prompt(specification, texts, nothing, nonce(specification.seed, "reserve"))
    call = run.call(run.agent(writer), prompt, Output(kind="fusion"))
    return predicted(specification.budget, [call]) + run.reading([writer], analysis.max_tokens)


def _gating(run: StrategyRun, single: Candidate, writer: str, judges: Sequence[str]) -> Cost:
    specification = run.specification
    if not specification.budget.counts_tokens:
        return Cost(calls=2)
    unwritten = Labelled("B", "", nonce(specification.seed, "reserve"))
    prompt = judge_pair(specification, run.shown("A", single), unwritten, texts_first=True)
    fused = run.agent(writer).sampling.max_tokens
    calls = [run.call(run.agent(judges[turn % len(judges)]), prompt, Output(kind="pair")) for turn in range(2)]
    return predicted(specification.budget, calls) + run.reading(judges, 2 * fused)


def _analysis_prompt(specification: Specification, candidates: Sequence[Labelled]) -> tuple[ChatMessage, ...]:
    return messages(
        specification,
        *(candidate.section for candidate in candidates),
        "# Your work: analyse\nRead every candidate and compare what they say, not how they say it. List agreements "
        "(what they establish together, and which of it the task bears out), conflicts (where they contradict each "
        "other: what each says, by its letter, and which side its own evidence supports) and gaps (what the task, the "
        "rubric or a requirement asks for and no candidate gives). That many say the same proves nothing. One point an "
        "entry, each one checkable; a list may be empty. Do not rank and do not write an answer.",
        '# Your reply\n{"agreements": [at most 8 sentences], "conflicts": [at most 8], "gaps": [at most 8]}',
    )


def _fusion_prompt(
    specification: Specification, candidates: Sequence[Labelled], analysis: Analysis, nonce: str
) -> tuple[ChatMessage, ...]:
    return messages(
        specification,
        *(candidate.section for candidate in candidates),
        f"Analysis:\n{fence(_listed(analysis), nonce)}",
        "# Your work: fuse\nWrite the one answer that the candidates make possible together. Keep what is right in the "
        "best of them, settle each conflict by the evidence, and take from the others only what makes it better. "
        "Invent nothing: every fact, figure, name and claim stands in a candidate or in the task, or follows from "
        "them. What the candidates leave open stays open, and the answer says so. The reader knows neither the "
        "candidates nor the analysis: mention neither.",
        f"# Your reply\n{ANSWER_FORM}",
    )


def _listed(analysis: Analysis) -> str:
    points = {"Agreements": analysis.agreements, "Conflicts": analysis.conflicts, "Gaps": analysis.gaps}
    return "\n".join(
        f"{heading}:\n" + ("\n".join(f"- {point}" for point in listed) or "- none")
        for heading, listed in points.items()
    )


FUSE = StrategyDefinition(
    name="fuse",
    version=4,
    summary="Select the best; fuse all into one text; ship it only if it beats the best in both orders.",
    steps=("propose", "score", "analyse", "fuse", "judge"),
    formula="2N + 4 (1 when N is 1)",
    source="arXiv:2406.04692, arXiv:2601.08835, arXiv:2306.05685, arXiv:2404.13076",
    tool_calls="N",
    run=_fuse,
)
