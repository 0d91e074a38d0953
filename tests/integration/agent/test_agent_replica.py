import asyncio
import errno
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import httpx
import pytest

from app.deliberation.calls import BATCH_AFTER
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import (
    CallDelta,
    CallFinished,
    CallStarted,
    CallWaiting,
    CancelRequested,
    StageClosed,
    View,
)
from app.deliberation.outputs import TEXT_CHARS_MAX
from app.deliberation.ports import Record
from app.deliberation.roles import EngineSpec, Role
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.agent.call import announce_attempt
from serve_deployments.agent.outcome_check import ABSENT_FOR_S
from serve_deployments.engine.client import Engines
from serve_deployments.engine.limits import OPEN_S
from serve_deployments.engine.pool import TOGETHER
from serve_deployments.engine.state import EngineFailure
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.integration.agent.scripted_engine import ANSWER, USAGE, ScriptedEngine, streamed
from tests.integration.agent.stage_runs import (
    PERSONA,
    PRICES,
    STOPS,
    AnsweringJournal,
    call,
    outcomes,
    replica,
    request,
    views,
)


async def test_a_replica_reports_what_its_engines_answered_and_what_is_wrong_with_them() -> None:
    engine = ScriptedEngine(lambda _, number: streamed(ANSWER) if number < 3 else httpx.Response(503))
    agent = replica(engine, InMemoryJournal())
    await outcomes(agent, request((call(1), call(2))))
    (before,) = (await agent.describe())["engines"]
    assert (before["answers"], before["prompt_tokens"], before["completion_tokens"]) == (2, 20, 10)
    assert [prompt for _, prompt, _ in before["recent"]] == [10, 10] and before["trouble"] is None
    assert all(ttft_ms >= 0 for ttft_ms, _, _ in before["recent"])
    state = agent.engines.engines[0]
    state.circuit.failed(time.monotonic(), unreachable=False)
    began, state.failure = datetime.now(UTC), EngineFailure("memory", "it answered 503: CUDA out of memory")
    assert state.trouble(time.monotonic()) is None, "one failure opens no circuit"
    for _ in range(2):
        state.circuit.failed(time.monotonic() + 5, unreachable=False)
    trouble = state.trouble(time.monotonic())
    assert trouble is not None and trouble.detail == "is out of memory: it answered 503: CUDA out of memory"
    assert abs((trouble.since - began).total_seconds()) < 1 and "--max-model-len" in trouble.remedy
    state.circuit.succeeded()
    assert state.trouble(time.monotonic()) is None


@pytest.mark.parametrize("deltas", [True, False])
async def test_answers_are_recorded_and_deltas_rebuild_the_text(deltas: bool) -> None:
    whole = {"choices": [{"message": {"content": ANSWER}, "finish_reason": "stop"}], "usage": USAGE}
    engine = ScriptedEngine(
        lambda body, _: (
            streamed(ANSWER)
            if body.get("stream")
            else httpx.Response(200, stream=httpx.ByteStream(json.dumps(whole).encode()))
        )
    )
    journal = InMemoryJournal()
    found = await outcomes(replica(engine, journal, deltas=deltas), request((call(1), call(2), call(3))))
    assert sorted(outcome.agent_id for outcome in found) == ["dev-001", "dev-002", "dev-003"]
    assert all(outcome.text == ANSWER and outcome.attempt == 1 for outcome in found)
    assert all(outcome.usage.calls == 1 and outcome.usage.prompt_tokens == 10 for outcome in found)
    assert {event.call_id for event in views(journal, CallFinished)} == {"s1-dev-001", "s1-dev-002", "s1-dev-003"}
    text: dict[str, str] = {}
    for delta in views(journal, CallDelta):
        assert delta.offset == len(text.get(delta.call_id, ""))
        text[delta.call_id] = text.get(delta.call_id, "") + delta.text
    assert text == (dict.fromkeys(("s1-dev-001", "s1-dev-002", "s1-dev-003"), ANSWER) if deltas else {})


