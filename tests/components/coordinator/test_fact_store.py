import pytest

from app.deliberation.errors import UnexpectedFact
from app.deliberation.facts import Fact
from app.deliberation.ports import Record
from serve_deployments.coordinator.fact_store import FactStore
from tests.components.coordinator.executions import TENANT, execution_of, running
from tests.fakes import InMemoryJournal
from tests.unit.facts_of import accepted, cancelling, closed, finished, opened


async def log_of(*facts: Fact) -> tuple[InMemoryJournal, list[Record]]:
    journal = InMemoryJournal()
    return journal, [(await journal.append(TENANT, fact)).record for fact in facts]


async def test_folds_each_heard_outcome_once() -> None:
    journal, (outcome,) = await log_of(finished())
    execution = running()
    execution.inbox.put_nowait(outcome)
    await FactStore(journal).catch_up(execution, [outcome])
    assert list(execution.state.finished) == ["s1-dev-001"] and execution.state.revision == 3


async def test_reads_the_log_when_facts_were_missed() -> None:
    journal, _ = await log_of(accepted(), opened(), finished())
    execution = running()
    await FactStore(journal).catch_up(execution, [None])
    assert list(execution.state.finished) == ["s1-dev-001"]


async def test_reads_the_log_when_an_outcome_belongs_to_a_stage_of_another_coordinator() -> None:
    journal, records = await log_of(
        accepted(), opened(), finished(), closed(seen=["dev-001"]), opened(2), finished(stage=2)
    )
    execution = running()
    await FactStore(journal).catch_up(execution, [records[-1]])
    assert [stage.opened.stage for stage in execution.state.stages] == [1, 2]
    assert set(execution.state.finished) == {"s1-dev-001", "s2-dev-001"}


async def test_refuses_an_outcome_that_no_stage_has_planned() -> None:
    journal, (outcome,) = await log_of(finished("stranger"))
    with pytest.raises(UnexpectedFact):
        await FactStore(journal).catch_up(running(), [outcome])


async def test_adopts_the_log_when_another_fact_stands() -> None:
    journal, _ = await log_of(accepted(), opened(), finished(), closed(seen=["dev-001"]))
    execution = running()
    assert not await FactStore(journal).append(execution, closed())
    assert execution.resumed and execution.state.open_stage is None


async def test_a_fresh_work_needs_no_read_and_sees_its_early_cancel() -> None:
    journal, _ = await log_of()
    facts = FactStore(journal)
    assert not facts.load_fresh(execution_of()), "cancels may have been missed so far"
    await facts.resync()
    _, (cancel,) = await log_of(cancelling())
    facts.keep_early_cancel(cancel)
    execution = execution_of()
    assert facts.load_fresh(execution) and execution.state.cancel is not None
    assert not facts.load_fresh(execution_of(resumed=True))
    facts.mark_incomplete()
    assert not facts.load_fresh(execution_of())
