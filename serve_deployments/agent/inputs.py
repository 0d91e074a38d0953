"""Prompts get their inputs where they are sent: a replica reads each form once, and keeps those used last."""

import asyncio
import base64
from collections import OrderedDict
from functools import partial

from app.deliberation.calls import Call, ChatMessage
from app.deliberation.choice.anonymity import without_fences_in_pieces
from app.deliberation.errors import InputGone
from app.deliberation.specification import InputRef
from app.log.inputs import InputLost, InputStore

KEPT_BYTES_MAX = 256 << 20


def _neutral(content: bytes) -> str:
    return "".join(without_fences_in_pieces(content.decode()))


class Inputs:
    """Forms of inputs, at most `bytes_max` of them unless a single one is larger.

    Calls that need the same form share one reading. A text is a string as prompts have it, a picture a data URL.
    """

    def __init__(self, store: InputStore, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._store, self._bytes_max = store, bytes_max
        self._kept: OrderedDict[tuple[str, str], tuple[asyncio.Task[str], int]] = OrderedDict()
        self.reads = 0

    async def resolved(self, tenant: str, call: Call) -> Call:
        """The call with its inputs in its messages; raises InputGone, and JournalUnavailable."""
        if not any(message.inputs for message in call.messages):
            return call
        messages = [await self._resolved(tenant, message) for message in call.messages]
        return call.model_copy(update={"messages": tuple(messages)})

    async def text_of(self, tenant: str, file: InputRef) -> str:
        """Raises InputGone, and JournalUnavailable."""
        return await self._form(tenant, file)

    async def _resolved(self, tenant: str, message: ChatMessage) -> ChatMessage:
        pieces, pictures, at = list[str](), list[str](), 0
        for placed in message.inputs:
            form = await self._form(tenant, placed.file)
            if placed.file.kind == "picture":
                pictures.append(form)
                continue
            pieces += message.content[at : placed.at], form
            at = placed.at
        content = "".join((*pieces, message.content[at:]))
        return message.model_copy(update={"content": content, "pictures": tuple(pictures)})

    async def _form(self, tenant: str, file: InputRef) -> str:
        key = tenant, file.sha256
        if key not in self._kept:
            reading = asyncio.get_running_loop().create_task(self._read(tenant, file))
            reading.add_done_callback(partial(self._forget_failed, key))
            self._kept[key] = reading, file.form_bytes
            self._drop_oldest()
        self._kept.move_to_end(key)
        try:
            # A call that is stopped leaves the reading to the others.
            return await asyncio.shield(self._kept[key][0])
        except InputLost as lost:
            raise InputGone(str(lost)) from lost

    def _forget_failed(self, key: tuple[str, str], reading: asyncio.Task[str]) -> None:
        failed = reading.cancelled() or reading.exception() is not None
        if failed and key in self._kept and self._kept[key][0] is reading:
            del self._kept[key]

    def _drop_oldest(self) -> None:
        while len(self._kept) > 1 and sum(size for _, size in self._kept.values()) > self._bytes_max:
            self._kept.popitem(last=False)

    async def _read(self, tenant: str, file: InputRef) -> str:
        self.reads += 1
        content = b"".join([chunk async for chunk in self._store.chunks(tenant, file, "form")])
        if file.kind == "text":
            return await asyncio.to_thread(_neutral, content)
        return f"data:{file.media_type};base64,{base64.b64encode(content).decode()}"