async def test_a_call_costs_what_the_engine_of_each_request_asks() -> None:
    engine = ScriptedEngine(lambda _, number: streamed("half a thought") if number == 1 else streamed(ANSWER))
    agent = replica(engine, InMemoryJournal())
    agent.engines.engines[0].spec = EngineSpec(url="http://engine0", prices=PRICES)
    (outcome,) = await outcomes(agent, request((call(),)))
    assert outcome.usage.calls == 2 and outcome.usage.cost is not None
    assert str(outcome.usage.cost) == "0.000026 USD", "twice 10 tokens at 0.5 and 5 at 1.5, each rounded half up"
    assert (await agent.describe())["costs"] == {"USD": 26}
    await outcomes(agent, request((call(),)))
    assert (await agent.describe())["costs"] == {"USD": 26}, "a recorded call counts once"
    (unknown,) = await outcomes(replica(engine, InMemoryJournal()), request((call(),)))
    assert unknown.usage.cost is None


async def test_requests_of_a_replica_that_died_have_no_known_cost() -> None:
    engine, journal = ScriptedEngine(lambda *_: streamed(ANSWER)), InMemoryJournal()
    await announce_attempt(journal, request((call(),)), call(), "scripted", 2)
    agent = replica(engine, journal)
    agent.engines.engines[0].spec = EngineSpec(url="http://engine0", prices=PRICES)
    (outcome,) = await outcomes(agent, request((call(),), resumed=True))
    assert outcome.usage.calls == 3
    assert str(outcome.usage.cost) == "0.000013 USD, without 2 unpriced calls"


async def test_a_persona_that_all_agents_share_stands_after_the_rules() -> None:
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    await outcomes(replica(engine, InMemoryJournal()), request((call(),)).model_copy(update={"one_persona": True}))
    rules, work = (message["content"] for message in engine.bodies[0]["messages"])
    assert rules == f"s\n\n# Who you are\n{PERSONA}"
    assert PERSONA not in work


async def test_the_persona_ends_the_prompt_and_starts_name_the_model() -> None:
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    journal = InMemoryJournal()
    await outcomes(replica(engine, journal), request((call(),)))
    assert engine.bodies[0]["messages"][-1]["content"].startswith("u1")
    assert engine.bodies[0]["messages"][-1]["content"].endswith(PERSONA)
    (started,) = views(journal, CallStarted)
    assert (started.model, started.attempt) == ("scripted", 1)


INVALID = {
    "not JSON": ("half a thought", "stop"),
    "out of range": (json.dumps({"reasoning": "r", "answer": "a" * (TEXT_CHARS_MAX + 1), "confidence": 1}), "stop"),
    "cut off": (ANSWER[:-1], "length"),
}


@pytest.mark.parametrize("first", INVALID.values(), ids=INVALID.keys())
async def test_asks_once_more_with_another_seed_after_an_invalid_answer(first: tuple[str, str]) -> None:
    engine = ScriptedEngine(lambda _, number: streamed(*first) if number == 1 else streamed(ANSWER))
    journal = InMemoryJournal()
    (outcome,) = await outcomes(replica(engine, journal), request((call(),)))
    assert outcome.text == ANSWER and outcome.attempt == 2
    assert (outcome.usage.calls, outcome.usage.completion_tokens) == (2, 10)
    assert engine.bodies[0]["seed"] == 11 != engine.bodies[1]["seed"]
    assert [started.attempt for started in views(journal, CallStarted)] == [1, 2]


async def test_what_was_read_leniently_is_recorded_and_counted() -> None:
    lenient = "Here you are: " + json.dumps({"reasoning": "r", "answer": "a", "confidence": "high"})
    engine = ScriptedEngine(lambda body, _: streamed(lenient if "u1" in str(body) else ANSWER))
    agent = replica(engine, InMemoryJournal())
    first, second = await outcomes(agent, request((call(1), call(2))))
    assert json.loads(first.text or "")["confidence"] is None and first.lenient == ("confidence", "prose")
    assert (second.text, second.lenient, len(engine.bodies)) == (ANSWER, (), 2)
    assert (await agent.describe())["lenient"] == {"confidence": 1, "prose": 1}


