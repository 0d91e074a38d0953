"""A council that the real engine makes from scripted answers, and a stub gateway that serves its events."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.api.resource import resource
from app.api.schemas import StrategyResource
from app.deliberation.calls import Call, FactProblem, Usage
from app.deliberation.decider import RunStage
from app.deliberation.facts import Accepted, CallDelta, CallFinished, CallStarted, Event, Fact, View, encode
from app.deliberation.fold import begin, fold
from app.deliberation.specification import DEFAULT_RUBRIC, AgentSpec, Budget, Constraints, Specification
from app.deliberation.strategies import STRATEGIES
from app.openapi.document import document
from app.openapi.examples import composed
from app.sse import Frame
from tests.components.routes.replica_replies import troubled
from tests.fakes import FakeClock, drive

ID = "council-1"
_SCHEMAS = document()["components"]["schemas"]
EPOCH = "e1"
MODEL = "simulated-normal"
PIECE_CHARS = 9

Script = Callable[[Call], str | None]


def answer_text(call: Call) -> str:
    """A valid output of the call's kind, which names the agent in its human part."""
    agent, again = call.agent_id, f"# {call.agent_id} again"
    if call.output.kind == "score":
        return json.dumps({label: {"criteria": _marks(call, label)} for label in call.output.labels})
    issue = {"severity": "major", "where": "line 1", "claim": f"{agent} objects", "evidence": "seen", "fix": "mend it"}
    answer = {"reasoning": f"{agent} thinks.", "answer": f"# {agent}", "confidence": 80}
    outputs: dict[str, object] = {
        "answer": answer,
        "fusion": answer,
        "critique": {"issues": [issue], "verdict": "revise"},
        "revision": {
            "responses": [{"issue": 1, "decision": "accept", "reason": "right"}],
            **{"answer": again, "confidence": 90},
        },
        "pair": {"notes_a": "a", "notes_b": "b", "winner": "A", "margin": 1},
        "turn": {"reasoning": "seen", "error": "line 1", "answer": again, "confidence": 70},
        "choice": {"reasoning": "the first", "choice": next(iter(call.output.labels), "")},
        "analysis": {"agreements": ["a"], "conflicts": ["b"], "gaps": ["c"]},
        "program": {"reasoning": "simple", "code": f"def f(): ...  # {agent}", "confidence": 70},
        "tests": {"reasoning": "edges", "tests": [{"name": "holds", "call": "f", "expected": 1}]},
        "report": {"outcomes": [{"name": "holds", "passed": True, "reason": "", "duration_ms": 4}]},
    }
    return json.dumps(outputs[call.output.kind])


def _marks(call: Call, label: str) -> list[dict[str, object]]:
    score = 3 + len(call.labels[label]) % 7
    return [{"id": each, "rationale": f"{label} shows it", "score": score} for each in call.output.criteria]


def specification(
    strategy: str = "council", agents: int = 3, rounds: int = 1, parameters: dict[str, Any] | None = None
) -> Specification:
    return Specification(
        task="Write a rate limiter.",
        agents=tuple(AgentSpec(agent_id=f"dev-{number:03d}", role="DEV") for number in range(1, agents + 1)),
        strategy=strategy,
        strategy_version=STRATEGIES[strategy].version,
        parameters=STRATEGIES[strategy].parameters.model_validate(parameters or {}).model_dump(mode="json"),
        rounds=rounds,
        constraints=Constraints(rubric=DEFAULT_RUBRIC, timeout_seconds=300),
        quorum=min(2, agents),
        budget=Budget(),
        seed=7,
    )


@dataclass
class Council:
    """A whole run: its events in the order of the log, a quarter of a second apart."""

    events: list[Event]
    clock: FakeClock

    @cached_property
    def frames(self) -> list[Frame]:
        return [
            Frame(event.type, encode(event).decode(), f"{EPOCH}-{place}") for place, event in enumerate(self.events, 1)
        ]

    @property
    def resource(self) -> dict[str, Any]:
        state = fold((place, event) for place, event in enumerate(self.events, 1) if isinstance(event, Fact))
        assert state is not None
        return resource(state, epoch=EPOCH, retention_s=86_400).model_dump(mode="json")


def _written(stage: RunStage, script: Script, now: datetime) -> Iterator[CallFinished | View]:
    for call in stage.calls:
        about: dict[str, Any] = {"deliberation_id": ID, "ts": now, "call_id": call.call_id, "agent_id": call.agent_id}
        yield CallStarted(**about, role=call.role, model=MODEL, attempt=1)
        text = script(call)
        for offset in range(0, len(text or ""), PIECE_CHARS):
            yield CallDelta(**about, attempt=1, offset=offset, text=(text or "")[offset : offset + PIECE_CHARS])
        yield CallFinished(
            **about,
            role=call.role,
            stage=stage.opened.stage,
            attempt=1,
            text=text,
            problem=None if text else FactProblem(code="engine_unavailable", detail="refused", retryable=True),
            model=MODEL,
            usage=Usage(prompt_tokens=100, completion_tokens=20, cached_tokens=64, calls=1),
            duration_ms=1_500,
        )


def council_of(asked: Specification | None = None, script: Script = answer_text) -> Council:
    """Run a council to its end; `script` answers each call, None is a failure."""
    asked = asked or specification()
    clock = FakeClock()
    deadline_at = clock.now() + timedelta(seconds=300)
    clock.advance(0.25)
    first = Accepted(
        deliberation_id=ID, ts=clock.now(), specification=asked, deadline_at=deadline_at, body_sha256="0" * 64
    )
    council = Council([first], clock)
    following = drive(
        begin(first, 1),
        STRATEGIES[asked.strategy],
        clock.now,
        lambda _, stage: _written(stage, script, clock.now()),
    )
    for event in following:
        clock.advance(0.25)
        council.events.append(event.model_copy(update={"ts": clock.now()}))
    return council


