"""The checks of a log, an archive and replies of parts; each returns findings.

A gateway runs them for `/readyz` and `/doctor`, and `deliberate doctor` for a set-up whose gateway does not answer.
With `named` a finding names addresses: `/readyz` answers without a key, so it does so in development mode alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from app.api.findings import Finding, finding
from app.deliberation.errors import ArchiveUnavailable, JournalUnavailable, StreamsDiffer
from app.deliberation.ports import Control
from app.log.gateway_log import GatewayLog
from app.observability.replica_status import (
    COORDINATORS_MAX,
    COORDINATORS_SUBJECT,
    PROJECTORS_SUBJECT,
    AgentStatus,
    CoordinatorStatus,
    EngineStatus,
    ProjectorStatus,
    Trouble,
    read,
)

if TYPE_CHECKING:
    from app.archive.database.store import Store

INQUIRY_TIMEOUT_S = 1.0
# How many coordinators there are is unknown, so every check of labels takes this long.
CLUSTERS_TIMEOUT_S = 0.3
# Above the facts of a burst that a projector copies within seconds.
ARCHIVE_BEHIND_MIN = 10_000
# A prompt holds the task and other members' answers beside the answer that it asks for.
CONTEXT_PER_ANSWER = 2
# Fewer prompt tokens may come from councils that share no prefix.
PROMPT_TOKENS_MIN = 20_000
_TRY_BY_HAND = "Try the model, the key and `response_format` by hand (`curl`), and name another `model` or engine."


async def log_findings(log: GatewayLog, url: str, *, named: bool) -> list[Finding]:
    """Whether the log at `url` can be reached and written, and has the declared streams."""
    try:
        lines = await log.differences()
    except JournalUnavailable as exc:
        detail = f"{exc}; {log.refusal}" if named and log.refusal and log.refusal not in str(exc) else str(exc)
        at = f" (now {url.rpartition('@')[2]})" if named else ""
        remedy = f"Start nats-server, or set NATS_URL{at}. If its disk is full, free space and restart it."
        return [finding("journal_unavailable", detail, remedy)]
    except StreamsDiffer as exc:
        lines = [str(exc)]
    return [
        finding("streams_differ", line, "Run `deliberate streams plan`, then `deliberate streams apply`.")
        for line in lines
    ]


async def database_findings(archive: "Store", *, named: bool) -> list[Finding]:
    """Whether the archive's database can be reached and has the tables of this program."""
    # Imported here: a set-up without an archive need not wait for SQLAlchemy, which takes half a second.
    from app.archive.database.connection import MIGRATE

    try:
        await archive.check()
    except ArchiveUnavailable as exc:
        detail = str(exc) if named else "The archive's database does not answer as it should"
        return [finding("archive_unusable", detail, f"Start the database that DATABASE_URL names. {MIGRATE}")]
    return []


async def projector_findings(control: Control, *, named: bool) -> list[Finding]:
    """Whether a projector copies ended deliberations to the archive, and how far it is behind."""
    replies = await control.inquire(PROJECTORS_SUBJECT, timeout_s=INQUIRY_TIMEOUT_S)
    if not replies:
        remedy = "Run `python -m app.archive`, or give it CPU if it runs; it copies what waits in the log."
        return [finding("archive_missing", f"No projector answered within {INQUIRY_TIMEOUT_S:g} s", remedy)]
    projectors = read(ProjectorStatus, replies)[0]
    if waiting := [each for each in projectors if each.failure]:
        # Without a key a client learns that it waits; `GET /cluster` has the cause.
        detail = waiting[0].failure if named else "A projector waits"
        return [finding("archive_waits", detail, "`deliberate cluster` shows what it waits for.")]
    behind = max((each.pending for each in projectors), default=0)
    if behind < ARCHIVE_BEHIND_MIN:
        return []
    return [finding("archive_behind", f"The archive lacks {behind} facts of the log", "Run another `app.archive`.")]


async def silence(control: Control, subject: str, code: str, which: str, remedy: str) -> list[Finding]:
    """Whether a process answers on a subject."""
    if await control.inquire(subject, timeout_s=INQUIRY_TIMEOUT_S):
        return []
    return [finding(code, f"No {which} answered within {INQUIRY_TIMEOUT_S:g} s", remedy)]


async def cluster_findings(control: Control, clusters: Iterable[str]) -> list[Finding]:
    """The declared labels without a coordinator."""
    missing = set(clusters)
    if not missing:
        return []
    replies = await control.inquire(COORDINATORS_SUBJECT, timeout_s=CLUSTERS_TIMEOUT_S, replies_max=COORDINATORS_MAX)
    for each in read(CoordinatorStatus, replies)[0]:
        missing.difference_update(each.clusters)
    remedy = "Start a cluster with this label, or name the label in COORDINATOR_CLUSTERS of another one."
    return [finding("cluster_missing", f"No coordinator takes the label {label}", remedy) for label in sorted(missing)]


def _troubled(
    replicas: Iterable[AgentStatus], trouble_of: Callable[[EngineStatus], Trouble | None]
) -> Mapping[str, tuple[set[str], Trouble]]:
    """The roles and the first trouble of each engine that has one, by its URL."""
    found: dict[str, tuple[set[str], Trouble]] = {}
    for replica in replicas:
        for engine in replica.engines:
            if (trouble := trouble_of(engine)) is not None:
                names, first = found.get(engine.url, (set[str](), trouble))
                found[engine.url] = names | {replica.role}, min(first, trouble, key=lambda each: each.since)
    return found


def _usable(engine: EngineStatus) -> bool:
    return not (engine.unreachable or engine.key_rejected or engine.list_problem or engine.refusal)


