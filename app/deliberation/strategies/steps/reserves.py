"""Reserves: the part of a budget that later stages need when a stage is worthless without them.

Predictions err upwards, as `budget.predicted` does: unwritten text counts at its author's bound, and at the dearest
price of those who may read it. Tokens are not counted where the budget leaves them open.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from app.deliberation.budget import BYTES_PER_TOKEN, predicted, priced
from app.deliberation.calls import Call, Cost
from app.deliberation.choice.anonymity import nonce
from app.deliberation.outputs import Analysis, Output
from app.deliberation.prompts.council import judge_pair, revise, score
from app.deliberation.prompts.form import Labelled
from app.deliberation.prompts.fusion import fuse
from app.deliberation.strategies.steps.strategy_run import Candidate, StrategyRun, ballot_tokens

# The longest label, in a prompt's list of labels and between candidates.
_PER_CANDIDATE = "AA, \n\n"


def scoring(run: StrategyRun, versions: Sequence[Candidate], coming: Collection[str] = ()) -> Cost:
    """The cost of scoring each other's versions, with an unwritten last version of each author in `coming`."""
    authors = list(dict.fromkeys(version.author for version in versions))
    specification = run.specification
    if not specification.budget.counts_tokens:
        return Cost(calls=len(authors))
    frame = sum(len(message.content.encode()) for message in score(specification, []))
    empty = Labelled("AA", "", nonce(specification.seed, "reserve"))
    each = len((empty.section + _PER_CANDIDATE).encode())
    sizes = _sizes(run, versions, coming)
    total = Cost(calls=len(authors))
    for reviewer in map(run.agent, authors):
        shown = [size + each for author, size in sizes if author != reviewer.agent_id]
        bound = ballot_tokens(reviewer, len(shown), len(specification.constraints.rubric))
        prompt = (frame + sum(shown)) // BYTES_PER_TOKEN
        total += priced(specification.budget, reviewer.role, prompt, bound)
    return total


def revising(run: StrategyRun, latest: Mapping[str, Candidate], critiques: Sequence[Call]) -> Cost:
    """The cost of a stage in which every author revises on these critiques, which are not written yet."""
    specification = run.specification
    if not specification.budget.counts_tokens:
        return Cost(calls=len(latest))
    mark = nonce(specification.seed, "reserve")
    calls = [
        run.call(run.agent(author), revise(specification, run.shown("A", own), (), mark), Output(kind="revision"))
        for author, own in latest.items()
    ]
    return predicted(specification.budget, calls) + _read(run, latest, sum(call.max_tokens for call in critiques))


def fusing(run: StrategyRun, texts: Sequence[Labelled], writer: str, analysis: Call) -> Cost:
    """The cost of fusing these candidates with the analysis, which is not written yet."""
    specification = run.specification
    if not specification.budget.counts_tokens:
        return Cost(calls=1)
    nothing = Analysis(agreements=(), conflicts=(), gaps=())
    prompt = fuse(specification, texts, nothing, nonce(specification.seed, "reserve"))
    call = run.call(run.agent(writer), prompt, Output(kind="fusion"))
    return predicted(specification.budget, [call]) + _read(run, [writer], analysis.max_tokens)


def gating(run: StrategyRun, single: Candidate, writer: str, judges: Sequence[str]) -> Cost:
    """The cost of comparing the fused text, which is not written yet, with the best single text in both orders."""
    specification = run.specification
    if not specification.budget.counts_tokens:
        return Cost(calls=2)
    unwritten = Labelled("B", "", nonce(specification.seed, "reserve"))
    prompt = judge_pair(specification, run.shown("A", single), unwritten)
    fused = run.agent(writer).sampling.max_tokens
    calls = [run.call(run.agent(judges[turn % len(judges)]), prompt, Output(kind="pair")) for turn in range(2)]
    return predicted(specification.budget, calls) + _read(run, judges, 2 * fused)


def _read(run: StrategyRun, readers: Iterable[str], tokens: int) -> Cost:
    """So many tokens of unwritten text in the prompts of these agents, as if the dearest role read all of it."""
    roles = {run.agent(reader).role for reader in readers}
    return max((priced(run.specification.budget, role, tokens) for role in sorted(roles)), key=lambda cost: cost.amount)


def _sizes(run: StrategyRun, versions: Sequence[Candidate], coming: Collection[str]) -> list[tuple[str, int]]:
    """The bytes of each author's first and last version; the last one of authors in `coming` is not written yet."""
    first = [(each.author, len(each.text.encode())) for each in versions if not each.version]
    last = {each.author: len(each.text.encode()) for each in versions if each.version}
    for author in coming:
        last[author] = max(last.get(author, 0), run.agent(author).sampling.max_tokens * BYTES_PER_TOKEN)
    return [*first, *last.items()]
