"""The subjects that no user of NATS may publish on or subscribe to."""

import nats
import nats.errors

from tests.conditions import server_has_read

FORBIDDEN_TO_PUBLISH = {
    "agents": """
        deliberations.default.x.accepted-eu $JS.API.CONSUMER.MSG.NEXT.DELIBERATIONS.archive
        $JS.ACK.DELIBERATIONS.webhooks.1.1.1.1.1 $JS.ACK.DELIBERATIONS.archive.1.1.1.1.1
        deliberations.default.x.accepted deliberations.default.x.cancel deliberations.default.x.deleted
        $JS.API.STREAM.DELETE.DELIBERATIONS $JS.API.STREAM.PURGE.DELIBERATIONS $JS.API.STREAM.CREATE.OTHER
        planning.plan.approved live.deliberations.default.x.end $JS.API.STREAM.MSG.DELETE.ORCHESTRATOR_EVENTS
        orchestration.erased $JS.API.CONSUMER.CREATE.ORCHESTRATOR_EVENTS.other
        $JS.API.STREAM.PURGE.AGENT_RESPONSES keys.abcdefghijkl.created $JS.API.DIRECT.GET.KEYS
        webhooks.default.x.dlv_1.ended $JS.API.CONSUMER.MSG.NEXT.DELIBERATIONS.webhooks context.get
        $JS.API.CONSUMER.MSG.NEXT.AGENT_TASKS.worker-DEV
    """,
    "gateway": """
        deliberations.default.x.end deliberations.default.x.stage.1.opened
        deliberations.default.x.call.s1-dev-001.finished orchestration.deliberation.completed
        $JS.API.CONSUMER.MSG.NEXT.DELIBERATIONS.coordinator $JS.API.STREAM.DELETE.DELIBERATIONS
        $JS.API.STREAM.PURGE.ORCHESTRATOR_EVENTS agent.response.completed.x.s1-dev-001
        $JS.API.CONSUMER.CREATE.ORCHESTRATOR_EVENTS.other
        $JS.API.STREAM.UPDATE.DELIBERATIONS keys.abcdefghijkl.created keys.abcdefghijkl.revoked
        webhooks.default.x.dlv_1.ended webhooks.default.x.dlv_1.failed.1
        $JS.API.CONSUMER.MSG.NEXT.DELIBERATIONS.webhooks $JS.API.STREAM.PURGE.WEBHOOKS
        $JS.API.STREAM.MSG.DELETE.KEYS $JS.API.STREAM.MSG.DELETE.WEBHOOKS context.updated planning.plan.approved
        planning.story.transitioned $JS.API.STREAM.PURGE.PLANNING_EVENTS
        $JS.API.CONSUMER.UNPIN.DELIBERATIONS.coordinator agent.task.assigned.DEV.default.x
        $JS.API.CONSUMER.MSG.NEXT.AGENT_TASKS.worker-DEV
        spends.2026-01-01.default.x $JS.API.STREAM.PURGE.SPENDS $JS.API.STREAM.MSG.DELETE.SPENDS
    """,
    "keys": "deliberations.default.x.accepted $JS.API.STREAM.PURGE.KEYS $JS.API.STREAM.DELETE.KEYS",
    "archive": """
        $JS.API.STREAM.MSG.DELETE.DELIBERATIONS deliberations.default.x.accepted deliberations.default.x.deleted
        $JS.API.DIRECT.GET.KEYS $JS.API.STREAM.PURGE.DELIBERATIONS
        $JS.API.CONSUMER.MSG.NEXT.DELIBERATIONS.coordinator
    """,
    "webhooks": """
        webhooks.default.x.dlv_1.redelivery.1 deliberations.default.x.accepted deliberations.default.x.end
        keys.abcdefghijkl.created $JS.API.DIRECT.GET.KEYS $JS.API.CONSUMER.MSG.NEXT.DELIBERATIONS.coordinator
        $JS.API.STREAM.DELETE.WEBHOOKS $JS.API.STREAM.PURGE.WEBHOOKS
    """,
    "planner": """
        deliberations.default.x.accepted planning.plan.rejected $JS.API.STREAM.PURGE.PLANNING_EVENTS
        context.updated
    """,
    "context": """
        deliberations.default.x.accepted planning.plan.approved context.get orchestration.deliberation.completed
        orchestration.erased orchestration.late.default.x _INBOX.gateway.x $JS.API.DIRECT.GET.DELIBERATIONS
        $JS.API.STREAM.MSG.GET.ORCHESTRATOR_EVENTS $JS.API.STREAM.MSG.DELETE.ORCHESTRATOR_EVENTS
        $JS.API.STREAM.PURGE.CONTEXT_EVENTS $JS.API.CONSUMER.DURABLE.CREATE.ORCHESTRATOR_EVENTS.context
        $JS.API.CONSUMER.CREATE.ORCHESTRATOR_EVENTS.other $JS.API.CONSUMER.MSG.NEXT.DELIBERATIONS.coordinator
    """,
    "worker": """
        agent.task.assigned.DEV agent.task.assigned.DEV.default.x deliberations.default.x.accepted
        deliberations.default.x.stage.1.opened deliberations.default.x.end orchestration.deliberation.completed
        $JS.API.CONSUMER.MSG.NEXT.DELIBERATIONS.coordinator $JS.API.STREAM.MSG.DELETE.DELIBERATIONS
        $JS.API.STREAM.PURGE.AGENT_TASKS spends.2026-01-01.default.x
    """,
    "streams": """
        deliberations.default.x.accepted $JS.API.STREAM.DELETE.DELIBERATIONS $JS.API.STREAM.UPDATE.DELIBERATIONS
    """,
}
FORBIDDEN_TO_SUBSCRIBE = {
    "gateway": "control.coordinator > _INBOX.> context.get planning.>",
    "agents": "> live.keys.> _INBOX.gateway.>",
    "streams": "live.deliberations.> _INBOX.keys.>",
    "keys": "live.deliberations.> _INBOX.streams.>",
    "webhooks": "_INBOX.*.*.*",
    "archive": "_INBOX.gateway.> live.deliberations.>",
    "planner": "live.deliberations.> context.get",
    "context": "context.> live.deliberations.> orchestration.deliberation.* _INBOX.gateway.>",
    "worker": "_INBOX.agents.> control.coordinator agent.task.assigned.>",
}


def pairs(subjects: dict[str, str]) -> list[tuple[str, str]]:
    return [(user, subject) for user, names in subjects.items() for subject in names.split()]


async def violations(url: str, subject: str, *, subscribe: bool = False) -> list[str]:
    """The server's errors when a user publishes on `subject`, or subscribes to it; empty when that is permitted."""
    errors: list[str] = []

    async def heard(error: Exception) -> None:
        # Retries of a starting server are reported here too.
        if "permissions violation" in str(error).lower():
            errors.append(str(error))

    client = await nats.connect(url, error_cb=heard)
    if subscribe:
        await client.subscribe(subject)
    else:
        await client.publish(subject, b"x")
    await server_has_read(client)
    await client.close()
    return errors
