"""No accepted deliberation is lost or ends twice under any order of faults in server, network and processes.

A state machine of Hypothesis drives the whole product over the in-memory server (tests/crash) and its faults. Answers
are lost, so that a repeated write is refused. Writes land after their time-out. Acknowledgements are lost. Work is
delivered twice: after a kill of the server, or while its holder hangs and later goes on. The real server behaves alike:
tests/contracts/test_delivery.py.

A longer run, of so many examples: `MODEL_EXAMPLES=5000 .venv/bin/pytest tests/components/log/test_journal_model.py`.
"""

import os
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from app.deliberation.facts import Completed, Fact, Failed, TimedOut, decode
from app.deliberation.fold import fold
from tests.crash.audit import Audit
from tests.crash.clock import virtual_time
from tests.crash.points import Points
from tests.crash.runs import answered
from tests.crash.server import Fate
from tests.crash.stack import Service, Stack
from tests.crash.stream import Stored

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "25"))
STEPS = 40

DOUBTED = (
    "deliberations.*.*.accepted",
    "deliberations.*.*.stage.*.*",
    "deliberations.*.*.call.*.finished",
    "deliberations.*.*.takeover.*",
    "deliberations.*.*.cancel",
    "deliberations.*.*.end",
    "orchestration.>",
    "$JS.API.STREAM.MSG.GET.*",
    "$JS.API.DIRECT.GET.*",
)
# The latest end: a deliberation's deadline (300 s by default), and the time that retries of its write may take.
HEALED_WITHIN_S = 500.0


class GuaranteesModel(RuleBasedStateMachine):
    """One run: clients, two coordinators, an agent, a gateway, and faults between them."""

    def __init__(self) -> None:
        super().__init__()
        self._closing = ExitStack()
        self.loop = self._closing.enter_context(virtual_time())
        self.stack = Stack(self.loop, Points(), answered, coordinators=2)
        self.accepted: list[str] = []
        self.asked_to_stop: set[str] = set()
        self._numbers = 0
        self._seen = 0
        self._standing: dict[str, Stored] = {}

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        async def started() -> None:
            self.stack.start()
            await self.stack.insist("GET", "/healthz")

        self._do(started())

    # Clients

    @rule(strategy=st.sampled_from(["single", "vote", "council"]))
    def submit(self, strategy: str) -> None:
        self._numbers += 1
        key = f"key{self._numbers}"
        body = {"task": "Name a colour.", "strategy": strategy, "agents": [{"role": "DEV", "count": 2}], "seed": 7}

        async def submitted() -> None:
            self.accepted.append(await self.stack.submit(body, key))

        self._do(self._outside(submitted()))

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.cancel_chosen(data.draw(st.sampled_from(sorted(self.accepted))))

    def cancel_chosen(self, chosen: str) -> None:
        self.asked_to_stop.add(chosen)
        self._do(self._outside(self.stack.cancel(chosen)))

    async def _outside(self, work: Coroutine[Any, Any, None]) -> None:
        self.stack.outside(work)

    # Time and work

    @rule(steps=st.integers(1, 60))
    def work(self, steps: int) -> None:
        self._do(self.stack.steps(steps, within_s=10.0))

    @rule(seconds=st.sampled_from([0.05, 0.5, 3.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self._do(self.stack.wait(seconds))

    # Faults

    def _service(self, place: int) -> Service:
        return self.stack.services[place % len(self.stack.services)]

    @rule(place=st.integers(0, 3))
    def kill(self, place: int) -> None:
        self._do(self.stack.kill(self._service(place)))

    @rule(place=st.integers(2, 3))
    def hang(self, place: int) -> None:
        self._service(place).process.stop()

    @rule(place=st.integers(2, 3))
    def wake(self, place: int) -> None:
        self._service(place).process.go_on()

    @rule(down_s=st.sampled_from([0.0, 0.4, 2.0, 8.0]))
    def kill_server(self, down_s: float) -> None:
        self._do(self.stack.kill_server(down_s))

    @rule(pattern=st.sampled_from(DOUBTED), fate=st.sampled_from(["unanswered", "late", "lost"]))
    def doubt(self, pattern: str, fate: Fate) -> None:
        self.stack.server.fates.append((pattern, fate))

    @rule()
    def lose_acknowledgement(self) -> None:
        self.stack.server.fates.append(("$JS.ACK.>", "lost"))

    @rule()
    def deliver_again(self) -> None:
        async def deliver() -> None:
            for sequence in self.stack.server.consumer.held:
                self.stack.server.consumer.again(sequence)

        self._do(deliver())

    # Invariants of every step

    @invariant()
    def first_write_wins_and_what_was_seen_stands(self) -> None:
        log = self.stack.server.log
        for message in log.stored[self._seen :]:
            if isinstance(decode(message.data), Fact):
                first = self._standing.setdefault(message.subject, message)
                assert first is message, f"{message.subject} was written twice"
        self._seen = len(log.stored)
        assert self.stack.server.acknowledged_early == []
        again = [asked for asked in self.stack.engine.asked if asked.recorded]
        assert again == [], "a recorded call was made again"

    # Invariants of the end

    def teardown(self) -> None:
        try:
            self._do(self.stack.heal())
            self._do(self.stack.idle())
            quiet = self._do(self.stack.quiet(self.accepted, HEALED_WITHIN_S))
            begun = {
                each.subject.split(".")[2] for each in self.stack.server.log.matching("deliberations.*.*.accepted")
            }
            assert begun.issuperset(self.accepted), "an accepted deliberation is not in the log"
            assert len(begun) <= self._numbers, "a request that was sent again began a second deliberation"
            assert quiet, f"not ended, or left in the queue: {self.stack.server.consumer.info()}"
            self.first_write_wins_and_what_was_seen_stands()
            for deliberation in begun:
                self._ended_as_the_log_tells(deliberation)
        finally:
            self._do(self.stack.stop())
            self._closing.close()

    def _ended_as_the_log_tells(self, deliberation: str) -> None:
        audit = Audit(self.stack, deliberation)
        audit.hold()
        assert audit.faults == []
        (end,) = audit.ends
        state = fold(audit.facts)
        assert state is not None
        if isinstance(end, Failed):
            assert end.problem is not None and end.problem.code == "poisoned" and state.takeovers >= 5, end.problem
        elif isinstance(end, TimedOut):
            assert end.ts >= state.accepted.deadline_at
        elif not isinstance(end, Completed):
            assert deliberation in self.asked_to_stop


def test_guarantees_hold_under_random_faults() -> None:
    run_state_machine_as_test(
        GuaranteesModel,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
        ),
    )


def test_a_cancel_stops_a_stage_that_another_coordinator_opened_while_the_work_waited() -> None:
    """One coordinator hangs and one starts anew; the hung one wakes, and opens the stage of a work that both hold."""
    model = GuaranteesModel()
    model.begin()
    model.hang(place=3)
    model.kill(place=2)
    model.doubt(pattern="deliberations.*.*.call.*.finished", fate="lost")
    model.submit(strategy="vote")
    model.kill(place=0)
    model.wait(seconds=10.0)
    model.wake(place=3)
    model.kill(place=0)
    model.cancel_chosen(model.accepted[0])
    model.teardown()
