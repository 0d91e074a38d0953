"""The checks of a survey: pure functions from its answers to findings.

With `named` a finding names addresses and quotes others' words: `/readyz` answers without a key, so it does so in
development mode alone.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from app.api.findings import ENGINE_KINDS, Finding, finding, ordered
from app.deliberation.engine_troubles import EngineTrouble, gravest
from app.observability.process import VERSIONS
from app.observability.replica_status import EngineStatus
from app.operations.survey import INQUIRY_TIMEOUT_S, Survey

# The codes of findings with which a gateway accepts no work; with all others it is ready, though degraded.
BLOCKING = frozenset(
    {
        "draining",
        "journal_unavailable",
        "streams_differ",
        "catalog_unread",
        "keys_unread",
        "spends_unread",
        "coordinator_missing",
        "role_missing",
        "role_restarts",
    }
)
DRAINING = finding("draining", "This process is stopping", "Use another replica.")
SHORT_LIVES_MAX = 2
# Above the facts of a burst that a projector copies within seconds.
ARCHIVE_BEHIND_MIN = 10_000
# A prompt holds the task and other members' answers beside the answer that it asks for.
CONTEXT_PER_ANSWER = 2
# Fewer prompt tokens may come from councils that share no prefix.
PROMPT_TOKENS_MIN = 20_000
# Older ones have known holes that a client can reach.
NATS_SERVER_MIN = (2, 15, 1)
VLLM_MIN = (0, 33, 0)
CLOCK_DIFFERS_S = 3.0
STORE_SHARE_MAX = 0.8
_UNREAD = {
    "catalog": "The log has not been read completely",
    "keys": "The keys have not been read",
    "spends": "The spends of the day have not been read",
}


def readiness_findings(survey: Survey, *, named: bool) -> tuple[Finding, ...]:
    """What keeps work from being accepted or done, in the order in which the parts are checked."""
    checks = (
        _gateway(survey),
        _log(survey, named=named),
        _unread(survey),
        _coordinators(survey),
        _roles(survey, named=named),
        _processes(survey),
        _archive(survey, named=named),
        _clusters(survey),
        _engines(survey, named=named),
        _tools(survey, named=named),
    )
    return tuple(dict.fromkeys(fault for check in checks for fault in check))


def findings(survey: Survey) -> tuple[Finding, ...]:
    """All findings, gravest first and causes before effects."""
    more = (_capabilities(survey), _invalid(survey), _versions(survey), _queue(survey), _log_state(survey))
    return ordered([*readiness_findings(survey, named=True), *(fault for check in more for fault in check)])


def _gateway(survey: Survey) -> Iterator[Finding]:
    if survey.draining:
        yield DRAINING


def _log(survey: Survey, *, named: bool) -> Iterator[Finding]:
    if survey.log is None:
        return
    if survey.log.failure:
        at = f" (now {survey.log.url.rpartition('@')[2]})" if named else ""
        remedy = f"Start nats-server, or set NATS_URL{at}. If its disk is full, free space and restart it."
        told = named and survey.log.refusal and survey.log.refusal not in survey.log.failure
        detail = f"{survey.log.failure}; {survey.log.refusal}" if told else survey.log.failure
        yield finding("journal_unavailable", detail, remedy)
    for line in survey.log.differences:
        yield finding("streams_differ", line, "Run `deliberate streams plan`, then `deliberate streams apply`.")


def _unread(survey: Survey) -> Iterator[Finding]:
    for name in survey.unread:
        yield finding(f"{name}_unread", _UNREAD[name], "Wait.")


def _none_answered(which: str) -> str:
    return f"No {which} answered within {2 * INQUIRY_TIMEOUT_S:g} s"


def _coordinators(survey: Survey) -> Iterator[Finding]:
    if survey.coordinators is None:
        return
    answered = len(survey.coordinators) + survey.invalid.get("coordinator", 0)
    wanted = max((coordinator.wanted or 1 for coordinator in survey.coordinators), default=1)
    if not answered:
        remedy = "Deploy the coordinator; accepted deliberations wait in the log."
        yield finding("coordinator_missing", _none_answered("coordinator"), remedy)
    elif survey.queue is not None and answered < wanted:
        detail = f"coordinator: {answered} of {wanted} answered within {INQUIRY_TIMEOUT_S:g} s"
        yield finding("coordinators_few", detail, "Read the log of those that do not answer.")


def _roles(survey: Survey, *, named: bool) -> Iterator[Finding]:
    if survey.agents is None:
        return
    for name, role in survey.declared.roles.items():
        answered = len(survey.agents_of(name)) + survey.invalid.get(f"role {name}", 0)
        wanted, lives = role.replicas.min, survey.short_lives.get(name, 0)
        which = f"role {name}" if named else "a role"
        remedy = "Read the log of the agents; `deliberate status --all` shows Serve's deployments."
        if lives > SHORT_LIVES_MAX:
            detail = f"{which}: {lives} replicas ended within the last minute, soon after their start"
            yield finding("role_restarts", detail, remedy)
        elif not answered and wanted:
            yield finding("role_missing", f"{which}: no replica answers", remedy)
        elif survey.queue is not None and answered < wanted:
            yield finding("replicas_few", f"{which}: {answered} of {wanted} replicas answer", remedy)


def _processes(survey: Survey) -> Iterator[Finding]:
    if survey.senders == ():
        remedy = "Run `python -m app.webhooks`; it sends the deliveries that wait in the log."
        yield finding("webhooks_missing", _none_answered("webhook sender"), remedy)


def _archive(survey: Survey, *, named: bool) -> Iterator[Finding]:
    if survey.archive_failure:
        detail = survey.archive_failure if named else "The archive's database does not answer as it should"
        # Imported here: a set-up without an archive need not wait for SQLAlchemy, which takes half a second.
        from app.archive.database.connection import MIGRATE

        remedy = f"Start the database that DATABASE_URL names. {MIGRATE}"
        yield finding("archive_unusable", detail, remedy)
        return
    if survey.projectors is None:
        return
    waiting = next((projector.failure for projector in survey.projectors if projector.failure), "")
    behind = max((projector.pending for projector in survey.projectors), default=0)
    if not survey.projectors:
        remedy = "Run `python -m app.archive`, or give it CPU if it runs; it copies what waits in the log."
        yield finding("archive_missing", _none_answered("projector"), remedy)
    elif waiting:
        # Without a key a client learns that it waits; `GET /status` has the cause.
        detail = waiting if named else "A projector waits"
        yield finding("archive_waits", detail, "`deliberate status` shows what it waits for.")
    elif behind >= ARCHIVE_BEHIND_MIN:
        yield finding("archive_behind", f"The archive lacks {behind} facts of the log", "Run another `app.archive`.")


def _clusters(survey: Survey) -> Iterator[Finding]:
    taken = {label for coordinator in survey.coordinators or () for label in coordinator.clusters}
    remedy = "Start a cluster with this label, or name the label in COORDINATOR_CLUSTERS of another one."
    for label in sorted({*survey.declared.clusters} - taken):
        yield finding("cluster_missing", f"No coordinator takes the label {label}", remedy)


def _engines(survey: Survey, *, named: bool) -> Iterator[Finding]:
    """The gravest trouble of each engine. It is a warning where another engine takes the calls of all its roles."""
    troubles: dict[str, list[tuple[str, EngineTrouble]]] = {}
    usable = set[str]()
    for agent in survey.agents or ():
        for engine in agent.engines:
            if engine.trouble is None:
                usable.add(agent.role)
            else:
                troubles.setdefault(engine.url, []).append((agent.role, engine.trouble))
    for url, known in troubles.items():
        trouble, roles = gravest(trouble for _, trouble in known), {role for role, _ in known}
        assert trouble is not None, "it has one"
        which = f"Engine {url}" if named else "An engine"
        code, general = ENGINE_KINDS[trouble.cause], EngineTrouble.of(trouble.cause, trouble.since)
        # What the network says is no secret; what the engine says may be.
        detail = str(trouble if named or code == "engine_unreachable" else general)
        remedy = trouble.remedy if named else general.remedy
        severity = "warning" if roles <= usable else None
        yield finding(code, f"{which} of {', '.join(sorted(roles))} {detail}", remedy, severity=severity)


def _tools(survey: Survey, *, named: bool) -> Iterator[Finding]:
    away: dict[str, tuple[set[str], str]] = {}
    for agent in survey.agents or ():
        for server in agent.tools:
            if server.away_since is not None:
                roles, why = away.get(server.name, (set[str](), server.why))
                away[server.name] = roles | {agent.role}, why
    remedy = "Start it, or correct `tools` of the role; `GET /tools` shows its address and since when it is away."
    for name, (roles, why) in away.items():
        said = f": {why}" if named else ""
        detail = f"Tool server {name} of {', '.join(sorted(roles))} cannot be used{said}"
        yield finding("tool_server_away", detail, remedy)


def _capabilities(survey: Survey) -> Iterator[Finding]:
    tokens_max = {name: role.sampling.max_tokens for name, role in survey.declared.roles.items()}
    engines: dict[str, dict[str, EngineStatus]] = {}
    for agent in survey.agents or ():
        for engine in agent.engines:
            engines.setdefault(engine.url, {})[agent.role] = engine
    for url, by_role in engines.items():
        yield from _lacks(url, by_role, tokens_max)


def _lacks(url: str, by_role: Mapping[str, EngineStatus], tokens_max: Mapping[str, int]) -> Iterator[Finding]:
    engine, roles, views = next(iter(by_role.values())), ", ".join(sorted(by_role)), by_role.values()
    for unlisted in sorted({view.unlisted for view in views} - {""}):
        remedy = f"Name one of {', '.join(engine.models[:4]) or 'its models'} as `model` in the roles file."
        yield finding("model_unlisted", f"Engine {url} of {roles} does not list the model {unlisted}", remedy)
    needed = {role: CONTEXT_PER_ANSWER * tokens_max[role] for role in by_role if role in tokens_max}
    short = [role for role, tokens in needed.items() if engine.context_tokens and engine.context_tokens < tokens]
    if short:
        detail = f"Engine {url} takes {engine.context_tokens} tokens in all, and an answer of {short[0]} may have"
        remedy = "Start it with a longer `--max-model-len`, or lower `sampling.max_tokens` of the role."
        yield finding("context_short", f"{detail} {tokens_max[short[0]]}", remedy)
    if any(view.structured not in (None, "json_schema") for view in views):
        remedy = "Serve the model by an engine that takes `response_format` with `json_schema`, as vLLM does."
        yield finding("schema_lacking", f"Engine {url} of {roles} takes no JSON Schema", remedy)
    prompts, cached = sum(view.prompt_tokens for view in views), sum(view.cached_tokens for view in views)
    if prompts >= PROMPT_TOKENS_MIN and not cached:
        remedy = "Start vLLM with `--enable-prefix-caching --enable-prompt-tokens-details`, where it is vLLM."
        yield finding("prefix_cache_idle", f"Engine {url} has cached none of {prompts} prompt tokens", remedy)
    if any(view.prioritises is False for view in views):
        remedy = "Start vLLM with `--scheduling-policy priority`."
        yield finding("priority_off", f"Engine {url} refuses priorities", remedy)
    if simulated := [model for model in engine.models if "simulated" in model]:
        remedy = "Name an engine by VLLM_URL, by `up --engine-url`, or under `engines` of the roles file."
        yield finding("simulated", f"Engine {url} of {roles} is a simulator ({simulated[0]})", remedy)


def _invalid(survey: Survey) -> Iterator[Finding]:
    for part, faults in survey.invalid.items():
        detail = f"{part}: a reply is not valid, with {faults} faults"
        yield finding("reply_invalid", detail, "Run one version of all parts.")


def _versions(survey: Survey) -> Iterator[Finding]:
    processes = [process for answered in survey.parts.values() for process in answered]
    own = VERSIONS["product"]
    products = sorted({process.versions.product for process in processes if process.versions.product} - {own})
    if products:
        detail = f"The gateway has version {own}, and other parts have {', '.join(products)}"
        yield finding("versions_differ", detail, "End the rolling update, or deploy one image for all parts.")
    for name in ("ray", "python"):
        versions = sorted({version for process in processes if (version := getattr(process.versions, name))})
        if len(versions) > 1:
            detail = f"Replicas have {name.capitalize()} {' and '.join(versions)}"
            yield finding("versions_differ", detail, "Deploy one image on all nodes: Ray refuses nodes that differ.")
    figures = survey.log.figures if survey.log else None
    if figures and figures.server_version and _number(figures.server_version) < NATS_SERVER_MIN:
        detail = f"nats-server has version {figures.server_version}"
        yield finding("server_old", detail, f"Update it to {_dotted(NATS_SERVER_MIN)} or newer.")
    for engine in (engine for agent in survey.agents or () for engine in agent.engines):
        simulated = any("simulated" in model for model in engine.models)
        if engine.version and not simulated and _number(engine.version) < VLLM_MIN:
            detail = f"vLLM at {engine.url} has version {engine.version}"
            yield finding("server_old", detail, f"Update it to {_dotted(VLLM_MIN)}.")


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", version)[:3])


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def _queue(survey: Survey) -> Iterator[Finding]:
    queue = survey.queue
    if queue is not None and queue.depth >= queue.depth_max:
        remedy = "Add engines or replicas, or raise QUEUE_DEPTH_MAX."
        yield finding("queue_full", f"{queue.depth} deliberations of {queue.depth_max} are unfinished", remedy)


def _log_state(survey: Survey) -> Iterator[Finding]:
    if survey.log is None:
        return
    figures, stored_max = survey.log.figures, survey.declared.nats_store_max
    # JetStream reports the server's bound to its system account alone.
    stored = sum(stream.bytes for stream in figures.streams) if figures else 0
    if stored_max is not None and stored >= STORE_SHARE_MAX * stored_max:
        detail = f"The streams hold {stored >> 20} MiB of the {stored_max >> 20} that nats-server may store"
        remedy = "Shorten DELIBERATION_CLEANUP, or raise `max_file_store` and the volume."
        yield finding("store_filling", detail, remedy)
    server_at = figures.server_at if figures else None
    apart_s = 0.0 if server_at is None else (survey.at - server_at).total_seconds()
    if abs(apart_s) > CLOCK_DIFFERS_S:
        detail = f"The gateway's clock is {abs(apart_s):.0f} s {'ahead of' if apart_s > 0 else 'behind'} nats-server's"
        yield finding("clock_differs", detail, "Run an NTP client, such as chrony, on every host.")
    if survey.log.refused:
        remedy = "Give every part the same LOG_KEY_FILE; the warning `log_record_refused` names the subject."
        detail = f"{survey.log.refused} records were refused since this gateway's start"
        yield finding("records_refused", detail, remedy)
    if survey.declared.keys and not survey.declared.log_key:
        remedy = "Give every part a LOG_KEY_FILE, for example with what `openssl rand -hex 32` writes."
        yield finding("records_unsigned", "The log has no key", remedy)
