"""A call's use of tools before its answer: the model asks, a use is made, recorded, and only then shown to the model.

The log decides. A replica that takes a call over goes on after the uses that are recorded there. A use that began,
of a tool that must not be repeated, and has no recorded end is recorded as failed.
"""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

import structlog

from app.control_characters import whole_characters
from app.deliberation.calls import Call, FactProblem, StageRequest
from app.deliberation.choice.anonymity import fence, nonce
from app.deliberation.errors import FactTooLarge, InvalidOutput, UnexpectedFact
from app.deliberation.facts import ToolStarted, ToolUsed, decode, prefix
from app.deliberation.ports import Journal
from app.deliberation.specification import ToolAllowance
from app.deliberation.tools import engine_name
from serve_deployments.agent.validation import valid_reply
from serve_deployments.engine.replies import EngineReply
from serve_deployments.engine.tool_calls import NAME_CHARS_MAX, ToolCall, ToolOutcome, ToolTurn
from serve_deployments.tools.toolbox import GrantedTools, Tool, ToolFailure, ToolResult

ARGUMENTS_BYTES_MAX = 8_192
# Recorded arguments are read again by parsers that take 200 levels.
ARGUMENTS_DEPTH_MAX = 64
DETAIL_CHARS_MAX = 500
# A tool leaves at least this share of the call's time to the engine.
TOOL_SHARE = 0.5
UNKNOWN_OUTCOME = FactProblem(
    code="unknown_outcome",
    detail="the replica that began this use died or hung before it recorded the result; it is not repeated",
    retryable=False,
)
_SECRET = ("password", "passwd", "secret", "token", "api_key", "apikey", "authorization", "credential", "private_key")

AskEngine = Callable[[ToolTurn], Awaitable[EngineReply]]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Offer:
    """A tool as engines are offered it, and its own name at its server."""

    tool: Tool
    granted: GrantedTools
    own_name: str


