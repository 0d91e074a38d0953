"""The operations that a façade may use, on the deliberations of one tenant, and the clients that wait for them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any, NamedTuple, Protocol

import anyio
import structlog
from fastapi import Depends, Request, Response

from app.api.headers import Submission
from app.api.problems import NotReady, ValidationFailed, body_fault
from app.api.requests import DeliberationRequest
from app.api.schemas import FieldProblem
from app.api.webhook_payloads import is_end
from app.catalog.entries import ListFilter
from app.deliberation.calls import FactProblem
from app.deliberation.errors import DeliberationError, JournalUnavailable, NotFound
from app.deliberation.facts import Accepted, CallDelta, Event, NewerEvent
from app.deliberation.fold import State, decoded
from app.facades.message_content import FilePart
from app.facades.moments import Moment, Telling
from app.facades.outcomes import NoVerdict
from app.inputs.reading import InputRefused
from app.lifecycle.deliberations import Stored
from app.lifecycle.files import Files
from app.lifecycle.lists import NOW, Listed
from app.log.inputs import InputLost, StoredInput
from app.log.paging import of_deliberation
from app.log.text_viewers import keys_of
from app.routes.dependencies import Gateway, InGateway, OfTenant, registry_of, stream_slot
from app.streaming.event_stream import COMMENT, EventStreamResponse
from app.streaming.frames import VIEW_TYPES, EventFrame, event_in

CLIENT_LEFT = 499
# A coordinator ends overdue deliberations at their deadline; the end reaches this process a little later.
END_GRACE_S = 10.0
LAG_S = 0.1
LAGS_MAX = 20
# Calls are cut within milliseconds, so that the answer to a cancellation usually has its end.
CANCEL_WAIT_S = 10

log = structlog.get_logger(__name__)


class Told(NamedTuple):
    """Moments from the acceptance on, and the state after all facts, also those that were recorded after the end."""

    moments: Sequence[Moment]
    state: State


class Writer(Protocol):
    """Writes moments as a façade's frames. Nothing follows the frames of `Ended` or `Interrupted`."""

    def write(self, moment: Moment) -> Iterator[bytes]: ...


