"""Schemas of `GET /roles`, and of `GET /status`: findings, replicas, the queue, the log, engines and versions."""

from collections.abc import Mapping
from typing import Literal

from pydantic import AwareDatetime, Field

from app.api.findings import Finding
from app.api.schemas import Resource
from app.deliberation.engine_troubles import EngineTrouble
from app.deliberation.specification import Priority, Sampling
from app.deliberation.tools import ToolLimits

CircuitState = Literal["closed", "open", "half_open"]


class ReplicaBounds(Resource):
    """Autoscaling bounds of a role's replicas; with a `min` of 0 they start at the role's first use."""

    min: int
    max: int


class EngineHealth(Resource):
    """The state of an engine: healthy, or what is wrong with it."""

    url: str = Field(description="Without user and password")
    healthy: bool
    circuit: CircuitState = Field(description="Open: it failed and gets no calls for a while")
    trouble: EngineTrouble | None = Field(
        default=None, description="What is wrong with it, why in its own words, and the remedy; null while nothing is"
    )


class EngineView(EngineHealth):
    """An engine as a replica of the role sees it."""

    name: str | None = Field(default=None, description="Its name under `engines` in roles.yaml")
    models: tuple[str, ...]


class LiveRole(Resource):
    """The replicas of this role that answered."""

    replicas: int
    models: tuple[str, ...]
    simulated: bool = Field(description="Whether a simulator replaces the model")
    in_flight: int
    engines: tuple[EngineView, ...]


class RoleResource(Resource):
    """A role as declared, with its live replicas; `live` is null when no replica answered, or none runs yet."""

    name: str
    persona: str
    model: str | None = Field(description="As declared; null selects the first model of the engine")
    engines: tuple[str, ...] = Field(description="URLs of the first choice; empty selects the default engines")
    fallback: tuple[str, ...] = Field(
        default=(), description="URLs of engines that are asked while none of the first choice can take a call"
    )
    sampling: Sampling
    replicas: ReplicaBounds
    concurrency: int
    live: LiveRole | None


class RoleList(Resource):
    """All roles."""

    items: tuple[RoleResource, ...]


class ToolServerHealth(Resource):
    """A tool server as the replicas of a role see it. Without a replica that answered, nothing is known of it."""

    connected: int = Field(description="Replicas with a connection to it")
    tools: tuple[str, ...] = Field(description="Names of its tools, also of those that the role may not use")
    away_since: AwareDatetime | None = Field(description="Since when a replica cannot connect to it; null when all can")
    why: str = Field(description="Why not; mostly empty")


class ToolServerView(Resource):
    """A tool server of a role, and what the role's agents may use of it."""

    name: str
    address: str = Field(description="Its URL, or the program that is started, without arguments")
    allow: tuple[str, ...] = Field(description="Names of tools")
    missing: tuple[str, ...] = Field(
        description="Those of `allow` that a connected server lacks, or has in a form that engines do not take"
    )
    per_call: ToolLimits
    concurrency: int = Field(description="Uses at once by each replica")
    health: ToolServerHealth | None = Field(description="Null where no replica of the role answered")


class RoleToolsView(Resource):
    """The tools of one role."""

    role: str
    servers: tuple[ToolServerView, ...]


class WorkspaceToolsView(Resource):
    """The tools of every agent of a deliberation with a `workspace` of one kind."""

    tools: tuple[str, ...]
    per_call: ToolLimits


class ToolList(Resource):
    """The tools of all roles that have some, and those of workspaces."""

    items: tuple[RoleToolsView, ...]
    workspace: WorkspaceToolsView | None = Field(
        description="Of a git repository; null where the gateway allows no repositories"
    )
    files: WorkspaceToolsView = Field(description="Of files that the request sends as its workspace")


class ReplicaVersions(Resource):
    """The versions of a process; null where it reports none."""

    product: str | None = None
    ray: str | None = None
    python: str | None = None


class InstallationVersions(Resource):
    """All versions; the distinct ones of the gateway's fellow processes, `replicas`, and of engines."""

    gateway: str
    python: str = Field(description="The gateway's")
    nats_server: str | None = Field(description="Null while the log is unreachable")
    replicas: tuple[ReplicaVersions, ...]
    engines: tuple[str, ...] = Field(description="Of the engines that report one, as vLLM does")


class ServeDeployment(Resource):
    """A deployment of Ray Serve, by the replicas that answered."""

    name: str
    answered: int
    wanted: int | None = Field(description="Target number of replicas, as they report it; null when none does")
    product: tuple[str, ...] = Field(description="The running versions; several during a rolling update")


class ServeApplication(Resource):
    """An application of Ray Serve, by the replicas that answered."""

    name: str
    deployments: tuple[ServeDeployment, ...]


class Turn(Resource):
    """The concurrency of a coordinator's deliberations with the same roles and priority."""

    roles: tuple[str, ...]
    priority: Priority = "interactive"
    begun: int
    bound: int = Field(description="The current concurrency limit, which follows their latency")
    waiting: int


