"""Councils against real engines: by the product's agents, or by a bare script that places each call at random.

Strategies, prompts, schemas and seeds are the same on both sides, and every council has a task of its own. The product
is its agent replicas, which choose engines, retry and record; the log is in memory. Gateway and Ray Serve are not part
of it: `benchmarks.bench` measures those.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pydoc_data.topics import topics
from random import Random
from typing import Any, Protocol

import httpx
from pydantic_core import from_json

from app.deliberation.calls import Call, StageRequest
from app.deliberation.choice.anonymity import call_seed
from app.deliberation.decider import Outcomes
from app.deliberation.errors import InvalidOutput
from app.deliberation.facts import CallFinished, decode
from app.deliberation.outputs import parse_output
from app.deliberation.roles import EngineSpec, Role
from app.deliberation.specification import AgentSpec, Evidence, Sampling, Specification
from app.deliberation.strategies import STRATEGIES
from benchmarks.prefix import ROLES, as_sent, personas, specification
from benchmarks.quality.trials import finished
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import Engines
from serve_deployments.engine.replies import EngineReply, Meter, OnText
from serve_deployments.engine.request_body import BeforeSending, request_body
from serve_deployments.engine.state import EngineState
from serve_deployments.engine.tool_calls import ToolTurn
from tests.fakes import InMemoryJournal

DEADLINE_S = 1_800.0
ATTEMPTS = 3
CONNECTIONS = 1_024
CHARS_PER_TOKEN = 4


@dataclass
class Figures:
    """What the engines reported. Only the first request of a call counts for prompts: a retry finds its own prompt.

    Prompts and answers of councils that failed do not count: their last stages, which share most, are missing.
    """

    ttft_s: list[float] = field(default_factory=list[float])
    retries: int = 0
    failed: int = 0
    elapsed_s: float = 0.0
    by_council: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    ended: list[str] = field(default_factory=list[str])

    @property
    def councils(self) -> int:
        """How many councils ended."""
        return len(self.ended)

    @property
    def prompt_tokens(self) -> int:
        """The prompt tokens of the councils that ended."""
        return self._total("prompt_tokens")

    @property
    def cached_share(self) -> float:
        """The share of prompt tokens that were in a cache; NaN when no engine reported any."""
        return self._total("cached_tokens") / self.prompt_tokens if self.prompt_tokens else float("nan")

    @property
    def answer_tokens(self) -> float:
        """The mean length of an answer; NaN without any."""
        requests = self._total("requests")
        return self._total("completion_tokens") / requests if requests else float("nan")

    def _total(self, name: str) -> int:
        return sum(self.by_council[council][name] for council in self.ended if council in self.by_council)

    def request(self, council: str, usage: dict[str, Any], ttft_s: float | None, *, first: bool) -> None:
        """Record a request that was answered."""
        if not first:
            self.retries += 1
            return
        known = {name: usage.get(name) or 0 for name in ("prompt_tokens", "cached_tokens", "completion_tokens")}
        self.by_council.setdefault(council, Counter()).update(known | {"requests": 1})
        if ttft_s is not None:
            self.ttft_s.append(ttft_s)


class Side(Protocol):
    """How a stage's calls are answered."""

    figures: Figures

    async def answer(self, council: str, stage: int, calls: Sequence[Call]) -> dict[str, CallFinished]:
        """The outcomes of one stage, by call id."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class RecordedEngines(Engines):
    """Engines of one role, whose answered requests are recorded."""

    figures: Figures

    async def complete(
        self,
        engine: EngineState,
        call: Call,
        model: str,
        *,
        seed: int,
        trace: str,
        on_text: OnText | None,
        meter: Meter,
        salt: str,
        priority: int = 0,
        before_sending: BeforeSending | None = None,
        shows_schema: bool = False,
        turn: ToolTurn | None = None,
        is_watched: Callable[[], bool] | None = None,
    ) -> EngineReply:
        reply = await super().complete(
            engine,
            call,
            model,
            seed=seed,
            trace=trace,
            on_text=on_text,
            meter=meter,
            salt=salt,
            priority=priority,
            before_sending=before_sending,
            shows_schema=shows_schema,
            turn=turn,
            is_watched=is_watched,
        )
        self.figures.request(
            trace.partition(".")[0], reply.usage.model_dump(), reply.ttft_s, first=trace.endswith(".1")
        )
        return reply


def _patient(url: str) -> EngineSpec:
    """An engine that may be silent for long, as one on a shared CPU is."""
    return EngineSpec(url=url, idle_timeout_s=DEADLINE_S)


class Product:
    """The agent replicas of the product, one for each role."""

    def __init__(self, urls: Sequence[str], roles: Sequence[str]) -> None:
        self.figures = Figures()
        self.replicas: dict[str, AgentReplica] = {}
        for name in roles:
            engines = RecordedEngines([_patient(url) for url in urls])
            engines.figures = self.figures
            role = Role(persona=personas()[name], concurrency=CONNECTIONS)
            journal: Any = InMemoryJournal()
            self.replicas[name] = AgentReplica(
                name, role, engines, journal, stream_deltas=True, engine_away_timeout_s=DEADLINE_S
            )

    async def answer(self, council: str, stage: int, calls: Sequence[Call]) -> dict[str, CallFinished]:
        now = datetime.now(UTC)
        by_role: dict[str, list[Call]] = {}
        for call in calls:
            by_role.setdefault(call.role, []).append(call)
        requests = {
            name: StageRequest(
                tenant="default",
                deliberation_id=council,
                priority=0,
                stage=stage,
                calls=tuple(group),
                asked_at=now,
                deadline_at=now + timedelta(seconds=DEADLINE_S),
                resumed=False,
            )
            for name, group in by_role.items()
        }
        await asyncio.gather(*(self.replicas[name].run_stage(request) for name, request in requests.items()))
        found: dict[str, CallFinished] = {}
        for name in by_role:
            for record in await self.replicas[name].journal.facts("default", council):
                fact = decode(record.data)
                if isinstance(fact, CallFinished) and fact.stage == stage:
                    found[fact.call_id] = fact
        return found

    async def close(self) -> None:
        for replica in self.replicas.values():
            await replica.engines.close()


class Bare:
    """A script without a product: each call goes to an engine at random, and again while its answer is invalid."""

    def __init__(self, urls: Sequence[str], model: str, seed: int = 1) -> None:
        self.figures = Figures()
        self.urls, self.model, self.random = urls, model, Random(seed)
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        self.client = httpx.AsyncClient(timeout=DEADLINE_S, limits=limits)

    async def answer(self, council: str, stage: int, calls: Sequence[Call]) -> dict[str, CallFinished]:
        texts = await asyncio.gather(*(self._text(council, call) for call in calls))
        return {call.call_id: finished(call, stage, text) for call, text in zip(calls, texts, strict=True)}

    async def _text(self, council: str, call: Call) -> str | None:
        call = as_sent(call)
        for attempt in range(1, ATTEMPTS + 1):
            seed = call.seed if attempt == 1 else call_seed(call.seed, call.call_id, attempt)
            body = request_body(call, self.model, seed, stream=True)
            text = await self._stream(council, body, first=attempt == 1)
            try:
                parse_output(call.output, text)
            except InvalidOutput:
                continue
            return text
        return None

    async def _stream(self, council: str, body: bytes, *, first: bool) -> str:
        url = f"{self.random.choice(self.urls)}/v1/chat/completions"
        began_s, ttft_s, text, usage = time.monotonic(), None, "", dict[str, Any]()
        headers = {"content-type": "application/json"}
        async with self.client.stream("POST", url, content=body, headers=headers) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if not line.startswith("data:") or line.endswith("[DONE]"):
                    continue
                event = from_json(line[5:])
                usage = event.get("usage") or usage
                piece = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
                if piece and ttft_s is None:
                    ttft_s = time.monotonic() - began_s
                text += piece
        details: dict[str, Any] = usage.get("prompt_tokens_details") or {}
        self.figures.request(council, usage | {"cached_tokens": details.get("cached_tokens")}, ttft_s, first=first)
        return text

    async def close(self) -> None:
        await self.client.aclose()


def evidence(number: int, tokens: int) -> Evidence:
    """A text of about so many tokens, another one for each number: Python's own help, read on from another place."""
    helped = "\n\n".join(topics.values())
    start = number * 1_009 % (len(helped) - CHARS_PER_TOKEN * tokens)
    return Evidence(id="e1", title="Notes", text=helped[start : start + CHARS_PER_TOKEN * tokens])


