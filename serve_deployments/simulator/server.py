"""The simulator as a plain ASGI application: routes, admission, and the count of what was served."""

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import parse_qs

from pydantic import ValidationError

from serve_deployments.simulator.calls import CallLedger, Served
from serve_deployments.simulator.completion import Completion, Model, Prompt, render
from serve_deployments.simulator.dice import digest, fraction
from serve_deployments.simulator.errors import Refusal, bad_request
from serve_deployments.simulator.exchange import ClientGone, Exchange, Receive, Send
from serve_deployments.simulator.faults import FaultKind, FaultPlan
from serve_deployments.simulator.metrics import EngineMetrics
from serve_deployments.simulator.pacing import Schedule, schedule
from serve_deployments.simulator.prefix_cache import PrefixCache
from serve_deployments.simulator.requests import Work, parse_batch, parse_chat, parse_tokenize
from serve_deployments.simulator.script import Script, ScriptChange
from serve_deployments.simulator.slots import Slots
from serve_deployments.simulator.streaming import Delivery
from serve_deployments.simulator.tokens import token_id, tokenize
from serve_deployments.simulator.wire import Envelope, Usage

VERSION = "0.32.0+simulated"
BODY_BYTES_MAX = 16 * 1024 * 1024

_REFUSALS: Mapping[FaultKind, tuple[int, str]] = {
    FaultKind.RATE_LIMIT: (429, "Rate limit reached (scripted fault)."),
    FaultKind.ERROR: (500, "Internal server error (scripted fault)."),
    FaultKind.UNAVAILABLE: (503, "The engine is overloaded (scripted fault)."),
    FaultKind.BAD_REQUEST: (400, "This request is refused (scripted fault)."),
}
_RETRY_AFTER = {"retry-after": "1"}

