"""A call for each form of output, and whether its outcome has that form."""

from app.deliberation.calls import Call
from app.deliberation.facts import CallFinished
from app.deliberation.outputs import Output, parse_output
from tests.integration.agent.stage_runs import call

OUTPUTS = [
    Output(kind="answer"),
    Output(kind="critique"),
    Output(kind="revision", issues=3),
    Output(kind="score", labels=("A", "B"), criteria=("correctness", "clarity")),
    Output(kind="pair"),
    Output(kind="turn"),
    Output(kind="choice", labels=("A", "B")),
    Output(kind="analysis"),
    Output(kind="tests"),
]


def calls_for(outputs: list[Output], first: int = 1) -> tuple[Call, ...]:
    enough = {"max_tokens": 4_096, "top_p": 0.9}
    return tuple(call(number, output).model_copy(update=enough) for number, output in enumerate(outputs, start=first))


def assert_valid(asked: tuple[Call, ...], outcomes: list[CallFinished]) -> None:
    by_id = {outcome.call_id: outcome for outcome in outcomes}
    for request in asked:
        outcome = by_id[request.call_id]
        assert outcome.problem is None, outcome.problem
        assert outcome.text is not None
        parse_output(request.output, outcome.text)