@dataclass(frozen=True, slots=True)
class Council:
    """A deliberation as a client of a façade holds it; unless `kept`, it is cancelled when the client leaves."""

    tenant: str
    state: State
    kept: bool
    _gateway: Gateway

    async def wait(self, request: Request) -> bool | None:
        """Whether the deliberation ends until shortly after its deadline; None if the client disconnected before.

        A process that drains ends the wait early. Raises JournalUnavailable.
        """
        left_s = (self.state.accepted.deadline_at - self._gateway["clock"].now()).total_seconds()
        ended: bool | JournalUnavailable | None = None
        async with anyio.create_task_group() as group:

            async def until_disconnect() -> None:
                while (await request.receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(until_disconnect)
            operations, timeout_s = self._gateway["deliberations"], max(0.0, left_s) + END_GRACE_S
            try:
                ended = await operations.ended(self.tenant, self.state.deliberation_id, timeout_s)
            except JournalUnavailable as error:
                # A group of tasks would raise this error as a group of errors, which has no status.
                ended = error
            group.cancel_scope.cancel()
        if isinstance(ended, JournalUnavailable):
            raise ended
        return ended

    def _whole(self, event: Event | NewerEvent) -> Event | NewerEvent:
        """The event, where the acceptance has its whole task, as in `state`."""
        long = isinstance(event, Accepted) and event.specification.task_file is not None
        return self.state.accepted if long else event

    async def _stored(self, *, ended: bool = False) -> Stored:
        """The facts, with the end if it has `ended`: a replica of the log that lags may lack the newest for a moment.

        Raises Gone, JournalUnavailable and ArchiveUnavailable.
        """
        for _ in range(LAGS_MAX):
            with suppress(NotFound):
                stored = await self._gateway["deliberations"].stored(self.tenant, self.state.deliberation_id)
                if not ended or any(map(is_end, stored.records)):
                    return stored
            await asyncio.sleep(LAG_S)
        lacking = "has ended, but its end" if ended else "is accepted, but its acceptance"
        raise JournalUnavailable(f"The deliberation {lacking} cannot be read yet.")

    async def told(self, *, ended: bool = False) -> Told:
        """The moments of the stored facts, with the end if it has `ended`; raises as `_stored`."""
        telling, moments = Telling(), list[Moment]()
        for record in (await self._stored(ended=ended)).records:
            moments += telling.tell(self._whole(decoded(record.data)), record.sequence)
        assert telling.state is not None, "stored facts begin with the acceptance"
        return Told(moments, telling.state)

    async def end(self, request: Request) -> Told | None:
        """The moments up to the end; None if the client left before.

        Raises NotReady while draining, NoVerdict when no end comes, and JournalUnavailable.
        """
        ended = await self.wait(request)
        if ended:
            return await self.told(ended=True)
        await self.leave()
        if ended is None:
            return None
        raise _late(self._gateway, self.state.deliberation_id)

    async def cancel(self, reason: str | None) -> State:
        """The state after a client's request to cancel, and after the end if that comes within seconds."""
        operations = self._gateway["deliberations"]
        state = await operations.cancel(self.tenant, self.state, reason)
        state = await operations.wait_until_ended(self.tenant, state, CANCEL_WAIT_S)
        return replace(state, accepted=self.state.accepted)

    async def leave(self) -> None:
        """The client has left: cancel, unless the deliberation is kept, or ends by itself."""
        operations, deadline_at = self._gateway["deliberations"], self.state.accepted.deadline_at
        if self.kept or self._gateway["clock"].now() >= deadline_at:
            return
        with anyio.CancelScope(shield=True):
            try:
                if not await operations.ended(self.tenant, self.state.deliberation_id, 0):
                    await operations.cancel(self.tenant, self.state, "the client left", "disconnect")
            except JournalUnavailable as error:
                log.warning("cancel_failed", deliberation_id=self.state.deliberation_id, detail=str(error))

    async def moments(self, *, texts: bool = False) -> AsyncGenerator[Moment, None]:
        """Moments from the acceptance to the end, as they come. Equal facts give equal moments, whoever reads them.

        A reading of `texts` begins with the texts of unfinished calls, if the log still has them. Views are kept for
        minutes, so that only moments of facts are the same for every reader.
        """
        telling = Telling()
        try:
            async with aclosing(self._events(texts)) as events:
                async for sequence, data in events:
                    for moment in telling.tell(self._whole(decoded(data)), sequence):
                        yield moment
                    if telling.ended:
                        return
        except DeliberationError as error:
            for moment in telling.interrupted(error):
                yield moment

    async def _events(self, texts: bool) -> AsyncGenerator[tuple[int, bytes], None]:
        """Facts that are stored, then live events, and with `texts` the stored views of the open stage before them.

        Raises JournalUnavailable, NotReady while draining, and NoVerdict when no end comes.
        """
        gateway, id, position = self._gateway, self.state.deliberation_id, 0
        feed, last_at = gateway["feed"], self.state.accepted.deadline_at + timedelta(seconds=END_GRACE_S)
        stored = await self._stored()
        for record in stored.records:
            if texts and record.tokens[-1] == "opened":
                position = record.sequence
            yield record.sequence, record.data
        position = position if texts else stored.records[-1].sequence
        leased = keys_of(self.tenant, (id,)) if texts else frozenset[str]()
        async with feed.watch(of_deliberation(self.tenant, id), leased) as watch:
            viewer = feed.viewer(watch, position)
            while not watch.replaced and watch.epoch in ("", stored.epoch):
                if feed.draining.is_set() or gateway["clock"].now() > last_at:
                    raise _late(gateway, id)
                frames = await viewer.batch(asyncio.get_running_loop().time() + END_GRACE_S)
                for frame in await self._shown(frames, texts):
                    yield frame.sequence, event_in(frame.data)
        raise JournalUnavailable("The log was replaced; ask again.")

    async def _shown(self, frames: Sequence[EventFrame], texts: bool) -> Sequence[EventFrame]:
        if not texts:
            return [frame for frame in frames if frame.type not in VIEW_TYPES]
        answers = self._gateway["streams"].answers
        shown = await answers.of(
            self.tenant, frames, lambda frame: frame.type == CallDelta.model_fields["type"].default
        )
        return [frame for frame in shown if frame.data]

    def stream(
        self,
        writer: Writer,
        headers: Mapping[str, str],
        *,
        texts: bool = False,
        heartbeat: bytes = COMMENT,
        viewer: bool = False,
    ) -> Response:
        """The frames that a writer writes of all facts, and with `texts` of the growing texts of unfinished calls.

        When the client leaves, a deliberation that is not kept is cancelled. A `viewer`, for whom nothing was accepted,
        holds a stream slot of the tenant; raises TooManyStreams.
        """
        settings, held = self._gateway["settings"], AsyncExitStack()
        if viewer:
            held.enter_context(stream_slot(self._gateway, f"tenant {self.tenant}", "ask without a stream"))
        held.push_async_callback(self.leave)
        return EventStreamResponse(
            _written(writer, self.moments(texts=texts)),
            heartbeat_s=settings.heartbeat_s,
            stalled_s=settings.stream_send_timeout_s,
            headers=headers,
            heartbeat=heartbeat,
            held=held,
        )


def _late(gateway: Gateway, deliberation_id: str) -> DeliberationError:
    if gateway["feed"].draining.is_set():
        return NotReady("This gateway is stopping; ask again.")
    late = FactProblem(code="deadline_exceeded", detail="no end was recorded by its deadline", retryable=True)
    return NoVerdict(late, deliberation_id)


async def _written(writer: Writer, moments: AsyncGenerator[Moment, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(moments):
        async for moment in moments:
            for frame in writer.write(moment):
                yield frame


def _unchanged(fault: FieldProblem) -> FieldProblem:
    return fault


@dataclass(frozen=True, slots=True)
class Door:
    """The operations of one tenant that a façade may use; it never sees the gateway."""

    tenant: str
    _gateway: Gateway

    @property
    def registry(self) -> Mapping[str, Any]:
        return registry_of(self._gateway)

    @property
    def files(self) -> Files:
        return self._gateway["files"]

    async def accept(
        self,
        request: DeliberationRequest,
        submission: Submission,
        *,
        kept: bool = False,
        files: Sequence[FilePart] = (),
        places: Callable[[FieldProblem], FieldProblem] = _unchanged,
    ) -> Council:
        """The deliberation that is asked for, stored durably with `files`, which its evidence names.

        `places` maps faults of the request to the façade's own. Raises as `Deliberations.accept`, ValidationFailed for
        files that no agent could read, and FilesFull. What a client with an Idempotency-Key asked for is kept.
        """
        names = await self._store(files)
        if names:
            evidence = [
                document.model_copy(update={"title": names.get(document.id, document.title)})
                for document in request.evidence
            ]
            request = request.model_copy(update={"evidence": evidence})
        try:
            state, _ = await self._gateway["deliberations"].accept(self.tenant, request, submission)
        except ValidationFailed as failed:
            raise ValidationFailed([places(fault) for fault in failed.errors]) from failed
        return await self._council(state, kept=kept or submission.idempotency_key is not None)

    async def _store(self, parts: Sequence[FilePart]) -> dict[str, str]:
        """The names of the uploads among the parts, by the id of their evidence; raises as `accept` does."""
        stored = dict[str, StoredInput]()
        # Uploads come first: nothing is stored beside one that does not exist.
        for part in sorted(parts, key=lambda part: part.content is not None):
            if part.id not in stored:
                stored[part.id] = await self._input(part)
            if part.is_picture and stored[part.id].file.kind != "picture":
                detail = f"The file is {stored[part.id].file.media_type[:64]}, and no picture"
                raise ValidationFailed([body_fault(part.pointer, "no_picture", detail, "Give it as a file.")])
        return {part.evidence_id: stored[part.id].file.name for part in parts if part.content is None}

    async def _input(self, part: FilePart) -> StoredInput:
        try:
            if part.content is None:
                return await self.files.find(self.tenant, part.id)
            return await self.files.add_content(self.tenant, part.content, part.name, part.media_type)
        except NotFound as error:
            detail, remedy = str(error).rstrip("."), "Upload it, or give the file itself."
            raise ValidationFailed([body_fault(part.pointer, "unknown_file", detail, remedy)]) from error
        except InputRefused as error:
            raise ValidationFailed([body_fault(part.pointer, error.code, error.detail, error.remedy)]) from error

    async def _council(self, state: State, *, kept: bool) -> Council:
        """With the whole task, unless a long one is not stored any more."""
        accepted, file = state.accepted, state.specification.task_file
        if file is not None:
            with suppress(InputLost):
                whole = {"task": await self.files.text_of(self.tenant, file)}
                specified = accepted.specification.model_copy(update=whole)
                accepted = accepted.model_copy(update={"specification": specified})
        return Council(self.tenant, replace(state, accepted=accepted), kept, self._gateway)

    async def council(self, deliberation_id: str) -> Council:
        """A deliberation of the log or the archive; raises NotFound, Gone and ArchiveUnavailable."""
        deliberation = await self._gateway["deliberations"].find(self.tenant, deliberation_id)
        return await self._council(deliberation.state, kept=True)

    async def newest(self, metadata: Mapping[str, str]) -> Council:
        """The newest deliberation with this metadata: an active one, else of the archive, if there is one.

        Raises NotFound, Gone and ArchiveUnavailable.
        """
        asked, lists = ListFilter(metadata=metadata), self._gateway["lists"]
        matching = [
            deliberation for deliberation in self._gateway["catalog"].running(self.tenant) if asked.shows(deliberation)
        ]
        if not matching and lists.archive is not None:
            matching = (await lists.page(self.tenant, asked, limit=1)).entries
        if not matching:
            raise NotFound("No deliberation with this metadata is active, nor in the archive.")
        return await self.council(max(matching, key=lambda deliberation: deliberation.sequence).id)

    async def page(self, asked: ListFilter, limit: int, cursor: str | None) -> Listed:
        """Deliberations up to now, newest first; raises ArchiveUnavailable and InvalidCursor."""
        await self._gateway["lists"].wait_for(NOW)
        return await self._gateway["lists"].page(self.tenant, asked, limit=limit, cursor=cursor)

    async def delete(self, deliberation_id: str) -> None:
        """Raises StillLive before the end, NotFound and Gone."""
        await self._gateway["deliberations"].delete(self.tenant, deliberation_id)


async def door_of(gateway: InGateway, tenant: OfTenant) -> Door:
    return Door(tenant, gateway)


InDoor = Annotated[Door, Depends(door_of)]
