from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.deliberation.calls import Call
from app.deliberation.facts import StageOpened
from app.deliberation.specification import Budget, Specification
from tests.fakes import Reply
from tests.unit.facts_of import BROKEN, CouncilScript, Run, agent_ids, answer, specification, turn

Turns = Mapping[str, str]
"""An agent's answers in debate, by call id or agent; `X!` is X without an error, absent keeps its answer."""


def asked(
    size: int, *, rounds: int = 1, seed: int = 7, budget: Budget | None = None, **parameters: Any
) -> Specification:
    base = specification(size, strategy="debate", rounds=rounds, seed=seed, budget=budget)
    return base.model_copy(update={"parameters": parameters})


def council(drafts: str, turns: Turns | None = None, failing: Sequence[str] = ()) -> Callable[[Call], Reply]:
    said: dict[str, str] = dict(zip(agent_ids(len(drafts)), drafts, strict=True))

    def script(call: Call) -> Reply:
        if call.call_id in failing:
            return Reply(problem=BROKEN)
        if call.output.kind != "turn":
            return Reply(text=answer(said[call.agent_id])) if call.output.kind == "answer" else CouncilScript()(call)
        taken = (turns or {}).get(call.call_id, (turns or {}).get(call.agent_id, said[call.agent_id]))
        if not taken.endswith("!"):
            said[call.agent_id] = taken
        return Reply(text=turn(taken.removesuffix("!"), "" if taken.endswith("!") else "step 2 is wrong"))

    return script


def votes(ended: Run) -> dict[str, int]:
    return {each.answer: each.votes for each in ended.verdict.tally}


def spoke(ended: Run) -> list[str]:
    rounds = [stage for stage in ended.all(StageOpened) if stage.purpose == "debate"]
    return ["".join(call.agent_id[-1] for call in stage.calls) for stage in rounds]
