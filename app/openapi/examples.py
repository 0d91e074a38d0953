"""Examples of every operation: what is asked, and what is answered; the document shows them, and tests execute them.

They hold for a gateway in development mode whose log is `specimen.log()`: one deliberation that has ended, and one
half-way. Its clock stands where both began.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pydantic import BaseModel

from app.admission.backlog import Backlog
from app.api.cursor import Cursor
from app.api.schemas import (
    DeliberationPage,
    EngineView,
    Health,
    LiveRole,
    Ready,
    ReplicaBounds,
    RoleList,
    RoleResource,
    StrategyList,
    dump,
)
from app.api.webhook_payloads import delivery_id
from app.catalog.entries import ListFilter as Listed
from app.catalog.index import Catalog
from app.catalog.projection import resource, summary
from app.deliberation.facts import CancelRequested
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
    MODEL,
    PERSONA,
    REQUEST,
    TENANT,
    log,
    records_of,
    state,
    told,
)
from app.routes.login import Session
from app.routes.roles import strategy_resource
from app.streaming.frames import EventSelection as Wanted
from app.streaming.frames import FrameBatcher, frame_of
from app.webhooks.attempts import RedeliveryRequested, deliveries
from app.webhooks.resources import DeliveryPage, delivery_resource

RETENTION_S = 86_400
JSON = "application/json"
EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One exchange: `parameters` are of the path, the query or a header, and a `body` of None is none.

    `answer` is the JSON or text that comes with `status`, None where nothing does. When it is `exact`, a gateway as
    described above answers just that; otherwise something of the same kind.
    """

    name: str
    summary: str
    status: int
    answer: Any = None
    media: str = JSON
    parameters: Mapping[str, str | int | bool | list[str]] = field(
        default_factory=dict[str, "str | int | bool | list[str]"]
    )
    body: Any = None
    exact: bool = False

    @property
    def value(self) -> Any:  # noqa: ANN401 -- JSON
        """The answer as the schema of its media type describes it: of an event stream, the data of its first event."""
        if self.media != EVENT_STREAM or self.answer is None:
            return self.answer
        lines = str(self.answer).splitlines()
        return json.loads(next(line for line in lines if line.startswith("data:")).removeprefix("data:"))


def _shown(model: BaseModel) -> Any:  # noqa: ANN401 -- JSON
    return json.loads(dump(model))


def _resource(told: State) -> Any:  # noqa: ANN401 -- JSON
    return _shown(resource(told, epoch=EPOCH, retention_s=RETENTION_S))


def _item(record: Record) -> Any:  # noqa: ANN401 -- JSON
    return {"id": str(Cursor(EPOCH, record.sequence)), **json.loads(record.data)}


@cache
def _catalog() -> Catalog:
    catalog = Catalog(_Stopped(), Backlog(_Stopped(), 100, {}), retention_s=RETENTION_S, size_max=100)
    for record in log():
        if record.tokens[3:] in (["accepted"], ["stage", "1", "opened"], ["end"]):
            catalog.apply(record)
    return catalog


class _Stopped:
    """The clock of the examples."""

    def now(self) -> Any:  # noqa: ANN401
        """Where both deliberations began."""
        return BEGAN_AT


def _submissions() -> dict[str, tuple[Exhibit, ...]]:
    ended = state(KEY)
    mixed = {"task": "Review this design.", "agents": [{"role": "ARCHITECT"}, {"role": "QA", "count": 2}], "rounds": 2}
    refused = {"task": "Name a colour.", "role": "NOBODY"}
    return {
        "create_deliberation": (
            Exhibit(
                "one_role",
                "Two developers, best of their answers; the key makes it safe to send again",
                202,
                _resource(state(KEY, facts=1)),
                parameters={"Idempotency-Key": KEY},
                body=REQUEST,
                exact=True,
            ),
            Exhibit(
                "with_a_webhook",
                "The end is told to a URL",
                202,
                body={"task": REQUEST["task"], "webhook": {"url": "https://hooks.example.com/deliberations"}},
            ),
            Exhibit("mixed_council", "One architect, two testers, two rounds of critique", 202, body=mixed),
            Exhibit(
                "waited_for",
                "The answer is held until the end, for ten seconds at most",
                200,
                _resource(ended),
                parameters={"Idempotency-Key": KEY, "Prefer": "wait=10"},
                body=REQUEST,
                exact=True,
            ),
            Exhibit("no_such_role", "What is wrong is named, with a remedy", 422, body=refused),
        ),
    }