def wire(frame: Frame) -> bytes:
    """A frame as the gateway sends it."""
    head = "" if frame.id is None else f"id: {frame.id}\n"
    return f"{head}event: {frame.event}\ndata: {frame.data}\n\n".encode()


def problem(code: str, status: int, errors: list[dict[str, str]] | None = None) -> JSONResponse:
    body = {
        "type": f"urn:deliberation-gateway:problem:{code}",
        "title": code,
        "status": status,
        "detail": f"this is {code}",
        "instance": "/deliberations",
        "code": code,
        "request_id": "req-1",
        "retryable": False,
        "errors": errors or [],
    }
    headers = {"Retry-After": "7"} if status in (429, 503) else {}
    return JSONResponse(body, status, headers, media_type="application/problem+json")


@dataclass
class StubGateway:
    """Serves one council.

    `cut_after` breaks each stream after so many frames, or with `hold` leaves it open and silent there; `answers`
    replaces the next answers.
    """

    council: Council = field(default_factory=council_of)
    cut_after: int | None = None
    hold: bool = False
    answers: list[Response] = field(default_factory=list[Response])
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list[tuple[str, str, dict[str, str]]])

    @property
    def app(self) -> Starlette:
        path = "/deliberations/{id}"
        routes: list[tuple[str, str, Callable[[Request], Response]]] = [
            ("POST", "/deliberations", self._submit),
            ("GET", "/deliberations", self._list),
            ("GET", path, lambda _: JSONResponse(self.council.resource)),
            ("GET", f"{path}/events", self._events),
            ("POST", f"{path}/cancel", self._cancel),
            ("GET", "/roles", self._roles),
            ("GET", "/readyz", lambda _: JSONResponse(composed(_SCHEMAS["Ready"], _SCHEMAS))),
            ("GET", "/status", lambda _: JSONResponse(composed(_SCHEMAS["Installation"], _SCHEMAS))),
            ("GET", "/strategies", self._strategies),
        ]
        return Starlette(routes=[Route(path, self._wrapped(work), methods=[method]) for method, path, work in routes])

    def _wrapped(self, respond: Callable[[Request], Response]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            self.requests.append((request.method, str(request.url.path), dict(request.headers)))
            if request.method == "POST":
                self.bodies.append(await request.json())
            if self.answers:
                return self.answers.pop(0)
            if request.path_params.get("id", ID) != ID:
                return problem("not_found", 404)
            return respond(request)

        return endpoint

    def _submit(self, _: Request) -> Response:
        return JSONResponse({**self.council.resource, "status": "pending"}, 202)

    def _list(self, _: Request) -> Response:
        resource = self.council.resource
        summary = {key: resource[key] for key in ("id", "status", "role", "strategy", "task", "metadata", "links")}
        times = {key: resource[key] for key in ("created_at", "started_at", "ended_at")}
        outcome = dict.fromkeys(("progress", "usage", "winner", "degraded"))
        agents = [{"role": "DEV", "count": len(resource["agents"])}]
        page = {"items": [{**summary, **times, **outcome, "agents": agents}], "next_cursor": "c-2", "behind_s": 0.0}
        return JSONResponse(page)

    def _events(self, request: Request) -> Response:
        cursor = request.headers.get("Last-Event-ID") or request.query_params.get("after", "0")
        seen = int(cursor.rpartition("-")[2])
        if seen >= len(self.council.events):
            return Response(status_code=204)
        deltas = request.query_params.get("deltas") != "false"
        frames = [frame for frame in self.council.frames[seen:] if deltas or frame.event != "call.delta"]
        opened = Frame("stream.opened", json.dumps({"type": "stream.opened"}))
        pieces = [b"retry: 1\n" + wire(opened), *map(wire, frames[: self.cut_after])]
        return StreamingResponse(self._sent(pieces), media_type="text/event-stream")

    async def _sent(self, pieces: list[bytes]) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
        if self.hold:
            await asyncio.Event().wait()

    def _cancel(self, _: Request) -> Response:
        return JSONResponse({**self.council.resource, "status": "cancelling"}, 202)

    def _roles(self, _: Request) -> Response:
        live: dict[str, Any] = {
            "replicas": 1,
            "models": [MODEL],
            "simulated": True,
            "in_flight": 0,
            "engines": [
                {"url": "http://engine", "healthy": True, "circuit": "closed", "models": [MODEL]},
                {
                    "url": "http://away",
                    "healthy": False,
                    "circuit": "open",
                    "models": [],
                    "trouble": troubled("refused", "connection refused"),
                },
            ],
        }
        role: dict[str, Any] = {
            "name": "DEV",
            "persona": "You are a developer.",
            "model": None,
            "engines": [],
            "sampling": {"temperature": 0.7, "max_tokens": 2048, "top_p": None},
            "replicas": {"min": 1, "max": 2},
            "concurrency": 256,
            "live": live,
        }
        idle = {**role, "name": "DATA", "live": None, "replicas": {"min": 0, "max": 1}}
        return JSONResponse({"items": [role, {**role, "name": "QA", "live": None}, idle]})

    def _strategies(self, _: Request) -> Response:
        items = [StrategyResource.of(definition).model_dump(mode="json") for definition in STRATEGIES.values()]
        return JSONResponse({"items": items})


class Served:
    """A server for the whole module, in a thread of its own (a command runs its own event loop), and its gateway."""

    def __init__(self) -> None:
        self.stub = StubGateway()
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.server = uvicorn.Server(uvicorn.Config(self, log_level="critical", lifespan="off"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listener]})
        self.thread.start()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.stub.app(scope, receive, send)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()