async def test_two_invalid_answers_are_a_recorded_failure() -> None:
    engine = ScriptedEngine(lambda *_: streamed("nonsense"))
    (outcome,) = await outcomes(replica(engine, InMemoryJournal()), request((call(),)))
    assert outcome.text is None and outcome.problem is not None and outcome.problem.code == "invalid_output"
    assert len(engine.bodies) == 2 and outcome.usage.calls == 2


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("Sure!\n Here is  my answer.", 'the reply begins "Sure! Here is my answer."'),
        ("x" * 500, f'the reply begins "{"x" * 80}".'),
        ('{"reply": "a"}', 'the reply begins "{\\"reply\\": \\"a\\"}"'),
        ("", "the reply is empty"),
    ],
)
async def test_an_invalid_answer_is_quoted_with_the_remedy_and_is_not_logged(
    text: str, begins: str, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = ScriptedEngine(lambda *_: streamed(text))
    (outcome,) = await outcomes(replica(engine, InMemoryJournal()), request((call(),)))
    assert outcome.problem is not None
    assert begins in outcome.problem.detail and "response_format" in outcome.problem.detail
    logged = capsys.readouterr().out
    assert "output_invalid" in logged and "the reply begins" not in logged


async def test_does_not_retry_a_refusal() -> None:
    engine = ScriptedEngine(lambda *_: httpx.Response(400, stream=httpx.ByteStream(b"bad")))
    (outcome,) = await outcomes(replica(engine, InMemoryJournal()), request((call(),)))
    assert outcome.problem is not None and outcome.problem.code == "engine_rejected"
    assert len(engine.bodies) == 1


async def test_retries_on_another_engine() -> None:
    engine = ScriptedEngine(
        lambda _, number: httpx.Response(500, stream=httpx.ByteStream(b"")) if number == 1 else streamed(ANSWER)
    )
    (outcome,) = await outcomes(replica(engine, InMemoryJournal(), engines=2), request((call(),)))
    assert outcome.text == ANSWER and outcome.attempt == 2
    assert len(set(engine.hosts)) == 2


async def test_makes_three_attempts_at_most() -> None:
    engine = ScriptedEngine(lambda *_: httpx.Response(500, stream=httpx.ByteStream(b"")))
    agent = replica(engine, InMemoryJournal())
    (outcome,) = await outcomes(agent, request((call(),)))
    assert outcome.problem is not None and outcome.problem.code == "engine_unavailable" and outcome.problem.retryable
    assert len(engine.bodies) == 3 == outcome.attempt
    assert (await agent.describe())["counts"]["retries"] == 2


async def test_a_call_that_hangs_fails_at_its_deadline() -> None:
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    engine.hold = asyncio.Event()
    (outcome,) = await outcomes(replica(engine, InMemoryJournal()), request((call(),), deadline_s=0.05))
    assert outcome.problem is not None and outcome.problem.code == "call_timeout"


async def test_does_not_ask_an_engine_for_a_recorded_answer() -> None:
    journal = InMemoryJournal()
    first = ScriptedEngine(lambda *_: streamed(ANSWER))
    before = await outcomes(replica(first, journal), request((call(1),)))
    second = ScriptedEngine(lambda *_: streamed(ANSWER))
    after = await outcomes(replica(second, journal), request((call(1), call(2)), resumed=True))
    assert before[0] in after and len(after) == 2
    assert [body["messages"][-1]["content"][:2] for body in second.bodies] == ["u2"]


async def test_does_not_retry_a_call_that_another_replica_has_recorded() -> None:
    journal = InMemoryJournal()
    failing = ScriptedEngine(lambda *_: httpx.Response(500, stream=httpx.ByteStream(b"")))
    failing.hold = asyncio.Event()
    given_up = asyncio.create_task(outcomes(replica(failing, journal), request((call(),))))
    await until(lambda: len(failing.bodies) == 1)
    recorded = await outcomes(replica(ScriptedEngine(lambda *_: streamed(ANSWER)), journal), request((call(),)))
    failing.hold.set()
    assert await given_up == recorded and len(failing.bodies) == 1


@pytest.mark.parametrize("asked_s_ago", [ABSENT_FOR_S, -30], ids=["an old request", "a clock that is ahead"])
async def test_looks_up_the_outcome_when_the_moment_of_the_request_proves_nothing(asked_s_ago: float) -> None:
    journal = InMemoryJournal()
    recorded = await outcomes(replica(ScriptedEngine(lambda *_: streamed(ANSWER)), journal), request((call(),)))
    late = ScriptedEngine(lambda *_: streamed(ANSWER))
    assert await outcomes(replica(late, journal), request((call(),), asked_s_ago=asked_s_ago)) == recorded
    assert late.bodies == []


async def test_waits_for_an_unavailable_log_before_it_asks_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    journal, away = InMemoryJournal(), 2

    async def last(patterns: Sequence[str]) -> list[Record]:
        nonlocal away
        away -= patterns[0].endswith(".finished")
        if away >= 0 and patterns[0].endswith(".finished"):
            raise JournalUnavailable("away")
        return await InMemoryJournal.last(journal, patterns)

    recorded = await outcomes(replica(ScriptedEngine(lambda *_: streamed(ANSWER)), journal), request((call(),)))
    late = ScriptedEngine(lambda *_: streamed(ANSWER))
    monkeypatch.setattr(journal, "last", last)
    monkeypatch.setattr("serve_deployments.agent.outcome_check.LOOKUP_RETRY_S", 0.001)
    assert await outcomes(replica(late, journal), request((call(),), asked_s_ago=ABSENT_FOR_S)) == recorded
    assert late.bodies == [] and away < 0


class Clock:
    def __init__(self) -> None:
        self.ahead = timedelta()

    def now(self, zone: tzinfo) -> datetime:
        return datetime.now(zone) + self.ahead

    def pause(self) -> None:
        self.ahead += timedelta(seconds=ABSENT_FOR_S)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("serve_deployments.agent.outcome_check.datetime", found)
    return found


async def test_looks_up_the_outcome_again_after_a_slow_lookup(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    journal = InMemoryJournal()
    looks: list[int] = []

    async def last(patterns: Sequence[str]) -> list[Record]:
        found = await InMemoryJournal.last(journal, patterns)
        if patterns[0].endswith(".finished"):
            looks.append(len(found))
            if len(looks) == 1:
                await outcomes(replica(ScriptedEngine(lambda *_: streamed(ANSWER)), journal), request((call(),)))
                clock.pause()
        return found

    late = ScriptedEngine(lambda *_: streamed(ANSWER))
    monkeypatch.setattr(journal, "last", last)
    (outcome,) = await outcomes(replica(late, journal), request((call(),), asked_s_ago=ABSENT_FOR_S))
    assert looks == [0, 1] and late.bodies == [] and outcome.problem is None


async def test_looks_up_the_outcome_again_before_a_delayed_request_is_written(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    journal = InMemoryJournal()
    late = ScriptedEngine(lambda *_: streamed(ANSWER))
    agent = replica(late, journal)
    recorded: list[CallFinished] = []

    async def publish_view(tenant: str, view: View, until: datetime | None = None) -> None:
        await InMemoryJournal.publish_view(journal, tenant, view, until)
        if isinstance(view, CallStarted) and not recorded:
            monkeypatch.undo()
            recorded.extend(
                await outcomes(replica(ScriptedEngine(lambda *_: streamed(ANSWER)), journal), request((call(),)))
            )
            monkeypatch.setattr("serve_deployments.agent.outcome_check.datetime", clock)
            clock.pause()

    monkeypatch.setattr(journal, "publish_view", publish_view)
    assert await outcomes(agent, request((call(),))) == recorded != []
    assert late.bodies == []


async def test_looks_up_the_outcome_again_after_waiting_for_a_slot(clock: Clock) -> None:
    journal = InMemoryJournal()
    late = ScriptedEngine(lambda *_: streamed(ANSWER))
    agent = replica(late, journal)
    agent.engines.concurrency = 1
    with agent.engines.requesting(agent.engines.engines[0]):
        waiting = asyncio.create_task(outcomes(agent, request((call(),), resumed=True)))
        recorded = await outcomes(replica(ScriptedEngine(lambda *_: streamed(ANSWER)), journal), request((call(),)))
        clock.pause()
    assert await waiting == recorded and late.bodies == []


async def test_trusts_a_log_that_is_always_slow_after_some_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_deployments.agent.outcome_check.ABSENT_FOR_S", 0.0)
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    (outcome,) = await outcomes(replica(engine, InMemoryJournal()), request((call(),)))
    assert outcome.problem is None and len(engine.bodies) == 1


async def test_keeps_call_started_until_the_calls_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journal = InMemoryJournal()
    kept: dict[str, datetime | None] = {}

    async def publish_view(tenant: str, view: View, until: datetime | None = None) -> None:
        kept[view.type] = until
        await InMemoryJournal.publish_view(journal, tenant, view, until)

    monkeypatch.setattr(journal, "publish_view", publish_view)
    asked = request((call(),), deadline_s=3_000)
    await outcomes(replica(ScriptedEngine(lambda *_: streamed(ANSWER)), journal), asked)
    assert kept == {"call.started": asked.deadline_at, "call.delta": None}


async def test_a_repeated_call_goes_on_with_the_next_attempt_number() -> None:
    journal = InMemoryJournal()
    lost = CallStarted(
        deliberation_id="d1", ts=datetime.now(UTC), call_id="s1-dev-001", agent_id="dev-001", role="DEV", model="m",
        attempt=1,
    )  # fmt: skip
    await journal.publish_view("default", lost)
    (outcome,) = await outcomes(
        replica(ScriptedEngine(lambda *_: streamed(ANSWER)), journal), request((call(),), resumed=True)
    )
    assert outcome.attempt == 2 and outcome.usage.calls == 2


async def test_two_requests_for_one_call_share_it() -> None:
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    engine.hold = asyncio.Event()
    agent = replica(engine, InMemoryJournal())
    both = asyncio.gather(outcomes(agent, request((call(),))), outcomes(agent, request((call(),), resumed=True)))
    await until(lambda: len(engine.bodies) == 1)
    engine.hold.set()
    first, second = await both
    assert first == second and len(engine.bodies) == 1


async def test_a_call_outlives_its_cancelled_request() -> None:
    journal = InMemoryJournal()
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    engine.hold = asyncio.Event()
    agent = replica(engine, journal)
    consumer = asyncio.create_task(outcomes(agent, request((call(),))))
    await until(lambda: len(engine.bodies) == 1)
    consumer.cancel()
    await asyncio.wait({consumer})
    engine.hold.set()
    await until(lambda: bool(views(journal, CallFinished)))


async def test_a_stopping_replica_waits_for_its_calls_for_a_limited_time() -> None:
    journal = InMemoryJournal()
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    engine.hold = asyncio.Event()
    agent = replica(engine, journal)
    await agent.finish(0)
    consumer = asyncio.create_task(outcomes(agent, request((call(),))))
    await until(lambda: len(engine.bodies) == 1)
    await agent.finish(0)
    assert views(journal, CallFinished) == [], "the time limit was over"
    finishing = asyncio.create_task(agent.finish(30))
    await asyncio.sleep(0)
    engine.hold.set()
    await finishing
    (finished,) = views(journal, CallFinished)
    assert [finished] == await consumer


@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS.keys())
async def test_facts_stop_calls_and_stopped_calls_record_call_cancelled(stop: CancelRequested | StageClosed) -> None:
    journal = AnsweringJournal()
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    engine.hold = asyncio.Event()
    agent = replica(engine, journal)
    await agent.listen()
    running = asyncio.create_task(outcomes(agent, request((call(1), call(2)))))
    await until(lambda: len(engine.bodies) == 2)
    await journal.append("default", stop)
    cut = await running
    assert sorted(outcome.call_id for outcome in cut) == ["s1-dev-001", "s1-dev-002"]
    for outcome in cut:
        assert outcome.problem is not None and outcome.problem.code == "call_cancelled"
        assert (outcome.text, outcome.usage.calls) == (None, 1)


class Growing(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        line = {
            "choices": [{"delta": {"content": "x"}, "finish_reason": None}],
            "usage": {**USAGE, "completion_tokens": 3},
        }
        yield f"data: {json.dumps(line)}\n\n".encode()
        await asyncio.Event().wait()


async def test_a_stopped_call_is_charged_for_what_it_had_written() -> None:
    journal = AnsweringJournal()
    agent = replica(ScriptedEngine(lambda *_: httpx.Response(200, stream=Growing())), journal)
    running = asyncio.create_task(outcomes(agent, request((call(),))))
    await until(lambda: bool(views(journal, CallDelta)))
    await journal.append("default", STOPS["cancel"])
    (cut,) = await running
    assert (cut.usage.prompt_tokens, cut.usage.completion_tokens) == (USAGE["prompt_tokens"], 3)


async def test_facts_of_another_deliberation_or_an_earlier_stage_stop_nothing() -> None:
    journal = AnsweringJournal()
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    engine.hold = asyncio.Event()
    agent = replica(engine, journal)
    await agent.listen()
    running = asyncio.create_task(outcomes(agent, request((call(),)).model_copy(update={"stage": 2})))
    await until(lambda: len(engine.bodies) == 1)
    await journal.append("default", STOPS["stage closed"])
    await journal.append("default", CancelRequested(deliberation_id="d2", ts=datetime.now(UTC)))
    engine.hold.set()
    (outcome,) = await running
    assert outcome.text == ANSWER


class DistantJournal(AnsweringJournal):
    subscribed = 0

    async def subscribe(self, patterns: Any, deliver: Any) -> Any:
        self.subscribed += 1
        await asyncio.sleep(0)
        return await super().subscribe(patterns, deliver)


async def test_concurrent_requests_share_one_subscription() -> None:
    journal = DistantJournal()
    agent = replica(ScriptedEngine(lambda *_: streamed(ANSWER)), journal)
    await asyncio.gather(*(outcomes(agent, request((call(number),))) for number in range(1, 9)))
    assert journal.subscribed == 1


async def test_chooses_an_engine_only_once_the_call_has_a_slot() -> None:
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    engine.hold = asyncio.Event()
    agent = replica(engine, InMemoryJournal(), engines=2)
    agent.engines.concurrency = 2
    running = asyncio.create_task(outcomes(agent, request(tuple(call(number) for number in range(1, 7)))))
    await until(lambda: len(engine.bodies) == 2)
    first, second = sorted(agent.engines.engines, key=lambda each: -each.in_flight)
    assert (first.in_flight, second.in_flight) == (2, 0), "calls of one deliberation share an engine"
    first.in_flight += TOGETHER
    agent.engines.concurrency += TOGETHER
    engine.hold.set()
    found = await running
    assert all(outcome.attempt == 1 for outcome in found)
    assert [outcome.engine for outcome in found].count(second.address) == 4, "theirs was full when their turn came"


async def test_batch_calls_that_wait_for_a_full_engine_yield_to_interactive_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # They look anew for outages while they wait, and keep their places.
    monkeypatch.setattr("serve_deployments.agent.call.OUTAGE_CHECK_S", 0.02)
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    engine.hold = asyncio.Event()
    agent = replica(engine, InMemoryJournal())
    spec = EngineSpec(url="http://engine0", max_in_flight=2)
    agent.engines = Engines([spec], transport=httpx.MockTransport(engine))
    batch = request(tuple(call(number) for number in range(1, 53)), priority=BATCH_AFTER)
    interactive = request((call(99),), deliberation_id="d2")
    running = [asyncio.create_task(outcomes(agent, batch))]
    await until(lambda: agent.engines.waiting == 50)
    running.append(asyncio.create_task(outcomes(agent, interactive)))
    await until(lambda: agent.engines.waiting == 51)
    assert len(engine.bodies) == 2
    engine.hold.set()
    await asyncio.gather(*running)
    asked = [body["messages"][-1]["content"].partition("\n")[0] for body in engine.bodies]
    assert asked.index("u99") == 2, "it is sent next"


class Refusing(httpx.MockTransport):
    def __init__(self, engine: ScriptedEngine, refuses: Callable[[], bool]) -> None:
        super().__init__(engine)
        self.refuses = refuses

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/models") and self.refuses():
            raise httpx.ConnectError("refused")
        return await super().handle_async_request(request)


def refusing(engine: ScriptedEngine, journal: InMemoryJournal) -> AgentReplica:
    refused = iter((True, True, True))
    transport = Refusing(engine, lambda: next(refused, False))
    client = Engines([EngineSpec(url="http://engine0")], transport=transport)
    return AgentReplica("DEV", Role(persona=PERSONA), client, journal, stream_deltas=True, engine_away_timeout_s=30)


async def test_waits_for_an_unreachable_engine_and_counts_only_sent_requests() -> None:
    engine, journal = ScriptedEngine(lambda *_: streamed(ANSWER)), InMemoryJournal()
    (outcome,) = await outcomes(refusing(engine, journal), request((call(),)))
    assert (outcome.text, outcome.attempt, outcome.usage.calls) == (ANSWER, 1, 1)
    assert [started.attempt for started in views(journal, CallStarted)] == [1, 1, 1, 1], "a number is used again"
    assert [body["seed"] for body in engine.bodies] == [11], "an engine that was away changes no answer"


async def test_a_successor_counts_no_requests_that_reached_no_engine() -> None:
    journal = InMemoryJournal()
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    engine.hold = asyncio.Event()
    lost = asyncio.create_task(refusing(engine, journal).run_stage(request((call(),))))
    await until(lambda: len(engine.bodies) == 1)
    lost.cancel()
    successor = replica(ScriptedEngine(lambda *_: streamed(ANSWER)), journal)
    (outcome,) = await outcomes(successor, request((call(),), resumed=True))
    assert (outcome.attempt, outcome.usage.calls) == (2, 2), "the first replica's request reached its engine"


def unreachable(engines: int = 1, *, timeout_s: float = 30) -> AgentReplica:
    async def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused") from ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    urls = [f"http://user:secret@engine{number}:8000" for number in range(engines)]
    client = Engines([EngineSpec(url=url) for url in urls], transport=httpx.MockTransport(refuse))
    return AgentReplica(
        "DEV", Role(persona=PERSONA), client, InMemoryJournal(), stream_deltas=True, engine_away_timeout_s=timeout_s
    )


async def test_calls_tell_their_viewers_that_no_engine_can_be_connected_to_and_give_up_after_the_timeout() -> None:
    agent = unreachable(engines=2, timeout_s=0.2)
    found = await outcomes(agent, request((call(1), call(2))))
    for outcome in found:
        assert outcome.problem is not None and (outcome.problem.code, outcome.usage.calls) == ("engine_unavailable", 0)
        assert outcome.problem.detail.startswith("no connection within 0.2 s: engine http://engine0:8000 cannot be")
        assert "engine http://engine1:8000 cannot be connected to since" in outcome.problem.detail
        assert "UTC: connection refused" in outcome.problem.detail and "start it" in outcome.problem.detail
    told: list[CallWaiting] = views(agent.journal, CallWaiting)
    assert {waiting.call_id for waiting in told} == {"s1-dev-001", "s1-dev-002"}, "each tells it at once"
    assert [engine.url for engine in told[0].engines] == ["http://engine0:8000", "http://engine1:8000"]
    assert all(0 < (waiting.gives_up_at - waiting.ts).total_seconds() <= 0.2 for waiting in told)
    assert "secret" not in str([record.data for record in agent.journal.records])


async def test_a_call_whose_timeout_is_over_is_not_retried() -> None:
    agent = unreachable(timeout_s=0.05)
    await outcomes(agent, request((call(),)))
    assert (await agent.describe())["counts"]["retries"] == 0


async def test_viewers_are_told_again_while_a_call_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_deployments.agent.call.REPORT_INTERVAL_S", 0.0)
    agent = unreachable()
    running = asyncio.create_task(agent.run_stage(request((call(),))))
    await until(lambda: len(views(agent.journal, CallWaiting)) >= 3)
    told: list[CallWaiting] = views(agent.journal, CallWaiting)
    assert len({waiting.engines for waiting in told}) == 1, "the outage has one beginning"
    agent.engines.engines[0].connected()
    count = len(views(agent.journal, CallWaiting))
    agent._stop("d1", 1, "enough")  # pyright: ignore[reportPrivateUsage]
    await running
    assert len(views(agent.journal, CallWaiting)) == count


async def test_a_call_gives_up_before_a_short_deadline_so_that_its_cause_is_known() -> None:
    (outcome,) = await outcomes(unreachable(), request((call(),), deadline_s=0.5))
    assert outcome.problem is not None and outcome.problem.code == "engine_unavailable"


async def test_an_engine_that_comes_back_within_the_timeout_answers() -> None:
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    agent = unreachable()
    running = asyncio.create_task(outcomes(agent, request((call(),))))
    await until(lambda: bool(views(agent.journal, CallWaiting)))
    agent.engines._transports[None] = httpx.MockTransport(engine)  # pyright: ignore[reportPrivateUsage]
    (outcome,) = await running
    assert (outcome.text, outcome.usage.calls) == (ANSWER, 1)


async def test_a_replica_describes_an_engine_that_it_cannot_connect_to() -> None:
    agent = unreachable()
    (engine,) = (await agent.describe())["engines"]
    assert engine["url"] == "http://engine0:8000" and not engine["healthy"]
    assert engine["trouble"]["detail"] == "cannot be connected to: connection refused"
    assert datetime.fromisoformat(engine["trouble"]["since"]).tzinfo is not None


def hedging(journal: InMemoryJournal | None = None) -> tuple[ScriptedEngine, AgentReplica]:
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    engine.hold = asyncio.Event()
    agent = replica(engine, journal or InMemoryJournal(), engines=2)
    agent.role = Role(persona=PERSONA, hedge=True)
    for _ in range(100):
        agent.engines.hedges.answered("answer", 0.01)
    return engine, agent


async def hedged(engine: ScriptedEngine, agent: AgentReplica, once_asked: Callable[[], None]) -> CallFinished:
    running = asyncio.create_task(outcomes(agent, request((call(),))))
    await until(lambda: len(engine.hosts) == 1)
    once_asked()
    engine.hold = None
    (outcome,) = await running
    return outcome


async def test_hedges_a_slow_call_and_takes_the_first_answer() -> None:
    engine, agent = hedging()
    outcome = await hedged(engine, agent, lambda: None)
    assert (outcome.text, outcome.engine, outcome.attempt) == (ANSWER, f"http://{engine.hosts[1]}", 2)
    assert engine.hosts[0] != engine.hosts[1] and outcome.usage.calls == 2
    assert all(state.in_flight == 0 for state in agent.engines.engines), "the slower one is closed"
    described = await agent.describe()
    assert described["counts"] == {"answered": 1, "failed": 0, "cut": 0, "retries": 0, "hedges": 1}


async def test_a_hedge_that_reaches_no_engine_leaves_the_slower_attempt_its_number() -> None:
    journal = InMemoryJournal()
    engine, agent = hedging(journal)
    hold = engine.hold

    agent.engines._transports[None] = Refusing(engine, lambda: bool(engine.bodies))  # pyright: ignore[reportPrivateUsage]
    slow = asyncio.create_task(outcomes(agent, request((call(),))))
    await until(lambda: any(not each.healthy for each in agent.engines.engines))
    assert hold is not None
    hold.set()
    (outcome,) = await slow
    assert (outcome.text, outcome.attempt, outcome.usage.calls) == (ANSWER, 1, 1)
    assert [started.attempt for started in views(journal, CallStarted)] == [1, 2]


async def test_a_probe_cancelled_by_a_hedge_lets_another_request_probe() -> None:
    engine, agent = hedging()
    slow, quick = agent.engines.engines
    await agent.engines.probe()
    slow.circuit.failed(time.monotonic() - OPEN_S, unreachable=True)
    quick.circuit.failed(time.monotonic() - OPEN_S, unreachable=True)
    quick.in_flight = 1
    tried: list[bool] = []
    outcome = await hedged(engine, agent, lambda: tried.append(slow.circuit.probing))
    assert tried == [True]
    assert outcome.engine == quick.address and slow.circuit.admits(time.monotonic())


async def test_asks_one_engine_where_the_role_does_not_hedge() -> None:
    engine = ScriptedEngine(lambda *_: streamed(ANSWER))
    agent = replica(engine, InMemoryJournal(), engines=2)
    for _ in range(100):
        agent.engines.hedges.answered("answer", 0.0)
    (outcome,) = await outcomes(agent, request((call(),)))
    assert (outcome.attempt, len(engine.hosts)) == (1, 1)


async def test_a_defect_fails_its_call_without_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("serve_deployments.agent.validation.read_output", defect)
    journal = InMemoryJournal()
    (outcome,) = await outcomes(replica(ScriptedEngine(lambda *_: streamed(ANSWER)), journal), request((call(),)))
    assert outcome.problem is not None
    assert (outcome.problem.code, outcome.problem.detail) == ("internal_error", "internal error: ZeroDivisionError")


async def test_each_recorded_outcome_is_told_of_once() -> None:
    journal = InMemoryJournal()
    engine = ScriptedEngine(lambda body, _: streamed(ANSWER if "u1" in str(body) else "no answer"))
    agent = replica(engine, journal)
    asked = request((call(1), call(2))).model_copy(update={"first_agent": "dev-001"})
    answered, failed = await outcomes(agent, asked)
    first, second = journal.responses["d1.s1-dev-001"], journal.responses["d1.s1-dev-002"]
    assert first.proposal is not None and first.proposal.content == "forty-two"
    assert (first.status, first.proposal.temperature, first.diversity) == ("completed", 0.5, False)
    assert first.proposal.tokens == answered.usage.completion_tokens and first.timestamp == answered.ts
    assert (second.status, second.error_type, second.diversity) == ("failed", "invalid_output", True)
    assert failed.problem is not None and second.error == failed.problem.detail
