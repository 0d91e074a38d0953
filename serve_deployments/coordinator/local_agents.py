"""The agents of a role in the coordinator's own process."""

from app.deliberation.calls import StageRequest
from app.deliberation.errors import JournalUnavailable
from app.deliberation.ports import AgentsLost
from serve_deployments.agent.agent import AgentReplica


class LocalAgents:
    def __init__(self, replica: AgentReplica) -> None:
        self._replica = replica

    async def run(self, request: StageRequest) -> None:
        """See `ports.Agents.run`. Calls are tasks of the replica, so that a caller who stops waiting stops none."""
        try:
            await self._replica.run_stage(request)
        except JournalUnavailable as error:
            raise AgentsLost(str(error)) from error
