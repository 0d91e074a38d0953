"""The verdict by a count of answers, and the form in which they can be read."""

from collections.abc import Mapping, Sequence

from app.deliberation.answers import Count, Normaliser, normalise, requirement, tally
from app.deliberation.choice.anonymity import nonce
from app.deliberation.decider import Conclusion
from app.deliberation.specification import Specification
from app.deliberation.strategies.steps.strategy_run import Candidate, StrategyRun


def asking_for(specification: Specification, normaliser: Normaliser, options: tuple[str, ...]) -> Specification:
    """The specification with the requirement, if any, that makes its answers readable."""
    form = requirement(normaliser, options)
    if form is None:
        return specification
    constraints = specification.constraints
    stricter = constraints.model_copy(update={"requirements": (*constraints.requirements, form)})
    return specification.model_copy(update={"constraints": stricter})


def counted(drafts: Sequence[Candidate], normaliser: Normaliser, options: tuple[str, ...], seed: int) -> Count:
    return tally(((draft.author, normalise(draft.text, normaliser, options)) for draft in drafts), seed)


def by_votes(
    run: StrategyRun, drafts: Sequence[Candidate], count: Count, picked: Candidate | None = None
) -> Conclusion:
    """The conclusion of a count of drafts. `picked` wins regardless of the count."""
    answer_of = {agent: group.answer for group in count.groups for agent in group.agents}
    read = [(draft, answer_of.get(draft.author)) for draft in drafts]
    return by_answers(run, read, {draft.author: answer for draft, answer in read}, count, picked)


def by_answers(
    run: StrategyRun,
    candidates: Sequence[tuple[Candidate, str | None]],
    final: Mapping[str, str | None],
    count: Count,
    picked: Candidate | None = None,
) -> Conclusion:
    """The conclusion of a count: candidates rank by the votes for their answer, in the given order among equals.

    `final` holds each author's final answer; an author with another one than the first dissents. Candidates without a
    counted answer come last, without a score: fewer tokens first, then a seeded hash. `picked` wins regardless of the
    count.
    """
    group_of = {group.answer: group for group in count.groups}
    places = {group.answer: place for place, group in enumerate(count.groups)}

    def place(entry: tuple[Candidate, str | None]) -> tuple[bool, int, int, str]:
        candidate, answer = entry
        if answer is not None:
            return candidate is not picked, places[answer], 0, ""
        return candidate is not picked, len(places), candidate.tokens, nonce(run.specification.seed, candidate.id)

    ranked = sorted(candidates, key=place)
    # One voter has two votes after a debate, but cannot agree with itself.
    several = len(count.voters) > 1
    return run.conclude(
        [(each, None if answer is None else count.share(group_of[answer].votes)) for each, answer in ranked],
        margin=count.margin if several else None,
        tie=count.tie or (not count.groups and picked is None and len(candidates) > 1),
        dissent=[
            (author, group_of[answer].agents[0])
            for author, answer in final.items()
            if answer is not None and answer != ranked[0][1]
        ],
        agreement=count.agreement if several else None,
        tally=count.tallies,
    )