class ToolLoop:
    """The uses of one call; `on_use` gets each use that the loop recorded.

    `away` names servers that could not be reached, `used` counts recorded uses.
    """

    def __init__(
        self,
        journal: Journal,
        request: StageRequest,
        call: Call,
        allowance: ToolAllowance,
        granted: Sequence[GrantedTools],
        left_s: Callable[[], float],
        on_use: Callable[[ToolUsed], None],
    ) -> None:
        self._journal = journal
        self._request = request
        self._call = call
        self._allowance = allowance
        self._granted = granted
        self._left_s = left_s
        self._on_use = on_use
        self._uses: list[ToolUsed] = []
        self.away: tuple[str, ...] = ()

    @property
    def used(self) -> int:
        return len(self._uses)

    async def run(self, ask: AskEngine) -> EngineReply | None:
        """A valid answer that came without a further tool call, else None: then `answering` is the turn to ask by.

        Raises CallFailure of requests to engines, and JournalUnavailable when a use cannot be recorded.
        """
        await self._adopt()
        offered = await self._offered()
        while offers := self._open(offered):
            offer = self._turn([offer.tool for offer in offers.values()])
            reply = await ask(offer)
            asked_for = reply.tool_calls
            if not asked_for:
                with suppress(InvalidOutput):
                    return await valid_reply(self._call, reply)
                asked_for = offer.written(reply.text)
            if not asked_for:
                return None
            turn = 1 + max((use.turn for use in self._uses), default=0)
            for asked in asked_for[: self._left]:
                if not await self._use(asked, turn, offers):
                    break
        return None

    @property
    def answering(self) -> ToolTurn:
        return self._turn(())

    @property
    def _left(self) -> int:
        return self._allowance.uses - len(self._uses)

    def _turn(self, offered: Sequence[Tool]) -> ToolTurn:
        return ToolTurn(offered, [self._outcome(use) for use in self._uses], self._left)

    def _outcome(self, use: ToolUsed) -> ToolOutcome:
        told = use.text
        if use.problem is not None:
            told = f"{use.problem.code}: {use.problem.detail}"
        mark = nonce(self._call.seed, "tool", use.call_id, use.number)
        what = "Failure" if use.failed else "Result"
        text = f"{what} of tool {use.name}, use {use.number}:\n{fence(told, mark)}"
        return ToolOutcome(use.turn, ToolCall(use.tool_call_id, use.name, use.arguments), text)

    # --- the tools -------------------------------------------------------------------------------------------------

    async def _offered(self) -> dict[str, _Offer]:
        offers: dict[str, _Offer] = {}
        away: list[str] = []
        for granted in self._granted:
            try:
                tools = await granted.toolbox.tools()
            except ToolFailure as failure:
                log.info("tools_away", server=granted.server, code=failure.code)
                away.append(granted.server)
                continue
            for tool in tools:
                if tool.name in granted.names:
                    # Names of two servers may be the same: the later one's is told apart by its server.
                    taken = tool.name in offers
                    name = f"{engine_name(granted.server)}_{tool.name}"[:NAME_CHARS_MAX] if taken else tool.name
                    offers.setdefault(name, _Offer(replace(tool, name=name), granted, tool.name))
        self.away = tuple(away)
        return offers

    def _open(self, offered: Mapping[str, _Offer]) -> dict[str, _Offer]:
        """The tools that may still be used; none when the call's uses, or the log's room for it, are spent."""
        if self._left <= 0:
            return {}
        return {name: offer for name, offer in offered.items() if self._is_open(offer.granted)}

    def _is_open(self, granted: GrantedTools) -> bool:
        spent, limits = self._spent(granted.server), granted.limits
        seconds, size = spent["ms"] / 1_000, spent["bytes"]
        return spent["calls"] < limits.calls and seconds < limits.seconds and size < limits.bytes

    def _spent(self, server: str) -> Counter[str]:
        spent = Counter[str]()
        for use in self._uses:
            if use.server == server:
                spent.update(calls=1, ms=use.duration_ms, bytes=len(use.text.encode()))
        return spent

    # --- one use ---------------------------------------------------------------------------------------------------

    async def _use(self, asked: ToolCall, turn: int, offers: Mapping[str, _Offer]) -> bool:
        """Make and record one use; False where the log held another use, which the loop then follows."""
        number, name = len(self._uses) + 1, _name(asked.name, offers)
        offer = offers.get(name)
        arguments, fault = _arguments(asked.arguments)
        known_ids = {use.tool_call_id for use in self._uses}
        about: dict[str, Any] = {
            "deliberation_id": self._request.deliberation_id,
            "call_id": self._call.call_id,
            "agent_id": self._call.agent_id,
            "role": self._call.role,
            "stage": self._request.stage,
            "number": number,
            "turn": turn,
            "server": offer.tool.server if offer else "",
            "tool": offer.own_name if offer else "",
            # Results are matched by ids. Mistral's are of nine letters and digits.
            "tool_call_id": asked.id if asked.id and asked.id not in known_ids else f"tool{number:05}",
            "name": name,
            "arguments": _recorded(arguments),
        }
        began_s = time.monotonic()
        try:
            if offer is None:
                raise ToolFailure("refused", f"there is no tool {asked.name!r}; there are {', '.join(offers)}")
            if fault:
                raise ToolFailure("refused", fault)
            if not self._is_open(offer.granted):
                raise ToolFailure("refused", "the call's limits for this server are reached")
            async with self._slot_of(offer.granted):
                # The wait for other uses is not the tool's time.
                began_s = time.monotonic()
                if not offer.tool.repeatable and not await self._record(ToolStarted(**about, ts=datetime.now(UTC))):
                    return await self._adopt()
                result, problem = await self._result(offer, arguments), None
        except ToolFailure as failure:
            result = ToolResult("", failed=True)
            problem = FactProblem(code=failure.code, detail=failure.detail[:DETAIL_CHARS_MAX], retryable=False)
        room = offer.granted.limits.bytes - self._spent(offer.granted.server)["bytes"] if offer else 0
        used = ToolUsed(
            **about,
            ts=datetime.now(UTC),
            text=_cut(result.text, room),
            failed=result.failed,
            problem=problem,
            bytes=len(result.text.encode()),
            duration_ms=round((time.monotonic() - began_s) * 1_000),
        )
        return await self._end(used)

    @asynccontextmanager
    async def _slot_of(self, granted: GrantedTools) -> AsyncGenerator[None]:
        """A slot among the uses of a server; raises ToolFailure where none is free in the tools' share of the time."""
        if granted.slots is None:
            yield
            return
        wait_s = TOOL_SHARE * self._left_s()
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(wait_s):
                    await stack.enter_async_context(granted.slots.slot(self._request.tenant))
            except TimeoutError:
                detail = f"other uses kept the server busy for {wait_s:.3g} s; this one was not made"
                raise ToolFailure("timeout", detail, made=False) from None
            yield

    async def _result(self, offer: _Offer, arguments: Mapping[str, Any]) -> ToolResult:
        granted = offer.granted
        seconds_left = granted.limits.seconds - self._spent(granted.server)["ms"] / 1_000
        within_s = min(seconds_left, TOOL_SHARE * self._left_s())
        if within_s <= 0:
            raise ToolFailure("timeout", "the call has no time left for tools")
        return await granted.toolbox.use(offer.own_name, arguments, within_s)

    async def _record(self, fact: ToolStarted | ToolUsed) -> bool:
        return (await self._journal.append(self._request.tenant, fact)).created

    async def _end(self, used: ToolUsed) -> bool:
        try:
            recorded = await self._record(used)
        except FactTooLarge:
            problem = FactProblem(code="too_large", detail="the log takes no fact of this size", retryable=False)
            used = used.model_copy(update={"text": "", "failed": True, "problem": problem})
            recorded = await self._record(used)
        if recorded:
            self._uses.append(used)
            self._on_use(used)
            return True
        return await self._adopt()

    # --- the recorded uses -----------------------------------------------------------------------------------------

    async def _adopt(self) -> bool:
        """Take the recorded uses as this call's; a use without an end is recorded as failed. Returns False."""
        subject = f"{prefix(self._request.tenant, self._request.deliberation_id)}.call.{self._call.call_id}.tool.*.*"
        started, used = dict[int, ToolStarted](), dict[int, ToolUsed]()
        for record in await self._journal.last([subject]):
            match decode(record.data):
                case ToolStarted() as fact:
                    started[fact.number] = fact
                case ToolUsed() as fact:
                    used[fact.number] = fact
                case other:
                    raise UnexpectedFact(f"{other.type} on a subject of a tool's use")
        self._uses = [used[number] for number in sorted(used)]
        for number in sorted(started.keys() - used.keys()):
            about = started[number].model_dump(exclude={"type", "ts"})
            lost = ToolUsed(**about, ts=datetime.now(UTC), failed=True, problem=UNKNOWN_OUTCOME)
            await self._end(lost)
        return False