Parse = Callable[[bytes], Work]
Handler = Callable[[Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class SimulatorSettings:
    """What is fixed for a simulator's life. `running_max` bounds the sequences that run at once."""

    model: str = "simulated-council-8b"
    seed: int = 0
    max_model_len: int = 32_768
    running_max: int | None = None
    script: Script = field(default_factory=Script)


class Simulator:
    """The ASGI application. One instance serves one event loop."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self._model = Model(settings.model, settings.seed, settings.max_model_len)
        self._created_s = int(time.time())
        self._slots = Slots(settings.running_max)
        self._prefixes = PrefixCache()
        self._ledger = CallLedger()
        self._metrics = EngineMetrics(settings.model, lambda: self._slots.running, lambda: self._slots.waiting)
        self._numbers = count(1)
        self._load = 0
        self._script = settings.script
        self._faults = FaultPlan(settings.script.parsed_faults(), settings.seed)
        self._routes: dict[str, dict[str, Handler]] = {
            "/v1/chat/completions": {"POST": lambda exchange: self._completions(exchange, parse_chat, "chat")},
            "/v1/chat/completions/batch": {"POST": lambda exchange: self._completions(exchange, parse_batch, "batch")},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/health": {"GET": lambda exchange: exchange.answer(200, b"")},
            "/ping": {"GET": lambda exchange: exchange.answer(200, b"")},
            "/load": {"GET": lambda exchange: _json(exchange, {"server_load": self._load})},
            "/version": {"GET": lambda exchange: _json(exchange, {"version": VERSION})},
            "/metrics": {"GET": self._exposition},
            "/simulator/calls": {"GET": self._calls, "DELETE": self._reset_calls},
            "/simulator/script": {"GET": self._tell_script, "POST": self._change_script},
        }

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"only http is served, not {scope['type']}")
        async with Exchange(scope, receive, send) as exchange:
            try:
                await self._handler(scope["path"], scope["method"])(exchange)
            except Refusal as refusal:
                await exchange.answer(refusal.status, refusal.body(), headers=refusal.headers)
            except ClientGone:
                pass

    def _handler(self, path: str, method: str) -> Handler:
        methods = self._routes.get(path)
        if methods is None:
            raise Refusal(404, "Not Found", kind="Not Found")
        handler = methods.get(method)
        if handler is None:
            raise Refusal(405, "Method Not Allowed", headers={"allow": ", ".join(methods)})
        return handler

    # --- completions -------------------------------------------------------------------------------------------

    async def _completions(self, exchange: Exchange, parse: Parse, kind: str) -> None:
        header = exchange.headers.get(b"x-call-id", b"").decode("latin-1")
        served = self._ledger.start(tuple(part.strip() for part in header.split(",") if part.strip()), kind)
        self._load += 1
        try:
            body = await exchange.body(BODY_BYTES_MAX)
            work = parse(body)
            self._ledger.keep_prompt(served, body)
            await self._admitted(exchange, served, work, header)
        except ClientGone:
            if served.outcome == "running":
                self._ledger.abort(served, 0)
            raise
        except Refusal:
            self._ledger.fail(served)
            raise
        finally:
            self._load -= 1

    async def _admitted(self, exchange: Exchange, served: Served, work: Work, header: str) -> None:
        self._check_model(work.model)
        prompts = [render(conversation) for conversation in work.conversations]
        self._check_length(work, max(prompt.tokens for prompt in prompts))
        script = self._script
        fault = self._fault(work, prompts, header)
        if fault is not None and fault in _REFUSALS:
            status, text = _REFUSALS[fault]
            raise Refusal(status, text, headers=_RETRY_AFTER if status in (429, 503) else None)
        completions = self._model.complete(work, prompts, script, fault)
        await self._take_slots(exchange, work.size)
        try:
            await self._run(exchange, served, _Running(work, prompts, completions, script, fault))
        finally:
            self._slots.release(work.size)

    def _check_model(self, asked: str | None) -> None:
        if asked is not None and asked != self._model.name:
            raise Refusal(404, f"The model `{asked}` does not exist.", param="model")

    def _check_length(self, work: Work, prompt_tokens: int) -> None:
        limit = self._model.max_model_len
        if work.max_tokens is not None and work.max_tokens > limit:
            field = work.max_tokens_field
            raise bad_request(
                f"{field}={work.max_tokens} cannot be greater than max_model_len={limit}. "
                "Please request fewer output tokens.",
                field,
            )
        if prompt_tokens >= limit:
            raise bad_request(
                f"This model's maximum context length is {limit} tokens. However, your prompt contains "
                f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. "
                "Please reduce the length of the input prompt.",
                "input_tokens",
            )

    def _fault(self, work: Work, prompts: list[Prompt], header: str) -> FaultKind | None:
        text = "\n".join((header, *(prompt.rendered for prompt in prompts)))
        return self._faults.decide(digest(work.seed, text), text) if self._script.faults else None

    async def _take_slots(self, exchange: Exchange, need: int) -> None:
        if self._slots.try_take(need):
            return
        turn = self._slots.join(need)
        granted = False
        try:
            await exchange.until(turn)
            granted = True
        finally:
            if not granted:
                self._slots.abandon(need, turn)

    async def _run(self, exchange: Exchange, served: Served, running: "_Running") -> None:
        metrics, work = self._metrics, running.work
        cached = self._prefill(running)
        usage = Usage(running.prompt_tokens, sum(running.completion_tokens), cached)
        envelope = Envelope(self._answer_id(exchange), int(time.time()), self._model.name)
        schedules = running.schedules(self._model.seed)
        delivery = Delivery(exchange, envelope, usage, running.completions, schedules, running.fault)
        first_s = time.monotonic() - exchange.arrived_s + min(each.first_s for each in schedules)
        try:
            if running.fault is FaultKind.HANG:
                await exchange.until_gone()
            chunk_tokens = max(work.stream_interval, running.script.chunk_tokens)
            complete = await (
                delivery.send_stream(
                    chunk_tokens, include_usage=work.include_usage, continuous_usage=work.continuous_usage
                )
                if work.stream
                else delivery.send_whole()
            )
        except ClientGone:
            self._ledger.abort(served, delivery.written)
            metrics.ended("abort", work.size)
            metrics.generation_tokens.inc(delivery.written)
            raise
        metrics.generation_tokens.inc(delivery.written)
        if not complete:
            self._ledger.fail(served)
            return
        self._ledger.finish(served, [prompt.tokens for prompt in running.prompts], running.completion_tokens, cached)
        metrics.first_token_s.observe(first_s)
        metrics.request_s.observe(time.monotonic() - exchange.arrived_s)
        for completion in running.completions:
            metrics.ended(completion.finish_reason)

    def _prefill(self, running: "_Running") -> int:
        """Look the prompts up in the prefix cache, once for each sequence; returns the cached tokens of the prompts."""
        cached = 0
        for prompt in running.prompts:
            hits = [
                self._prefixes.admit(prompt.blocks, prompt.tokens, running.work.cache_salt)
                for _ in range(running.work.sequences)
            ]
            cached += hits[0]
            self._metrics.prefix_hits.inc(sum(hits))
        queried = running.prompt_tokens * running.work.sequences
        self._metrics.prefix_queries.inc(queried)
        self._metrics.prompt_tokens.inc(queried)
        return cached

    def _answer_id(self, exchange: Exchange) -> str:
        given = exchange.headers.get(b"x-request-id")
        return f"chatcmpl-{given.decode('latin-1') if given else f'simulated-{next(self._numbers)}'}"

    # --- the other routes --------------------------------------------------------------------------------------

    async def _models(self, exchange: Exchange) -> None:
        card: dict[str, object] = {
            "id": self._model.name,
            "object": "model",
            "created": self._created_s,
            "owned_by": "simulator",
            "root": self._model.name,
            "parent": None,
            "max_model_len": self._model.max_model_len,
            "permission": [],
        }
        await _json(exchange, {"object": "list", "data": [card]})

    async def _tokenize(self, exchange: Exchange) -> None:
        request, conversation = parse_tokenize(await exchange.body(BODY_BYTES_MAX))
        self._check_model(request.model)
        text = request.prompt
        if text is None:
            text = render(conversation, generation=request.add_generation_prompt).rendered
        tokens = tokenize(text)
        told = {
            "count": len(tokens),
            "max_model_len": self._model.max_model_len,
            "tokens": [token_id(token) for token in tokens],
            "token_strs": tokens if request.return_token_strs else None,
        }
        await _json(exchange, told)

    async def _exposition(self, exchange: Exchange) -> None:
        await exchange.answer(200, self._metrics.exposition(), content_type=b"text/plain; version=0.0.4; charset=utf-8")

    async def _calls(self, exchange: Exchange) -> None:
        asked = parse_qs(exchange.query.decode("latin-1"))
        detail = asked.get("detail", ["0"])[-1] in ("1", "true")
        await _json(exchange, self._ledger.told(self._model.name, detail=detail))

    async def _reset_calls(self, exchange: Exchange) -> None:
        self._ledger.reset()
        await exchange.answer(200, b"{}")

    async def _tell_script(self, exchange: Exchange) -> None:
        await _json(exchange, self._script.told())

    async def _change_script(self, exchange: Exchange) -> None:
        body = await exchange.body(BODY_BYTES_MAX)
        try:
            change = ScriptChange.model_validate_json(body)
        except ValidationError as exc:
            first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
            param = ".".join(str(step) for step in first["loc"]) or None
            raise bad_request(f"The script was not changed: {first['msg']}", param) from exc
        self._script = change.applied_to(self._script)
        if "faults" in change.model_fields_set:
            self._faults = FaultPlan(self._script.parsed_faults(), self._model.seed)
        await self._tell_script(exchange)


@dataclass(frozen=True, slots=True)
class _Running:
    """A request that was admitted: what it asked, what is answered, and under which script."""

    work: Work
    prompts: list[Prompt]
    completions: list[Completion]
    script: Script
    fault: FaultKind | None

    @property
    def prompt_tokens(self) -> int:
        return sum(prompt.tokens for prompt in self.prompts)

    @property
    def completion_tokens(self) -> list[int]:
        return [len(completion.tokens) for completion in self.completions]

    def schedules(self, seed: int) -> list[Schedule]:
        latency = self.script.latency
        chance = 0.5
        if latency.jitter:
            chance = fraction("jitter", seed, self.work.seed, *(prompt.rendered for prompt in self.prompts))
        found = [schedule(latency, tokens, chance) for tokens in self.completion_tokens]
        return [each.slowed() for each in found] if self.fault is FaultKind.SLOW else found


async def _json(exchange: Exchange, value: object) -> None:
    await exchange.answer(200, json.dumps(value).encode())