def _deliberations() -> dict[str, tuple[Exhibit, ...]]:
    ended, live = state(KEY), state(LIVE_KEY)
    asked = CancelRequested(deliberation_id=live.deliberation_id, ts=BEGAN_AT, reason="no longer needed")
    stopping = apply(live, asked, len(log()) + len(told()) + 1)
    listed, _ = _catalog().page(TENANT, Listed(metadata={"project": "sorting"}), limit=2)
    page = DeliberationPage(items=tuple(summary(entry) for entry in listed), next_cursor=None)
    id = {"deliberation_id": ended.deliberation_id}
    return {
        "get_deliberation": (
            Exhibit("ended", "One that has ended", 200, _resource(ended), parameters=id, exact=True),
            Exhibit(
                "under_way",
                "One half-way",
                200,
                _resource(live),
                parameters={"deliberation_id": live.deliberation_id},
                exact=True,
            ),
            Exhibit(
                "unchanged",
                "It is still what the client knows",
                304,
                parameters={**id, "If-None-Match": f'"{ended.deliberation_id}-{ended.revision}"'},
            ),
            Exhibit("unknown", "There is none of this id", 404, parameters={"deliberation_id": "nothing-here"}),
        ),
        "list_deliberations": (
            Exhibit(
                "of_a_project",
                "The newest ones with a pair of metadata",
                200,
                _shown(page),
                parameters={"metadata.project": "sorting", "limit": 2},
                exact=True,
            ),
        ),
        "cancel_deliberation": (
            Exhibit(
                "with_a_reason",
                "It is told to stop",
                202,
                _resource(stopping),
                parameters={"deliberation_id": live.deliberation_id},
                body={"reason": "no longer needed"},
                exact=True,
            ),
            Exhibit("ended_before", "Nothing is left to stop", 200, _resource(ended), parameters=id, exact=True),
        ),
        "delete_deliberation": (
            Exhibit("ended", "It is removed", 204, parameters=id),
            Exhibit("under_way", "It has to end first", 409, parameters={"deliberation_id": live.deliberation_id}),
        ),
    }


def _events() -> dict[str, tuple[Exhibit, ...]]:
    told = records_of(KEY)
    id, last = {"deliberation_id": told[0].tokens[2]}, str(Cursor(EPOCH, told[-1].sequence))
    logged = [frame for frame in (frame_of(EPOCH, record) for record in told) if frame is not None]
    streamed = b"".join(FrameBatcher(Wanted(), EPOCH).chunks(logged[2:5])).decode()
    page = {"items": [_item(record) for record in told[:2]], "next": str(Cursor(EPOCH, 2)), "ended": False}
    return {
        "read_deliberation_events": (
            Exhibit(
                "stream",
                "From the beginning, then live, until the end",
                200,
                streamed,
                EVENT_STREAM,
                parameters={**id, "after": "0"},
            ),
            Exhibit(
                "page",
                "The first two events",
                200,
                page,
                parameters={**id, "after": "0", "limit": 2},
                exact=True,
            ),
            Exhibit(
                "nothing_left",
                "The end has been seen",
                204,
                media=EVENT_STREAM,
                parameters={**id, "Last-Event-ID": last},
            ),
            Exhibit(
                "no_cursor",
                "What is no cursor is refused",
                400,
                media=EVENT_STREAM,
                parameters={**id, "after": "latest"},
            ),
        ),
    }


def _events_of_several() -> dict[str, tuple[Exhibit, ...]]:
    told = records_of(KEY)
    named, last = {"deliberation": [told[0].tokens[2]]}, str(Cursor(EPOCH, told[-1].sequence))
    logged = [frame for frame in (frame_of(EPOCH, record) for record in told) if frame is not None]
    without = [record for record in told if record.tokens[-1] != "delta"]
    several = b"".join(FrameBatcher(Wanted(deltas=False), EPOCH).chunks(logged[:3])).decode()
    page = {"items": [_item(record) for record in without[:2]], "next": str(Cursor(EPOCH, 2)), "ended": False}
    return {
        "read_events": (
            Exhibit(
                "named",
                "Of those that are named, without their growing texts; it goes on until all have ended",
                200,
                several,
                EVENT_STREAM,
                parameters={**named, "after": "0"},
            ),
            Exhibit(
                "page",
                "The first two events of one",
                200,
                page,
                parameters={**named, "limit": 2},
            ),
            Exhibit(
                "nothing_left",
                "The end of all that are named has been seen",
                204,
                media=EVENT_STREAM,
                parameters={**named, "Last-Event-ID": last},
            ),
            Exhibit(
                "no_cursor",
                "What is no cursor is refused",
                400,
                media=EVENT_STREAM,
                parameters={"after": "latest"},
            ),
        ),
    }


