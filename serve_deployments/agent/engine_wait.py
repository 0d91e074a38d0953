"""How long a call waits for engines none of which can be connected to, and what its viewers learn meanwhile."""

import time
from datetime import UTC, datetime, timedelta

from app.deliberation.calls import Call, StageRequest
from app.deliberation.errors import EngineUnavailable
from app.deliberation.facts import CallWaiting, UnreachableEngine
from app.deliberation.ports import Journal
from serve_deployments.engine.client import Engines

CHECK_INTERVAL_S = 0.5
# With the 2 s of a connection that is attempted meanwhile, viewers hear of it at least every five seconds.
REPORT_INTERVAL_S = 3.0
# A call with a short deadline gives up before it, so that its deliberation ends with the cause.
DEADLINE_SHARE = 0.8


class NoEngineReachable(EngineUnavailable):
    """None of a call's engines could be connected to for as long as the call waits for one: it is not retried."""


class EngineWait:
    """A call's wait for an engine, which begins with its construction, at `began_s` on the monotonic clock.

    It lasts for `timeout_s` without a connection to any engine. It takes at most `DEADLINE_SHARE` of the time that the
    call has left when that begins.
    """

    def __init__(
        self, engines: Engines, journal: Journal, request: StageRequest, call: Call, *, timeout_s: float
    ) -> None:
        self._engines = engines
        self._journal = journal
        self._request = request
        self._call = call
        self.began_s = time.monotonic()
        self._deadline_s = self.began_s + (request.deadline_at - datetime.now(UTC)).total_seconds()
        self._timeout_s = timeout_s
        self._report_due_s = 0.0

    async def check(self) -> float:
        """Tell viewers, at once and then every few seconds, while no engine can be connected to.

        Returns the seconds until the next check is due. Raises NoEngineReachable when the timeout is over.
        """
        outages = self._engines.outages()
        if not outages:
            return CHECK_INTERVAL_S
        now, now_s = datetime.now(UTC), time.monotonic()
        since_s = max(self.began_s, *(outage.since_s for _, outage in outages))
        timeout_s = min(self._timeout_s, DEADLINE_SHARE * (self._deadline_s - since_s))
        left_s = since_s + timeout_s - now_s
        engines = tuple(
            UnreachableEngine(url=engine.address, since=outage.since, cause=outage.cause) for engine, outage in outages
        )
        detail = f"{'; '.join(map(str, engines))}; {UnreachableEngine.REMEDY}"
        if left_s <= 0:
            raise NoEngineReachable(f"no connection within {timeout_s:.3g} s: {detail}")
        if now_s >= self._report_due_s:
            self._report_due_s = now_s + REPORT_INTERVAL_S
            waiting = CallWaiting(
                deliberation_id=self._request.deliberation_id,
                ts=now,
                call_id=self._call.call_id,
                agent_id=self._call.agent_id,
                role=self._call.role,
                engines=engines,
                gives_up_at=now + timedelta(seconds=left_s),
                detail=detail,
            )
            await self._journal.publish_view(self._request.tenant, waiting)
        return min(left_s, CHECK_INTERVAL_S)
