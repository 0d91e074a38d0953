"""Events with the growing answer in place of the engine's raw output, worked out once for all viewers.

The answer after a delta depends on the raw text up to it alone. So every viewer gets the same pieces at the same
offsets, wherever its stream begins.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from pydantic_core import from_json, to_json

from app.api.event_schemas import UnfinishedCall
from app.api.partial_text import CallText
from app.deliberation.facts import CallDelta, decode, prefix
from app.deliberation.outputs import ANSWER_FIELDS
from app.deliberation.ports import Journal
from app.streaming.frames import EventFrame, event_in
from app.tenant_slots import TenantSlots

FRAMES_BYTES_MAX = 16_777_216
CHARS_MAX = 16_777_216
TENANTS_AT_ONCE = 16
_FIELDS = tuple(dict.fromkeys(ANSWER_FIELDS.values()))


class _CallKey(NamedTuple):
    tenant: str
    deliberation_id: str
    call_id: str


class _RawText(NamedTuple):
    attempt: int
    text: str


def _field(raw: str) -> object:
    try:
        output = from_json(raw, allow_partial="trailing-strings")
    except ValueError:
        return None
    if not isinstance(output, dict):
        return None
    fields = cast("dict[str, object]", output)
    return next((fields[name] for name in _FIELDS if name in fields), None)


def growing_answer(raw: str) -> str:
    answer = _field(raw)
    return answer if isinstance(answer, str) else ""


def finished_answer(raw: str) -> str | None:
    answer = _field(raw)
    return answer if answer is None or isinstance(answer, str) else to_json(answer).decode()


def unfinished_answer(call: UnfinishedCall) -> UnfinishedCall:
    """The call with its answer so far; without one where the beginning of its raw text is past retention."""
    text = growing_answer(call.text) if call.offset == len(call.text) else ""
    return call.model_copy(update={"text": text, "offset": len(text)})


class AnswerFrames:
    """Frames with answers in place of raw text, and without data where nothing is added; the newest are kept."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._frames: OrderedDict[bytes, EventFrame] = OrderedDict()
        self._texts: OrderedDict[_CallKey, _RawText] = OrderedDict()
        self._frame_bytes = self._chars = 0
        # A call's texts are read and kept in one turn; another tenant's turns go on beside it.
        self._turns = TenantSlots(TENANTS_AT_ONCE, share=1)

    async def of(
        self, tenant: str, frames: Iterable[EventFrame], takes: Callable[[EventFrame], bool]
    ) -> Sequence[EventFrame]:
        return [await self._of(tenant, frame) if takes(frame) else frame for frame in frames]

    async def _of(self, tenant: str, frame: EventFrame) -> EventFrame:
        if frame.type not in ("call.delta", "call.finished"):
            return frame
        id_line = frame.data[: frame.data.index(b"\n")]
        made = self._frames.get(id_line)
        if made is None:
            event = from_json(event_in(frame.data))
            fields = _finished(event) if frame.type == "call.finished" else await self._delta(tenant, frame, event)
            made = _with(frame, event, fields)
            # Another viewer may have had it made meanwhile.
            self._frame_bytes += 0 if id_line in self._frames else len(made.data)
            self._frames[id_line] = made
            while self._frame_bytes > FRAMES_BYTES_MAX:
                self._frame_bytes -= len(self._frames.popitem(last=False)[1].data)
        return made

    async def _delta(self, tenant: str, frame: EventFrame, event: dict[str, Any]) -> dict[str, Any] | None:
        key, attempt = _CallKey(tenant, frame.deliberation_id, event["call_id"]), event["attempt"]
        async with self._turns.slot(tenant):
            before = self._known(key, attempt, event["offset"])
            if before is None:
                before = await self._stored(key, attempt, frame.sequence)
            if before is None or len(before) != event["offset"]:
                return None
            raw = before + event["text"]
            self._keep(key, _RawText(attempt, raw))
        old, new = growing_answer(before), growing_answer(raw)
        grown = len(new) > len(old) and new.startswith(old)
        return {"offset": len(old), "text": new[len(old) :]} if grown else None

    def _known(self, key: _CallKey, attempt: int, offset: int) -> str | None:
        if offset == 0:
            return ""
        kept = self._texts.get(key)
        return kept.text[:offset] if kept and kept.attempt == attempt and len(kept.text) >= offset else None

    async def _stored(self, key: _CallKey, attempt: int, sequence: int) -> str | None:
        text = CallText(key.call_id, "", attempt)
        pattern = f"{prefix(key.tenant, key.deliberation_id)}.call.{key.call_id}.delta"
        async for record in self._journal.read(pattern, 0):
            if record.sequence >= sequence:
                break
            delta = decode(record.data)
            if isinstance(delta, CallDelta) and delta.attempt == attempt:
                text.place(delta.offset, delta.text)
        return text.text if text.whole else None

    def _keep(self, key: _CallKey, raw: _RawText) -> None:
        """Keep a call's raw text, unless a longer one of the attempt is kept for viewers that are ahead."""
        kept = self._texts.pop(key, None)
        if kept is not None:
            self._chars -= len(kept.text)
            if kept.attempt > raw.attempt or (kept.attempt == raw.attempt and kept.text.startswith(raw.text)):
                raw = kept
        self._texts[key] = raw
        self._chars += len(raw.text)
        while self._chars > CHARS_MAX and len(self._texts) > 1:
            self._chars -= len(self._texts.popitem(last=False)[1].text)


def _finished(event: dict[str, Any]) -> dict[str, Any]:
    raw = event["text"]
    answer = None if raw is None else finished_answer(raw)
    return {} if answer is None else {"text": answer}


def _with(frame: EventFrame, event: dict[str, Any], fields: dict[str, Any] | None) -> EventFrame:
    if fields is None:
        return replace(frame, data=b"")
    head, between, _ = frame.data.partition(b"\ndata: ")
    return replace(frame, data=head + between + to_json(event | fields) + b"\n\n") if fields else frame