def _webhooks() -> dict[str, tuple[Exhibit, ...]]:
    live = state(LIVE_KEY)
    fact = next(record for record in records_of(LIVE_KEY) if record.tokens[-1] == "opened")
    id, known = delivery_id(fact), deliveries(told())
    delivery = delivery_resource(id, fact, known[id], epoch=EPOCH, stopped=False)
    asked = RedeliveryRequested(fact=fact.subject, number=1, at=BEGAN_AT)
    known[id].add(asked)
    again = delivery_resource(id, fact, known[id], epoch=EPOCH, stopped=False)
    of_it = {"deliberation_id": live.deliberation_id}
    page = DeliveryPage(items=(delivery,), next_cursor=None)
    return {
        "list_deliveries": (
            Exhibit(
                "taken_at_last",
                "The receiver was down at first",
                200,
                _shown(page),
                parameters={**of_it, "limit": 10},
                exact=True,
            ),
            Exhibit("unknown", "There is none of this id", 404, parameters={"deliberation_id": "nothing-here"}),
        ),
        "redeliver": (
            Exhibit(
                "once_more", "Tell it again", 202, _shown(again), parameters={**of_it, "delivery_id": id}, exact=True
            ),
            Exhibit("unknown", "It has no such delivery", 404, parameters={**of_it, "delivery_id": "dlv_none"}),
        ),
    }


def _roles() -> dict[str, tuple[Exhibit, ...]]:
    engine = EngineView(url="http://127.0.0.1:8000", healthy=True, circuit="closed", models=(MODEL,))
    live = LiveRole(replicas=1, models=(MODEL,), simulated=True, in_flight=0, engines=(engine,))
    role = RoleResource(
        name="DEV",
        persona=PERSONA,
        model=None,
        engines=(),
        sampling=Sampling(),
        replicas=ReplicaBounds(min=1, max=1),
        concurrency=256,
        live=live,
    )
    strategies = StrategyList(items=(strategy_resource(STRATEGIES["council"]),))
    return {
        "list_roles": (Exhibit("all", "Every role", 200, _shown(RoleList(items=(role,)))),),
        "get_role": (
            Exhibit("developer", "The one of developers", 200, _shown(role), parameters={"role": "DEV"}),
            Exhibit("unknown", "There is no such role", 404, parameters={"role": "NOBODY"}),
        ),
        "list_strategies": (Exhibit("all", "Every strategy", 200, _shown(strategies)),),
    }


def _operations() -> dict[str, tuple[Exhibit, ...]]:
    ready = Ready(mode="development", checks=("journal", "streams", "catalog", "coordinator", "webhooks"))
    session = Session(mode="development", tenant=TENANT, scopes=("admin", "read", "submit"), key=None, expires_at=None)
    metrics = "# HELP deliberations_accepted_total Deliberations that were accepted\n"
    return {
        "get_health": (Exhibit("alive", "The process answers", 200, _shown(Health()), exact=True),),
        "get_readiness": (Exhibit("ready", "Everything is there", 200, _shown(ready), exact=True),),
        "get_stats": (Exhibit("all", "Of all that is retained", 200, _shown(_catalog().stats(TENANT)), exact=True),),
        "get_metrics": (Exhibit("scraped", "As Prometheus asks", 200, metrics, "text/plain"),),
        "get_cluster": (Exhibit("one_role", "Nobody sends webhooks", 200, _shown(cluster())),),
        "log_in": (
            Exhibit(
                "with_a_key", "The key is sent once, in a body", 200, _shown(session), body={"key": "dlb_…"}, exact=True
            ),
        ),
        "get_session": (Exhibit("own", "Who asks", 200, _shown(session), exact=True),),
        "log_out": (Exhibit("own", "The cookie is taken away", 204),),
    }


def _openai() -> dict[str, tuple[Exhibit, ...]]:
    body = {"model": "best_of_n/DEV", "messages": [{"role": "user", "content": REQUEST["task"]}]}
    asked = ChatCompletionRequest.model_validate({**body, "stream": True})
    streamed = b"".join([opening_frame(asked, state(KEY)), *frames(asked, state(KEY))]).decode()
    answered = completion(asked, state(KEY))
    model = ModelResource(id="council/DEV", created=0, owned_by="deliberation-gateway")
    return {
        "create_chat_completion": (
            Exhibit("one_question", "A council answers as a model would", 200, _shown(answered), body=body),
            Exhibit("streamed", "The text in pieces", 200, streamed, EVENT_STREAM, body={**body, "stream": True}),
            Exhibit("no_such_model", "A model is a strategy and a role", 404, body={**body, "model": "gpt"}),
        ),
        "list_models": (Exhibit("all", "Every strategy with every role", 200, _shown(ModelList(data=(model,)))),),
        "get_model": (
            Exhibit("council", "One of them", 200, _shown(model), parameters={"model": "council/DEV"}, exact=True),
        ),
    }


@cache
def exhibits() -> Mapping[str, tuple[Exhibit, ...]]:
    """Examples by operation id."""
    tables = (_submissions, _deliberations, _events, _events_of_several, _webhooks, _roles, _operations, _openai)
    return {operation: shown for table in tables for operation, shown in table().items()}
