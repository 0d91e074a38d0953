"""The number of a council's calls, counted in each place that tells it."""

from tests.unit.facts_of import Run


def counts(ended: Run) -> set[int]:
    """The number of calls, by the engine's requests, the verdict, and the usage in total, by stage and by agent.

    What a sandbox ran is no engine's call.
    """
    spent = ended.end.usage
    return {
        sum(call.output.kind != "report" for call in ended.calls),
        ended.verdict.calls,
        spent.calls,
        sum(stage.calls for stage in spent.by_stage),
        sum(agent.calls for agent in spent.by_agent),
    }