def bounded(number: int, strategy: str, size: int, max_tokens: int, evidence_tokens: int = 0) -> Specification:
    """The specification of a council whose answers have at most so many tokens."""
    found = specification(number, strategy, size, ROLES[:size])
    if evidence_tokens:
        found = found.model_copy(update={"evidence": (evidence(number, evidence_tokens),)})
    agents: tuple[AgentSpec, ...] = tuple(
        agent.model_copy(update={"sampling": Sampling(max_tokens=max_tokens)}) for agent in found.agents
    )
    return found.model_copy(update={"agents": agents})


async def deliberate(side: Side, asked: Specification) -> None:
    """Run one council to its end, and count it."""
    strategy, council = STRATEGIES[asked.strategy].run(asked), f"d{asked.seed}"
    ask, stage = next(strategy), 1
    while True:
        seen = await side.answer(council, stage, ask.calls)
        if sum(outcome.answered for outcome in seen.values()) < ask.quorum:
            side.figures.failed += 1
            return
        try:
            ask = strategy.send(Outcomes(seen))
        except StopIteration:
            side.figures.ended.append(council)
            return
        stage += 1


async def run(side: Side, asked: Sequence[Specification], at_once: int) -> Figures:
    """Run councils, so many at once, and close the side."""
    waiting, began_s = iter(asked), time.monotonic()

    async def worker() -> None:
        for each in waiting:
            await deliberate(side, each)

    try:
        await asyncio.gather(*(worker() for _ in range(at_once)))
    finally:
        await side.close()
    side.figures.elapsed_s = time.monotonic() - began_s
    return side.figures
