"""An example of `GET /cluster`: one role, one engine, and no webhook sender."""

from datetime import timedelta

from app.api.cluster_schemas import (
    AgentView,
    Cluster,
    ClusterVersions,
    ConsumerFigures,
    CoordinatorView,
    EngineLoad,
    EngineOfReplica,
    MissingPart,
    ProjectorView,
    QueueOfRole,
    QueueView,
    ReplicaVersions,
    ServeApplication,
    ServeDeployment,
    StreamFigures,
    Turn,
)
from app.openapi.example_log import BEGAN_AT, MODEL

_ENGINE = "http://127.0.0.1:8000"
_VERSIONS = ReplicaVersions(product="0.1.0", ray="2.60.0", python="3.11.7")


def _agent() -> AgentView:
    return AgentView(
        id="host-4712",
        node="host",
        role="DEV",
        model=MODEL,
        simulated=True,
        running=12,
        concurrency=256,
        waiting=0,
        counts={"answered": 310, "failed": 2, "cut": 5, "retries": 1, "hedges": 0},
        engines=(EngineOfReplica(url=_ENGINE, healthy=True, circuit="closed", in_flight=12),),
        versions=_VERSIONS,
    )


def cluster() -> Cluster:
    """The example."""
    deployments = tuple(
        ServeDeployment(name=name, answered=1, wanted=1, product=("0.1.0",)) for name in ("Coordinator", "Agent:DEV")
    )
    turn = Turn(roles=("DEV",), begun=4, bound=16, waiting=0)
    coordinator = CoordinatorView(
        id="host-4711", node="host", in_hand=4, bound=1_024, turns=(turn,), versions=_VERSIONS
    )
    role = QueueOfRole(role="DEV", depth=5, depth_max=None, ended_per_s=1.2, admitted=360)
    return Cluster(
        at=BEGAN_AT,
        missing=(MissingPart(part="webhooks", detail="None answered within 0.5 s"),),
        versions=ClusterVersions(
            gateway="0.1.0", python="3.11.7", nats_server="2.15.1", replicas=(_VERSIONS,), engines=("0.32.0",)
        ),
        applications=(ServeApplication(name="deliberations", deployments=deployments),),
        coordinators=(coordinator,),
        agents=(_agent(),),
        engines=(
            EngineLoad(
                url=_ENGINE,
                roles=("DEV",),
                models=(MODEL,),
                version="0.32.0",
                simulated=True,
                healthy=True,
                circuit="closed",
                in_flight=12,
            ),
        ),
        queue=QueueView(
            depth=5, depth_max=2_000, waiting=1, in_hand=4, head_waited_s=0.2, ended_per_s=1.2, roles=(role,)
        ),
        streams=(
            StreamFigures(
                name="DELIBERATIONS",
                messages=4_211,
                bytes=5_242_880,
                first_sequence=1,
                last_sequence=9_876,
                first_at=BEGAN_AT - timedelta(hours=3),
                last_at=BEGAN_AT,
            ),
        ),
        consumers=(
            ConsumerFigures(
                stream="DELIBERATIONS", name="coordinator", lag=0, unacknowledged=4, redelivered=0, pulls=1
            ),
        ),
        webhooks=(),
        projectors=(ProjectorView(id="archive-812", counts={"written": 1_840, "deleted": 3}, pending=12, failure=""),),
    )