def engine_findings(replicas: Iterable[AgentStatus], *, named: bool) -> list[Finding]:
    """The faults that make calls of these replicas fail. One is a warning where another engine takes the calls."""
    replicas = tuple(replicas)
    usable = {replica.role for replica in replicas if any(map(_usable, replica.engines))}
    restart = f"Restart it, or correct its URL{'' if named else ', which `GET /roles` names'}"

    def fault(code: str, url: str, names: set[str], state: str, remedy: str) -> Finding:
        engine = f"Engine {url}" if named else "An engine"
        severity = "warning" if names <= usable else None
        return finding(code, f"{engine} of {', '.join(sorted(names))} {state}", remedy, severity=severity)

    outages = _troubled(replicas, lambda engine: engine.unreachable).items()
    refusals = _troubled(replicas, lambda engine: engine.key_rejected).items()
    return (
        [
            fault("engine_unreachable", url, names, str(outage), f"{restart} (VLLM_URL, or `engines` of the role).")
            for url, (names, outage) in outages
        ]
        + [
            fault(
                "engine_key_refused",
                url,
                names,
                "refuses its key",
                f"{rejected.remedy[0].upper()}{rejected.remedy[1:]}."
                if named
                else "Correct its key as `GET /roles` says.",
            )
            for url, (names, rejected) in refusals
        ]
        + [
            fault(
                "engine_list_unusable",
                engine.url,
                {replica.role},
                f"has a list of models that {engine.list_problem if named else 'is of no use'}",
                "Correct it, or give the engine a `model`; with one, calls do without the list.",
            )
            for replica in replicas
            for engine in replica.engines
            if engine.list_problem
        ]
        + [
            fault("engine_refuses", engine.url, {replica.role}, f"refuses a request: {engine.refusal}", _TRY_BY_HAND)
            for replica in replicas
            for engine in replica.engines
            if engine.refusal
        ]
    )


def tool_findings(replicas: Iterable[AgentStatus], *, named: bool) -> list[Finding]:
    """The tool servers to which replicas cannot connect."""
    found: dict[str, tuple[set[str], str]] = {}
    for replica in replicas:
        for server in replica.tools:
            if server.away_since is not None:
                roles, why = found.get(server.name, (set[str](), server.why))
                found[server.name] = roles | {replica.role}, why
    remedy = "Start it, or correct `tools` of the role; `GET /tools` shows its address and since when it is away."
    return [
        finding(
            "tool_server_away",
            f"Tool server {name} of {', '.join(sorted(roles))} cannot be used{f': {why}' if named else ''}",
            remedy,
        )
        for name, (roles, why) in found.items()
    ]


def capability_findings(replicas: Iterable[AgentStatus], tokens_max: Mapping[str, int]) -> list[Finding]:
    """The features that the replicas' engines lack; `tokens_max` bounds a completion of each role."""
    seen: dict[str, dict[str, EngineStatus]] = {}
    for replica in replicas:
        for engine in replica.engines:
            seen.setdefault(engine.url, {})[replica.role] = engine
    return [each for url, by_role in seen.items() for each in _lacks(url, by_role, tokens_max)]


def _lacks(url: str, by_role: Mapping[str, EngineStatus], tokens_max: Mapping[str, int]) -> Iterator[Finding]:
    engine, roles = next(iter(by_role.values())), ", ".join(sorted(by_role))
    if engine.trouble and not (engine.unreachable or engine.key_rejected or engine.list_problem):
        remedy = "Read the engine's own log; `deliberate cluster` shows its circuit."
        yield finding("engine_fails", f"Engine {url} of {roles} {engine.trouble.detail}", remedy)
    for unlisted in sorted({each.unlisted for each in by_role.values()} - {""}):
        remedy = f"Name one of {', '.join(engine.models[:4]) or 'its models'} as `model` in the roles file."
        yield finding("model_unlisted", f"Engine {url} of {roles} does not list the model {unlisted}", remedy)
    needed = {role: CONTEXT_PER_ANSWER * tokens_max[role] for role in by_role if role in tokens_max}
    short = [role for role, tokens in needed.items() if engine.context_tokens and engine.context_tokens < tokens]
    if short:
        detail = f"Engine {url} takes {engine.context_tokens} tokens in all, and an answer of {short[0]} may have"
        remedy = "Start it with a longer `--max-model-len`, or lower `sampling.max_tokens` of the role."
        yield finding("context_short", f"{detail} {tokens_max[short[0]]}", remedy)
    if any(each.structured not in (None, "json_schema") for each in by_role.values()):
        remedy = "Serve the model by an engine that takes `response_format` with `json_schema`, as vLLM does."
        yield finding("schema_lacking", f"Engine {url} of {roles} takes no JSON Schema", remedy)
    prompts, cached = sum(e.prompt_tokens for e in by_role.values()), sum(e.cached_tokens for e in by_role.values())
    if prompts >= PROMPT_TOKENS_MIN and not cached:
        remedy = "Start vLLM with `--enable-prefix-caching --enable-prompt-tokens-details`, where it is vLLM."
        yield finding("prefix_cache_idle", f"Engine {url} has cached none of {prompts} prompt tokens", remedy)
    if any(each.prioritises is False for each in by_role.values()):
        remedy = "Start vLLM with `--scheduling-policy priority`."
        yield finding("priority_off", f"Engine {url} refuses priorities", remedy)
    if simulated := [model for model in engine.models if "simulated" in model]:
        remedy = "Name an engine by VLLM_URL, by `up --engine-url`, or under `engines` of the roles file."
        yield finding("simulated", f"Engine {url} of {roles} is a simulator ({simulated[0]})", remedy)