def _name(written: str, offers: Mapping[str, _Offer]) -> str:
    """The tool that a model means, else the name with the characters that engines take in a conversation.

    Models add namespaces, as in `functions.look_up`, and parsers leave marks of templates, as in `look_up<|channel|>`.
    """
    plain = written.partition("<|")[0].strip()
    short = re.split("[.:/]", plain)[-1]
    known = next((name for name in (plain, engine_name(plain), short) if name in offers), None)
    return known or re.sub("[^A-Za-z0-9_-]", "_", plain) or "unnamed"


def _arguments(text: str) -> tuple[Mapping[str, Any], str]:
    """The arguments that a model wrote, and a fault where they are no JSON object."""
    try:
        document: object = json.loads(text, strict=False)
        if isinstance(document, str):
            # Written as JSON twice.
            document = json.loads(document, strict=False)
    except (ValueError, RecursionError) as exc:
        return {}, f"the arguments are no JSON: {exc}"
    if document is None:
        return {}, ""
    if not isinstance(document, dict):
        return {}, "the arguments are no JSON object"
    if _is_deep(cast("object", document)):
        return {}, f"the arguments nest deeper than {ARGUMENTS_DEPTH_MAX} levels"
    # A message with half of a surrogate pair cannot be written, which would end the server's connection for all.
    return json.loads(whole_characters(json.dumps(document, ensure_ascii=False))), ""


def _is_deep(document: object) -> bool:
    """Whether objects and lists of a document nest deeper than the bound; it goes level by level, without recursion."""
    level = [document]
    for _ in range(ARGUMENTS_DEPTH_MAX):
        level = [inner for node in level for inner in _inner(node)]
    return any(isinstance(node, dict | list) for node in level)


def _inner(node: object) -> Iterable[object]:
    if isinstance(node, dict):
        return cast("dict[str, object]", node).values()
    return cast("list[object]", node) if isinstance(node, list) else ()


def _recorded(arguments: Mapping[str, Any]) -> str:
    """The arguments as JSON without the values of secret keys; where they are too long, their beginning."""
    text = json.dumps(_without_secrets(arguments), ensure_ascii=False)
    if len(text.encode()) <= ARGUMENTS_BYTES_MAX:
        return text
    begin = text.encode()[: ARGUMENTS_BYTES_MAX // 2].decode(errors="ignore")
    return json.dumps({"cut_after_4_KiB": begin}, ensure_ascii=False)


def _without_secrets(node: object) -> object:
    if isinstance(node, dict):
        named = cast("dict[str, object]", node)
        return {key: "[secret]" if _is_secret(key) else _without_secrets(member) for key, member in named.items()}
    if isinstance(node, list):
        return [_without_secrets(element) for element in cast("list[object]", node)]
    return node


def _is_secret(key: str) -> bool:
    return any(word in key.lower().replace("-", "_") for word in _SECRET)


def _cut(text: str, room: int) -> str:
    """The text, or its beginning with a remark where it has more bytes than there is room for."""
    whole = text.encode("utf-8", "replace")
    if len(whole) <= room:
        return whole.decode()
    remark = f"\n[cut: {len(whole):,} bytes in all]"
    return whole[: max(0, room - len(remark))].decode(errors="ignore") + remark
