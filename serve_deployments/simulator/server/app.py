"""The simulator as a plain ASGI application: routes, checks, generation, and the count of requests."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from itertools import count

from prometheus_client import generate_latest
from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from serve_deployments.simulator.lacks import Lack, refuse_lacking
from serve_deployments.simulator.recorded import recorded_replies
from serve_deployments.simulator.script import FaultKind, FaultPlan, Script
from serve_deployments.simulator.server.calls import CallLedger, ServedRequest
from serve_deployments.simulator.server.completion import Generation, SimulatorSettings, complete, render
from serve_deployments.simulator.server.engine import EngineMetrics, PrefixCache, SequenceSlots
from serve_deployments.simulator.server.exchange import Exchange, RequestRefused, bad_request, unauthorized
from serve_deployments.simulator.server.requests import (
    CompletionRequest,
    Conversation,
    parse_chat,
    parse_tokenize,
)
from serve_deployments.simulator.server.streaming import ReplySender
from serve_deployments.simulator.writer.chance import digest, fraction
from serve_deployments.simulator.writer.tokens import token_id, tokenize

VERSION = "0.32.0+simulated"

_STATUS = {FaultKind.RATE_LIMIT: 429, FaultKind.ERROR: 500, FaultKind.UNAVAILABLE: 503, FaultKind.BAD_REQUEST: 400}

Handler = Callable[[Exchange], Awaitable[None]]


class Simulator:
    def __init__(self, settings: SimulatorSettings) -> None:
        self._settings = settings
        self._created_s = int(time.time())
        self._slots = SequenceSlots(settings.running_max)
        self._prefixes = PrefixCache()
        self._ledger = CallLedger()
        self._metrics = EngineMetrics(settings.model, self._slots)
        self._numbers = count(1)
        self._load = 0
        self._script = settings.script
        self._faults = FaultPlan(settings.script.faults, settings.seed)
        self._routes: dict[str, dict[str, Handler]] = {
            "/v1/chat/completions": {"POST": self._completions},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/health": {"GET": lambda exchange: exchange.answer(200, b"")},
            "/ping": {"GET": lambda exchange: exchange.answer(200, b"")},
            "/load": {"GET": lambda exchange: _json(exchange, {"server_load": self._load})},
            "/version": {"GET": lambda exchange: _json(exchange, {"version": VERSION})},
            "/metrics": {"GET": self._read_metrics},
        }
        if settings.controls:
            self._routes["/simulator/calls"] = {"GET": self._read_calls, "DELETE": self._reset_calls}
            self._routes["/simulator/script"] = {"GET": self._read_script, "POST": self._change_script}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            if scope["path"].startswith("/v1") and not self._script.admits(exchange.headers.get("authorization", "")):
                raise unauthorized()
            await self._handler(scope["path"], scope["method"])(exchange)
        except RequestRefused as refused:
            await exchange.answer(refused.status, refused.body, headers=refused.headers)
        except ClientDisconnect:
            pass

    def _handler(self, path: str, method: str) -> Handler:
        methods = self._routes.get(path)
        if methods is None:
            raise RequestRefused(404, "Not Found", kind="Not Found")
        handler = methods.get(method)
        if handler is None:
            raise RequestRefused(405, "Method Not Allowed", headers={"allow": ", ".join(methods)})
        return handler

    # --- completions -----------------------------------------------------------------------------------------------

    async def _completions(self, exchange: Exchange) -> None:
        header = exchange.headers.get("x-call-id", "")
        served = self._ledger.start(tuple(part.strip() for part in header.split(",") if part.strip()))
        self._load += 1
        try:
            body = await exchange.body()
            request, conversation = parse_chat(body)
            self._ledger.keep_prompt(served, body)
            if self._script.reply is not None:
                await exchange.play(recorded_replies()[self._script.reply])
                self._ledger.end(served, "finished")
                return
            generation = self._generation(request, conversation, header)
            async with exchange.connected():
                size = len(generation.choices)
                turn = self._slots.join(size, request.priority)
                try:
                    await turn
                    await self._generate(exchange, served, generation)
                finally:
                    self._slots.leave(size, turn)
        except ClientDisconnect:
            if served.outcome == "running":
                self._ledger.abort(served, 0)
            raise
        except RequestRefused:
            self._ledger.end(served, "failed")
            raise
        finally:
            self._load -= 1

    def _generation(self, request: CompletionRequest, conversation: Conversation, header: str) -> Generation:
        self._check_model(request.model)
        if request.priority and self._settings.scheduling_policy == "fcfs":
            # vLLM's words.
            raise bad_request(f"Got priority {request.priority} but Priority scheduling is not enabled.", "priority")
        prompt = render(conversation)
        self._check_length(request, prompt.tokens)
        script, seed = self._script, self._settings.seed
        refuse_lacking(script.lacks, request, conversation)
        fault = None
        if script.faults:
            text = f"{header}\n{prompt.rendered}"
            fault = self._faults.decide(digest(request.seed, text), text)
        if fault is not None and fault in _STATUS:
            status = _STATUS[fault]
            headers = {"retry-after": "1"} if status in (429, 503) else {}
            raise RequestRefused(status, f"Scripted fault: {fault}.", headers=headers)
        choices = complete(self._settings, request, prompt, script, fault)
        slow, due_times_s = fault is FaultKind.SLOW, list[list[float]]()
        for choice in choices:
            drawn_from = request.seed_of(choice.index)
            chance = fraction("jitter", seed, *drawn_from, prompt.rendered) if script.jitter else 0.5
            due_times_s.append(script.due_times_s(len(choice.tokens), chance, slow=slow))
        return Generation(request, prompt, choices, due_times_s, script, fault)

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self._settings.model:
            raise RequestRefused(404, f"The model `{model}` does not exist.", param="model")

    def _check_length(self, request: CompletionRequest, prompt_tokens: int) -> None:
        context = self._settings.max_model_len
        if request.limit is not None and request.limit > context:
            field = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
            raise bad_request(f"{field}={request.limit} cannot be greater than max_model_len={context}.", field)
        if prompt_tokens >= context:
            text = f"This model's maximum context length is {context} tokens; your prompt has {prompt_tokens}."
            raise bad_request(text, "input_tokens")

    async def _generate(self, exchange: Exchange, served: ServedRequest, generation: Generation) -> None:
        metrics, choices = self._metrics, generation.choices
        cached = self._prefill(generation)
        trace = exchange.headers.get("x-request-id") or f"simulated-{next(self._numbers)}"
        sender = ReplySender(exchange, generation, f"chatcmpl-{trace}", self._settings.model, cached)
        first_s = time.monotonic() - exchange.arrived_s + min(due_s[0] for due_s in generation.due_times_s)
        try:
            complete = await sender.send()
        except asyncio.CancelledError:
            self._ledger.abort(served, sender.written)
            metrics.ended["abort"].inc(len(choices))
            raise
        finally:
            metrics.generation_tokens.inc(sender.written)
        if not complete:
            self._ledger.end(served, "failed")
            return
        self._ledger.finish(served, generation.prompt.tokens, [len(choice.tokens) for choice in choices], cached)
        metrics.first_token_s.observe(first_s)
        metrics.request_s.observe(time.monotonic() - exchange.arrived_s)
        for choice in choices:
            # As in vLLM, a tool call is a stop.
            metrics.ended["stop" if choice.tool else choice.finish_reason].inc()

    def _prefill(self, generation: Generation) -> int:
        request, prompt = generation.request, generation.prompt
        hits = [
            self._prefixes.admit(prompt.blocks, prompt.tokens, request.cache_salt) for _ in range(request.sequences)
        ]
        self._metrics.prefix_hits.inc(sum(hits))
        self._metrics.prefix_queries.inc(prompt.tokens * len(hits))
        self._metrics.prompt_tokens.inc(prompt.tokens * len(hits))
        return hits[0]

    # --- the other routes ------------------------------------------------------------------------------------------

    async def _models(self, exchange: Exchange) -> None:
        settings = self._settings
        card = {"id": settings.model, "object": "model", "created": self._created_s}
        card["owned_by"] = "another" if set(self._script.lacks) - {Lack.TOOLS} else "simulator"
        card |= {"root": settings.model, "parent": None, "max_model_len": settings.max_model_len, "permission": []}
        await _json(exchange, {"object": "list", "data": [card]})

    async def _read_metrics(self, exchange: Exchange) -> None:
        exposition = generate_latest(self._metrics.registry)
        await exchange.answer(200, exposition, content_type=b"text/plain; version=0.0.4; charset=utf-8")

    async def _tokenize(self, exchange: Exchange) -> None:
        request, conversation = parse_tokenize(await exchange.body())
        self._check_model(request.model)
        text = request.prompt
        if text is None:
            text = render(conversation, generation=request.add_generation_prompt).rendered
        tokens = tokenize(text)
        answer = {"count": len(tokens), "max_model_len": self._settings.max_model_len}
        ids, texts = [token_id(token) for token in tokens], tokens if request.return_token_strs else None
        await _json(exchange, {**answer, "tokens": ids, "token_strs": texts})

    async def _read_calls(self, exchange: Exchange) -> None:
        detail = exchange.query_params.get("detail") in ("1", "true")
        await _json(exchange, self._ledger.report(self._settings.model, detail=detail))

    async def _reset_calls(self, exchange: Exchange) -> None:
        self._ledger.reset()
        await exchange.answer(200, b"{}")

    async def _read_script(self, exchange: Exchange) -> None:
        await _json(exchange, self._script.model_dump(mode="json"))

    async def _change_script(self, exchange: Exchange) -> None:
        body = await exchange.body()
        try:
            change = Script.model_validate_json(body)
        except ValidationError as exc:
            first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
            param = ".".join(str(step) for step in first["loc"]) or None
            raise bad_request(f"The script was not changed: {first['msg']}", param) from exc
        self._script = self._script.changed(change)
        if "faults" in change.model_fields_set:
            self._faults = FaultPlan(change.faults, self._settings.seed)
        await self._read_script(exchange)


async def _json(exchange: Exchange, value: object) -> None:
    await exchange.answer(200, json.dumps(value).encode())
