"""What routes do with one deliberation, in whatever shape they speak: accept it, read it, await its end, stop it."""

import re
from collections.abc import Sequence
from datetime import timedelta

from fastapi import Request

from app.api.problems import NotReady, request_id_of
from app.api.requests import DeliberationRequest, idempotency_key_of
from app.catalog.index import Catalog
from app.catalog.projection import state_of
from app.deliberation.errors import Gone, IdempotencyConflict, JournalUnavailable, NotFound, QueueFull
from app.deliberation.facts import Accepted, CancelRequested, Deleted, decode
from app.deliberation.fold import State, begin
from app.deliberation.ports import Appended, Record
from app.lifecycle.specify import accepted, body_sha256, deliberation_id, given_out_at, specification
from app.routes.dependencies import Gateway

NOT_READ = "The log has not been read yet; it may not be reachable."
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def caught_up(gateway: Gateway) -> Catalog:
    """The catalog once it has read all of the log; raises JournalUnavailable before."""
    catalog = gateway["catalog"]
    if not catalog.caught_up:
        raise JournalUnavailable(NOT_READ)
    return catalog


async def loaded(gateway: Gateway, tenant: str, deliberation_id: str) -> State:
    """The state that the log tells; raises NotFound and Gone, see `standing`."""
    return standing(gateway, deliberation_id, await gateway["journal"].facts(tenant, deliberation_id))


def check_standing(gateway: Gateway, deliberation_id: str, records: Sequence[Record]) -> None:
    """Raise unless these facts are those of a deliberation that is there.

    Raises Gone when it was deleted, and when retention has begun to take its facts; also when there are none, if the
    id itself says that it was given out too long ago. Raises NotFound when nothing is known of the id.
    """
    if not records:
        given = given_out_at(deliberation_id)
        retention = timedelta(seconds=gateway["settings"].retention_s)
        if given is not None and given + retention < gateway["clock"].now():
            raise Gone(f"Whatever was accepted as {deliberation_id} is past its retention.")
        raise NotFound(f"There is no deliberation {deliberation_id}.")
    if any(record.tokens[-1] == "deleted" for record in records):
        raise Gone(f"Deliberation {deliberation_id} has been deleted.")
    if records[0].tokens[-1] != "accepted":
        raise Gone(f"The facts of deliberation {deliberation_id} are past their retention.")


def standing(gateway: Gateway, deliberation_id: str, records: Sequence[Record]) -> State:
    """The state that the facts of a deliberation tell; raises what `check_standing` raises."""
    check_standing(gateway, deliberation_id, records)
    state = state_of(records)
    assert state is not None, "an acceptance is there"
    return state


async def ended(gateway: Gateway, tenant: str, state: State, wait_s: int | None) -> State:
    """The state once it has ended, or as it is when time is up or the process drains."""
    if state.ended or not wait_s:
        return state
    await gateway["catalog"].ended(tenant, state.deliberation_id, wait_s)
    try:
        return await loaded(gateway, tenant, state.deliberation_id)
    except JournalUnavailable:
        return state


async def stopping(gateway: Gateway, tenant: str, state: State, reason: str | None) -> State:
    """The state with a request to stop in it, unless the deliberation had one or has ended. The first reason stays."""
    if state.cancel is not None or state.ended:
        return state
    fact = CancelRequested(deliberation_id=state.deliberation_id, ts=gateway["clock"].now(), reason=reason)
    await gateway["journal"].append(tenant, fact)
    return await loaded(gateway, tenant, state.deliberation_id)


def _acceptance(record: Record, sha256: str) -> State:
    """The state at acceptance; raises IdempotencyConflict when another body was accepted, Gone when none is left."""
    fact = decode(record.data)
    if not isinstance(fact, Accepted):
        why = "has been deleted" if isinstance(fact, Deleted) else "is past its retention"
        raise Gone(f"What this Idempotency-Key started {why}; use a new key.")
    if fact.body_sha256 != sha256:
        raise IdempotencyConflict("This Idempotency-Key was used before with another body.")
    return begin(fact, record.sequence)


async def accept(gateway: Gateway, tenant: str, request: Request, asked: DeliberationRequest) -> tuple[State, bool]:
    """The state at acceptance, and whether it had been accepted before. Durable when this returns.

    The id comes from the request's Idempotency-Key, if it has one. Raises NotReady, QueueFull, IdempotencyConflict
    and JournalUnavailable.
    """
    key = idempotency_key_of(request)
    catalog, journal, metrics = gateway["catalog"], gateway["journal"], gateway["metrics"]
    if not catalog.backlog_known:
        raise JournalUnavailable(NOT_READ)
    id, sha256 = deliberation_id(tenant, key, gateway["clock"].now()), body_sha256(asked)
    if key is not None and (catalog.knows(tenant, id) or not catalog.caught_up):
        # A full queue must not refuse the answer to what is already in it.
        records = await journal.facts(tenant, id)
        if records and records[0].tokens[-1] == "accepted":
            metrics.replayed.inc()
            return _acceptance(records[0], sha256), True
    try:
        appended = await _taken_on(gateway, tenant, request, asked, id)
    except QueueFull:
        metrics.refused.inc()
        raise
    catalog.apply(appended.record)
    (metrics.accepted if appended.created else metrics.replayed).inc()
    return _acceptance(appended.record, sha256), not appended.created


async def _taken_on(gateway: Gateway, tenant: str, request: Request, asked: DeliberationRequest, id: str) -> Appended:
    """The acceptance that stands in the log, this one or an earlier one.

    Raises NotReady while the process drains, QueueFull and JournalUnavailable.
    """
    if gateway["feed"].draining.is_set():
        raise NotReady("This gateway is stopping. Send the request again: another one takes it on.")
    backlog = gateway["catalog"].backlog
    roles = {agent.role for agent in asked.roster}
    timeout_s = asked.constraints.timeout_seconds or gateway["settings"].deliberation_timeout_s
    # Looked at first, so that a refusal costs as little as it can.
    returning = idempotency_key_of(request) is not None
    backlog.check(roles, timeout_s, key=(tenant, id) if returning else None, tenant=tenant)
    traceparent = request.headers.get("traceparent", "")
    fact = accepted(
        specification(
            asked,
            gateway["roles"],
            gateway["strategies"],
            timeout_s=timeout_s,
        ),
        asked,
        id=id,
        now=gateway["clock"].now(),
        request_id=request_id_of(request) or None,
        traceparent=traceparent if _TRACEPARENT.fullmatch(traceparent) else None,
    )
    with backlog.place((tenant, id), roles, timeout_s):
        return await gateway["journal"].append(tenant, fact)
