"""What `GET /cluster` tells: replicas, the queue, the log, engines and versions, as clients read them."""

from collections.abc import Mapping
from typing import Literal

from pydantic import AwareDatetime, Field

from app.api.schemas import Resource

CircuitState = Literal["closed", "open", "half_open"]


class MissingPart(Resource):
    """A part that did not tell of itself, or not all of it."""

    part: str = Field(description="`log`, `catalog`, `coordinator`, `webhooks`, or a role, stream or consumer by name")
    detail: str


class ReplicaVersions(Resource):
    """What a replica runs on; null where it does not say."""

    product: str | None = None
    ray: str | None = None
    python: str | None = None


class ClusterVersions(Resource):
    """Versions on every side; of replicas and engines each that there is, once."""

    gateway: str
    python: str = Field(description="The gateway's own")
    nats_server: str | None = Field(description="Null while the log is out of reach")
    replicas: tuple[ReplicaVersions, ...]
    engines: tuple[str, ...] = Field(description="Of those that say, as vLLM does")


class ServeDeployment(Resource):
    """A deployment of Ray Serve, as far as its replicas answered."""

    name: str
    answered: int
    wanted: int | None = Field(description="Replicas that Serve wants of it, by what they say; null when none says")
    product: tuple[str, ...] = Field(description="The versions that run; several while it is being replaced")


class ServeApplication(Resource):
    """An application of Ray Serve, as far as its replicas answered."""

    name: str
    deployments: tuple[ServeDeployment, ...]


class Turn(Resource):
    """How many deliberations of the same roles a coordinator works on at once."""

    roles: tuple[str, ...]
    begun: int
    bound: int = Field(description="How many may be, at present; it follows how fast they end")
    waiting: int


class CoordinatorView(Resource):
    """A coordinator's replica."""

    id: str
    node: str | None
    in_hand: int = Field(description="Deliberations that it holds, also those that wait for their turn")
    bound: int | None
    turns: tuple[Turn, ...]
    versions: ReplicaVersions


class EngineOfReplica(Resource):
    """An engine as one replica sees it."""

    url: str
    healthy: bool
    circuit: CircuitState
    in_flight: int


class AgentView(Resource):
    """A role's replica."""

    id: str
    node: str | None
    role: str
    model: str | None
    simulated: bool
    running: int = Field(description="Calls that it has in hand")
    concurrency: int | None = Field(description="How many may be at engines at once")
    waiting: int = Field(
        description="Calls in hand that are at no engine: for a slot, for an engine, or in the sandbox"
    )
    counts: Mapping[str, int] = Field(description="Since its start: answered, failed, cut, retries, hedges")
    engines: tuple[EngineOfReplica, ...]
    versions: ReplicaVersions


class EngineLoad(Resource):
    """An engine, over all replicas that ask it; `circuit` is the worst of theirs."""

    url: str = Field(description="Without user and password")
    roles: tuple[str, ...]
    models: tuple[str, ...]
    version: str | None
    simulated: bool
    healthy: bool
    circuit: CircuitState
    in_flight: int = Field(description="Requests of ours; what others ask of it is not known here")


class QueueOfRole(Resource):
    """The work that needs a role."""

    role: str
    depth: int = Field(description="Accepted and unfinished")
    depth_max: int | None = Field(description="The bound that roles.yaml gives it")
    ended_per_s: float | None = Field(description="Null while too little has ended to tell")
    admitted: int = Field(description="How many may be, for one more with the usual deadline to be taken on")


class QueueView(Resource):
    """What is accepted and unfinished, and how much more is taken on."""

    depth: int
    depth_max: int
    waiting: int = Field(description="Not begun yet")
    in_hand: int = Field(description="Begun")
    head_waited_s: float = Field(description="How long the oldest that is not begun has waited; 0 when none is")
    ended_per_s: float | None
    roles: tuple[QueueOfRole, ...]


class StreamFigures(Resource):
    """A stream of the log."""

    name: str
    messages: int
    bytes: int
    first_sequence: int
    last_sequence: int
    first_at: AwareDatetime | None = Field(description="Null of an empty stream")
    last_at: AwareDatetime | None


class ConsumerFigures(Resource):
    """A durable consumer: how far those who pull from it are behind."""

    stream: str
    name: str
    lag: int = Field(description="Items that nobody was handed yet")
    unacknowledged: int = Field(description="Handed out and not finished; or, of `attempts`, waiting for their time")
    redelivered: int
    pulls: int = Field(description="Requests for items that stand open: 0 while nobody pulls")


class LogFigures(Resource):
    """What the log's server tells of itself; `missing` are streams and consumers that it does not have."""

    server_version: str | None
    streams: tuple[StreamFigures, ...]
    consumers: tuple[ConsumerFigures, ...]
    missing: tuple[MissingPart, ...] = ()


class SenderView(Resource):
    """A sender of webhooks."""

    id: str
    in_flight: int
    waiting: int
    held: Mapping[str, int]
    counts: Mapping[str, int]


class Cluster(Resource):
    """The installation at a moment, as far as its parts answered; what did not is in `missing`."""

    at: AwareDatetime
    missing: tuple[MissingPart, ...] = Field(description="Empty when every part told of itself")
    versions: ClusterVersions
    applications: tuple[ServeApplication, ...]
    coordinators: tuple[CoordinatorView, ...]
    agents: tuple[AgentView, ...]
    engines: tuple[EngineLoad, ...]
    queue: QueueView
    streams: tuple[StreamFigures, ...]
    consumers: tuple[ConsumerFigures, ...]
    webhooks: tuple[SenderView, ...] | None = Field(description="Whoever sends webhooks; null where they are off")
