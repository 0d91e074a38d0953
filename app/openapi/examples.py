"""Examples of every operation: requests and their answers. The document shows them, and tests execute them.

They hold for a gateway in development mode with the log `example_log.log_records()` and its clock at `BEGAN_AT`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from functools import cache
from typing import Any

from pydantic import BaseModel

from app.api.cluster_schemas import EngineView, LiveRole, ReplicaBounds, RoleList, RoleResource
from app.api.cursor import Cursor
from app.api.schemas import (
    DeliberationPage,
    Durations,
    Figures,
    GroupFigures,
    Health,
    Ready,
    Stats,
    StrategyList,
    StrategyResource,
    Tokens,
    Wins,
    dump,
)
from app.api.webhook_payloads import delivery_id
from app.catalog.entries import Entry, ListFilter
from app.catalog.projection import resource, summary
from app.deliberation.calls import UsageCost
from app.deliberation.facts import CancelRequested, decode
from app.deliberation.fold import State, apply
from app.deliberation.ports import Record
from app.deliberation.specification import Sampling
from app.deliberation.strategies import STRATEGIES
from app.openai.completions import completion, frames, opening_frame
from app.openai.requests import ChatCompletionRequest
from app.openai.schemas import ModelList, ModelResource
from app.openapi.example_cluster import cluster
from app.openapi.example_log import (
    BEGAN_AT,
    EPOCH,
    KEY,
    LIVE_KEY,
    LIVE_REQUEST,
    MODEL,
    PERSONA,
    PLAN,
    REQUEST,
    TENANT,
    delivery_records,
    log_records,
    plan_acceptance,
    records_of,
    state,
)
from app.planning.resources import plan_resource
from app.routes.login import Session
from app.streaming.frames import EventSelection, FrameBatcher, frame_of
from app.webhooks.attempts import RedeliveryRequested, deliveries
from app.webhooks.resources import DeliveryPage, delivery_resource

RETENTION_S = 86_400
JSON = "application/json"
EVENT_STREAM = "text/event-stream"

ExampleParameters = Mapping[str, str | int | bool | list[str]]


@dataclass(frozen=True, slots=True)
class Example:
    """One request and its answer. `parameters` are those of path, query and headers by name.

    `answer` is the JSON or text of the answer, None if it is not shown. A gateway as described above gives exactly a
    JSON `answer`, or, unless it is `exact`, one with the same members.
    """

    name: str
    summary: str
    status: int
    parameters: ExampleParameters = field(default_factory=dict[str, "str | int | bool | list[str]"])
    answer: Any = None
    media: str = JSON
    body: Any = None
    exact: bool = True

    @property
    def value(self) -> Any:  # noqa: ANN401 -- JSON
        """The answer that the schema describes; for an event stream, the data of its first event."""
        if self.media != EVENT_STREAM or self.answer is None:
            return self.answer
        lines = str(self.answer).splitlines()
        return json.loads(next(line for line in lines if line.startswith("data:")).removeprefix("data:"))


Examples = Mapping[str, tuple[Example, ...]]


def _json(model: BaseModel) -> Any:  # noqa: ANN401 -- JSON
    return json.loads(dump(model))


def _resource(state: State) -> Any:  # noqa: ANN401 -- JSON
    return _json(resource(state, epoch=EPOCH, retention_s=RETENTION_S))


@cache
def _listed() -> tuple[Entry, ...]:
    """Returns the deliberations of the log, newest first."""
    entries = dict[str, Entry]()
    for record in log_records():
        if record.tokens[3:] in (["accepted"], ["stage", "1", "opened"], ["end"]):
            fact, id = decode(record.data), record.tokens[2]
            entries.setdefault(id, Entry(TENANT, id, first_fact_at=fact.ts)).take(fact, record.sequence)
    return tuple(sorted(entries.values(), key=lambda entry: -entry.sequence))


def _stats() -> Stats:
    period = {"from": BEGAN_AT - timedelta(days=30), "to": BEGAN_AT}
    return Stats(
        **period,
        by="role",
        groups=(GroupFigures(name="DEV", wins=Wins(won=3, decided=3, rate=1.0), **dict(_figures())),),
        **dict(_figures()),
    )


def _figures() -> Figures:
    return Figures(
        total=4,
        active=1,
        completed=3,
        failed=0,
        cancelled=0,
        timeout=0,
        seconds=Durations(mean=14.2, p50=13.9, p95=16.1, p99=16.1),
        tokens=Tokens(prompt_tokens=39_120, completion_tokens=9_870, cached_tokens=24_512),
        cost=UsageCost(amount=Decimal("0.018362"), currency="USD"),
        other_costs=(),
        agreement=0.71,
        degraded_share=0.0,
    )


def _deliberations() -> Examples:
    ended, live = state(KEY), state(LIVE_KEY)
    ended_id, live_id = {"deliberation_id": ended.deliberation_id}, {"deliberation_id": live.deliberation_id}
    key = {"Idempotency-Key": KEY}
    waiting = {**key, "Prefer": "wait=10"}
    accepted, done = _resource(state(KEY, facts=1)), _resource(ended)
    webhook = {"task": REQUEST["task"], "webhook": {"url": LIVE_REQUEST["webhook"]["url"]}}
    mixed = {"task": "Review this design.", "agents": [{"role": "ARCHITECT"}, {"role": "QA", "count": 2}], "rounds": 2}
    decided = {"id": "adr-7", "title": "Decision of March", "text": "Sessions live in the database."}
    book = {"id": "rfc", "title": "Caching", "source": "RFC 9111, section 4"}
    evidence = {"task": "Where do sessions live from now on?", "evidence": [decided, book]}
    cited = {"id": "rfc", "title": "Caching", "source": "https://www.rfc-editor.org/rfc/rfc9111"}
    following = {"task": "Now sort them in place.", "follows": [ended.deliberation_id]}
    unknown_role = {"task": "Name a colour.", "role": "NOBODY"}
    reason = "no longer needed"
    cancel = CancelRequested(deliberation_id=live.deliberation_id, ts=BEGAN_AT, reason=reason)
    cancelling = apply(live, cancel, len(log_records()) + len(delivery_records()) + 1)
    listed = filter(ListFilter(metadata={"project": "sorting"}).shows, _listed())
    page = DeliberationPage(items=tuple(map(summary, listed)), next_cursor=None, behind_s=0.412)
    known = {**ended_id, "If-None-Match": f'"{ended.deliberation_id}-{ended.revision}"'}
    by_project: ExampleParameters = {"metadata.project": "sorting", "limit": 2}
    return {
        "create_deliberation": (
            Example(
                "one_role", "The better of two answers; the key makes a retry safe", 202, key, accepted, body=REQUEST
            ),
            Example("with_a_webhook", "The end is sent to a URL", 202, body=webhook),
            Example("mixed_council", "One architect and two testers with two rounds of critique", 202, body=mixed),
            Example(
                "waited_for", "The answer waits for the end, at most ten seconds", 200, waiting, done, body=REQUEST
            ),
            Example("with_evidence", "Every agent is shown a text and a citation, as data", 202, body=evidence),
            Example("follows", "The verdict of an earlier council is evidence too", 202, body=following),
            Example("no_such_role", "The error names the field and a remedy", 422, body=unknown_role),
            Example("url_as_source", "Nothing is fetched", 422, body={**evidence, "evidence": [cited]}),
        ),
        "get_deliberation": (
            Example("ended", "An ended deliberation", 200, ended_id, done),
            Example("under_way", "A running deliberation", 200, live_id, _resource(live)),
            Example("unchanged", "The client's copy is current", 304, known),
            Example("unknown", "No deliberation has this id", 404, {"deliberation_id": "nothing-here"}),
        ),
        "list_deliberations": (Example("of_a_project", "The newest with this metadata", 200, by_project, _json(page)),),
        "cancel_deliberation": (
            Example(
                "with_a_reason",
                "The deliberation will be cancelled",
                202,
                live_id,
                _resource(cancelling),
                body={"reason": reason},
            ),
            Example("ended_before", "It has already ended", 200, ended_id, done),
        ),
        "delete_deliberation": (
            Example("ended", "It is deleted", 204, ended_id),
            Example("under_way", "It must end first", 409, live_id),
        ),
    }


def _plans() -> Examples:
    id = plan_acceptance().deliberation_id
    known = plan_resource("plan-42", "story-17", {"DEV": (id, "pending")})
    medium = {**PLAN, "plan_id": "plan-43", "complexity": "medium"}
    del medium["roles"]
    return {
        "approve_plan": (
            Example("again", "The same plan again starts nothing", 202, answer=_json(known), body=PLAN),
            Example("by_complexity", "Three roles that the complexity chooses", 202, body=medium),
            Example("no_such_role", "The error names the field", 422, body={**PLAN, "roles": ["NOBODY"]}),
            Example("other_content", "The id is taken", 409, body={**PLAN, "title": "Log in by a passkey"}),
        ),
        "get_plan": (
            Example("under_way", "No role has ended yet", 200, {"plan_id": "plan-42"}, _json(known)),
            Example("unknown", "No plan has this id", 404, {"plan_id": "plan-1"}),
        ),
    }


def _events() -> Examples:
    records = records_of(KEY)
    without_deltas = [record for record in records if record.tokens[-1] != "delta"]
    id = records[0].tokens[2]
    one: ExampleParameters = {"deliberation_id": id}
    from_start, stream = {**one, "after": "0"}, _stream(records[2:5], EventSelection())
    named: ExampleParameters = {"deliberation": [id]}
    return {
        "read_deliberation_events": (
            Example("stream", "From the first event, then live, to the last", 200, from_start, stream, EVENT_STREAM),
            *_event_pages(one, records),
        ),
        "read_events": (
            Example(
                "named",
                "Events of the named deliberations without text deltas, until all have ended",
                200,
                {**named, "after": "0"},
                _stream(records[:3], EventSelection(deltas=False)),
                EVENT_STREAM,
            ),
            *_event_pages(named, without_deltas),
        ),
    }


def _stream(records: Sequence[Record], selection: EventSelection) -> str:
    selected = (frame_of(EPOCH, record) for record in records)
    batches = FrameBatcher(selection.takes, EPOCH).chunks([frame for frame in selected if frame is not None])
    return b"".join(batches).decode()


def _event_pages(scope: ExampleParameters, records: Sequence[Record]) -> tuple[Example, ...]:
    items = [{"id": str(Cursor(EPOCH, each.sequence)), **json.loads(each.data)} for each in records[:2]]
    page = {"items": items, "next": str(Cursor(EPOCH, 2)), "ended": False}
    seen = {**scope, "Last-Event-ID": str(Cursor(EPOCH, records[-1].sequence))}
    invalid = {**scope, "after": "latest"}
    return (
        Example("page", "The first two events", 200, {**scope, "after": "0", "limit": 2}, page),
        Example("nothing_left", "The client has seen the last event", 204, seen, media=EVENT_STREAM),
        Example("no_cursor", "The cursor is invalid", 400, invalid, media=EVENT_STREAM),
    )


def _webhooks() -> Examples:
    scope: ExampleParameters = {"deliberation_id": state(LIVE_KEY).deliberation_id}
    fact = next(record for record in records_of(LIVE_KEY) if record.tokens[-1] == "opened")
    id = delivery_id(fact)
    history = deliveries(delivery_records())[id]
    delivery = delivery_resource(id, fact, history, epoch=EPOCH, stopped=False)
    history.add(RedeliveryRequested(fact=fact.subject, number=1, at=BEGAN_AT))
    pending = delivery_resource(id, fact, history, epoch=EPOCH, stopped=False)
    page = DeliveryPage(items=(delivery,), next_cursor=None)
    return {
        "list_deliveries": (
            Example("taken_at_last", "The second attempt succeeded", 200, {**scope, "limit": 10}, _json(page)),
            Example("unknown", "No deliberation has this id", 404, {"deliberation_id": "nothing-here"}),
        ),
        "redeliver": (
            Example("once_more", "Deliver it again", 202, {**scope, "delivery_id": id}, _json(pending)),
            Example("unknown", "No delivery has this id", 404, {**scope, "delivery_id": "dlv_none"}),
        ),
    }


def _roles() -> Examples:
    engine = EngineView(url="http://127.0.0.1:8000", healthy=True, circuit="closed", models=(MODEL,))
    role = RoleResource(
        name="DEV",
        persona=PERSONA,
        model=None,
        engines=(),
        sampling=Sampling(),
        replicas=ReplicaBounds(min=1, max=1),
        concurrency=256,
        live=LiveRole(replicas=1, models=(MODEL,), simulated=True, in_flight=0, engines=(engine,)),
    )
    roles = _json(RoleList(items=(role,)))
    strategies = _json(StrategyList(items=(StrategyResource.of(STRATEGIES["council"]),)))
    return {
        "list_roles": (Example("all", "Every role", 200, answer=roles, exact=False),),
        "get_role": (
            Example("developer", "The role of developers", 200, {"role": "DEV"}, _json(role), exact=False),
            Example("unknown", "No role has this name", 404, {"role": "NOBODY"}),
        ),
        "list_strategies": (Example("all", "Every strategy", 200, answer=strategies, exact=False),),
    }


def _operations() -> Examples:
    ready = Ready(mode="development", checks=("journal", "streams", "catalog", "coordinator", "webhooks", "archive"))
    session = _json(
        Session(mode="development", tenant=TENANT, scopes=("admin", "read", "submit"), key=None, expires_at=None)
    )
    metrics = "# HELP deliberations_accepted_total Deliberations that were accepted\n"
    return {
        "get_health": (Example("alive", "The process answers", 200, answer=_json(Health())),),
        "get_readiness": (Example("ready", "All checks pass", 200, answer=_json(ready)),),
        "get_stats": (
            Example("by_role", "The last 30 days by role", 200, {"by": "role"}, _json(_stats()), exact=False),
        ),
        "get_metrics": (Example("scraped", "In Prometheus' text format", 200, answer=metrics, media="text/plain"),),
        "get_cluster": (
            Example("one_role", "One role, and no webhook sender", 200, answer=_json(cluster()), exact=False),
        ),
        "log_in": (Example("with_a_key", "The body holds the key", 200, answer=session, body={"key": "dlb_…"}),),
        "get_session": (Example("own", "The session of this request", 200, answer=session),),
        "log_out": (Example("own", "The cookie is removed", 204),),
    }


def _openai() -> Examples:
    body = {"model": "best_of_n/DEV", "messages": [{"role": "user", "content": REQUEST["task"]}]}
    streamed = {**body, "stream": True}
    request, ended = ChatCompletionRequest.model_validate(streamed), state(KEY)
    chunks = b"".join([opening_frame(request, ended), *frames(request, ended)]).decode()
    whole = _json(completion(request, ended))
    model = ModelResource(id="council/DEV", created=0, owned_by="deliberation-gateway")
    models = _json(ModelList(data=(model,)))
    return {
        "create_chat_completion": (
            Example("one_question", "A council as a model", 200, answer=whole, body=body, exact=False),
            Example("streamed", "The text in chunks", 200, answer=chunks, media=EVENT_STREAM, body=streamed),
            Example("no_such_model", "The model must name strategy and role", 404, body={**body, "model": "gpt"}),
        ),
        "list_models": (Example("all", "Every strategy with every role", 200, answer=models, exact=False),),
        "get_model": (Example("council", "One model", 200, {"model": "council/DEV"}, _json(model)),),
    }


@cache
def examples() -> Examples:
    """Examples by operation id."""
    tables = (_deliberations, _plans, _events, _webhooks, _roles, _operations, _openai)
    return {operation: entries for table in tables for operation, entries in table().items()}
