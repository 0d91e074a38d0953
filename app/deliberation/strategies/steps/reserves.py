"""Reserves: the part of a budget that later stages need when a stage is worthless without them.

Predictions err upwards, as `budget.predicted_tokens` does: unwritten text counts at its author's bound. Tokens are not
counted where the budget leaves them open.
"""

from collections.abc import Collection, Mapping, Sequence

from app.deliberation.budget import BYTES_PER_TOKEN, predicted_tokens
from app.deliberation.calls import Call, Cost
from app.deliberation.choice.anonymity import nonce
from app.deliberation.outputs import Analysis, Output
from app.deliberation.prompts.council import judge_pair, revise, score
from app.deliberation.prompts.form import candidate
from app.deliberation.prompts.fusion import fuse
from app.deliberation.strategies.steps.strategy_run import Candidate, StrategyRun, ballot_tokens

# The longest label, in a prompt's list of labels and between candidates.
_PER_CANDIDATE = "AA, \n\n"


def scoring(run: StrategyRun, versions: Sequence[Candidate], coming: Collection[str] = ()) -> Cost:
    """The cost of scoring each other's versions, with an unwritten last version of each author in `coming`."""
    authors = list(dict.fromkeys(version.author for version in versions))
    specification = run.specification
    if specification.budget.max_tokens is None:
        return Cost(calls=len(authors))
    mark = nonce(specification.seed, "reserve")
    frame = sum(len(message.content.encode()) for message in score(specification, [], mark))
    each = len((candidate("AA", "", mark) + _PER_CANDIDATE).encode())
    sizes = _sizes(run, versions, coming)
    tokens = 0
    for reviewer in authors:
        shown = [size + each for author, size in sizes if author != reviewer]
        bound = ballot_tokens(run.agent(reviewer), len(shown), len(specification.constraints.rubric))
        tokens += (frame + sum(shown)) // BYTES_PER_TOKEN + bound
    return Cost(calls=len(authors), tokens=tokens)


def revising(run: StrategyRun, latest: Mapping[str, Candidate], critiques: Sequence[Call]) -> Cost:
    """The cost of a stage in which every author revises on these critiques, which are not written yet."""
    specification = run.specification
    if specification.budget.max_tokens is None:
        return Cost(calls=len(latest))
    mark = nonce(specification.seed, "reserve")
    calls = [
        run.call(run.agent(author), revise(specification, own.text, (), mark), Output(kind="revision"))
        for author, own in latest.items()
    ]
    return Cost(calls=len(calls), tokens=predicted_tokens(calls) + sum(call.max_tokens for call in critiques))


def fusing(run: StrategyRun, texts: Sequence[tuple[str, str]], writer: str, analysis: Call) -> Cost:
    """The cost of fusing these (label, text) pairs with the analysis, which is not written yet."""
    specification = run.specification
    if specification.budget.max_tokens is None:
        return Cost(calls=1)
    nothing = Analysis(agreements=(), conflicts=(), gaps=())
    prompt = fuse(specification, texts, nothing, nonce(specification.seed, "reserve"))
    call = run.call(run.agent(writer), prompt, Output(kind="answer"))
    return Cost(calls=1, tokens=predicted_tokens([call]) + analysis.max_tokens)


def gating(run: StrategyRun, single: Candidate, writer: str, judges: Sequence[str]) -> Cost:
    """The cost of comparing the fused text, which is not written yet, with the best single text in both orders."""
    specification = run.specification
    if specification.budget.max_tokens is None:
        return Cost(calls=2)
    prompt = judge_pair(specification, single.text, "", nonce(specification.seed, "reserve"))
    fused = run.agent(writer).sampling.max_tokens
    calls = [run.call(run.agent(judges[turn % len(judges)]), prompt, Output(kind="pair")) for turn in range(2)]
    return Cost(calls=2, tokens=predicted_tokens(calls) + 2 * fused)


def _sizes(run: StrategyRun, versions: Sequence[Candidate], coming: Collection[str]) -> list[tuple[str, int]]:
    """The bytes of each author's first and last version; the last one of authors in `coming` is not written yet."""
    first = [(each.author, len(each.text.encode())) for each in versions if not each.version]
    last = {each.author: len(each.text.encode()) for each in versions if each.version}
    for author in coming:
        last[author] = max(last.get(author, 0), run.agent(author).sampling.max_tokens * BYTES_PER_TOKEN)
    return [*first, *last.items()]