class CoordinatorView(Resource):
    """A coordinator's replica."""

    id: str
    node: str | None
    in_hand: int = Field(description="Deliberations that it holds, including those that wait")
    bound: int | None
    clusters: tuple[str, ...] = Field(description="Labels whose deliberations it takes, besides those without one")
    turns: tuple[Turn, ...]
    versions: ReplicaVersions


class EngineOfReplica(EngineHealth):
    """An engine as one replica sees it."""

    in_flight: int


class AgentView(Resource):
    """A role's replica."""

    id: str
    node: str | None
    role: str
    model: str | None
    simulated: bool
    running: int = Field(description="Calls in progress")
    concurrency: int | None = Field(description="Limit of calls at engines")
    waiting: int = Field(
        description="Calls in progress at no engine: they wait for a slot or an engine, or run in the sandbox"
    )
    counts: Mapping[str, int] = Field(description="Since its start: answered, failed, cut, retries, hedges")
    engines: tuple[EngineOfReplica, ...]
    versions: ReplicaVersions


class EngineLoad(EngineView):
    """An engine, summed over the replicas that use it; `circuit` is the worst of theirs."""

    roles: tuple[str, ...]
    version: str | None
    simulated: bool
    in_flight: int = Field(description="Requests of these replicas; requests of other clients are unknown")
    waiting: int = Field(
        description="Calls of its roles that wait for an engine; where a role has several, each of them counts the call"
    )
    cached_share: float | None = Field(
        description="Of the prompt tokens of the last 32 answers to each replica; null without answers"
    )
    ttft_s: float | None = Field(
        description="Median time to the first token of the same answers; null without streamed ones"
    )


class QueueOfRole(Resource):
    """The deliberations that need a role."""

    role: str
    depth: int = Field(description="Accepted and unfinished")
    depth_max: int | None = Field(description="`queue_max` in roles.yaml")
    ended_per_s: float | None = Field(description="Null while too few have ended")
    admitted: int = Field(description="Depth up to which a deliberation with the default deadline is admitted")


class QueueView(Resource):
    """The accepted and unfinished deliberations."""

    depth: int
    depth_max: int
    waiting: int = Field(description="Not started")
    in_hand: int = Field(description="Started")
    head_waited_s: float = Field(description="Wait of the oldest that has not started; 0 without any")
    ended_per_s: float | None
    roles: tuple[QueueOfRole, ...]


class StreamFigures(Resource):
    """A stream of the log."""

    name: str
    messages: int
    bytes: int
    first_sequence: int
    last_sequence: int
    first_at: AwareDatetime | None = Field(description="Null for an empty stream")
    last_at: AwareDatetime | None


class ConsumerFigures(Resource):
    """A durable consumer and its lag."""

    stream: str
    name: str
    lag: int = Field(description="Items not delivered yet")
    unacknowledged: int = Field(description="Delivered and not finished; of `attempts` also those scheduled for later")
    redelivered: int
    pulls: int = Field(description="Open pull requests; 0 without a puller")


class LogFigures(Resource):
    """The figures of the log's server, and its clock."""

    server_version: str | None
    server_at: AwareDatetime | None = None
    streams: tuple[StreamFigures, ...]
    consumers: tuple[ConsumerFigures, ...]


class SenderView(Resource):
    """A sender of webhooks."""

    id: str
    in_flight: int
    waiting: int
    held: Mapping[str, int]
    counts: Mapping[str, int]


class ProjectorView(Resource):
    """A process that copies deliberations to the archive."""

    id: str
    counts: Mapping[str, int] = Field(description="Deliberations since its start: written, deleted, expired, skipped")
    pending: int = Field(description="Facts in the log that no projector has copied yet")
    failure: str = Field(description="What it waits for; empty while it copies")


class PartView(Resource):
    """A part with its replicas that answered."""

    part: str = Field(description="`gateway`, this one, `coordinator`, `webhooks`, `archive`, or a role")
    replicas: int
    started_at: AwareDatetime | None = Field(description="Start of its newest replica; null when none tells it")


class Installation(Resource):
    """The state of an installation at one moment, by one survey of its parts."""

    at: AwareDatetime = Field(description="The gateway's clock")
    findings: tuple[Finding, ...] = Field(
        description="Faults, gravest first and causes before effects; none where it is sound"
    )
    versions: InstallationVersions
    applications: tuple[ServeApplication, ...]
    coordinators: tuple[CoordinatorView, ...]
    agents: tuple[AgentView, ...]
    engines: tuple[EngineLoad, ...]
    queue: QueueView
    streams: tuple[StreamFigures, ...]
    consumers: tuple[ConsumerFigures, ...]
    webhooks: tuple[SenderView, ...] | None = Field(description="Webhook senders; null where webhooks are off")
    projectors: tuple[ProjectorView, ...] | None = Field(description="Null without an archive")
    parts: tuple[PartView, ...]
