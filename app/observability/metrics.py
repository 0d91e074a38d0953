"""Metrics for Prometheus: rate, errors and duration of requests, deliberations, agents and open streams."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Protocol, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from app.admission.spends import DailySpends
from app.api.installation import CircuitState, LogFigures
from app.catalog.index import Catalog
from app.deliberation.readings import LENIENCIES
from app.deliberation.specification import ContextStatus
from app.lifecycle.deliberations import SubmissionOutcome
from app.observability.process_counts import DurationHistogram
from app.observability.replica_status import (
    AgentStatus,
    CoordinatorStatus,
    ProjectorStatus,
    SenderStatus,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REQUEST_BUCKETS_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1, 2, 5, 15, 60)
_SUBMISSIONS: Mapping[SubmissionOutcome, str] = {
    "accepted": "Accepted by this process",
    "replayed": "Answered again by Idempotency-Key",
    "refused": "Refused with 429: too much is waiting, or a tenant may spend no more",
}
_PLAN_OUTCOMES = ("started", "repeated", "delayed", "rejected", "transitions")


class _Collected(Collector):
    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        return self._collect()


_Kind = type[CounterMetricFamily | GaugeMetricFamily]


def _family(kind: _Kind, name: str, text: str, labels: str, samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = kind(name, text, labels=labels.split())
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _labelled(kind: _Kind, name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    return _family(kind, name, text, label, (([value], count) for value, count in counts.items()))


def _histogram(name: str, text: str, labels: str, samples: Iterable[tuple[Sequence[str], DurationHistogram]]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels.split())
    for values, durations in samples:
        bounds = [*map(str, durations.bounds_s), "+Inf"]
        family.add_metric(values, list(zip(bounds, accumulate(durations.counts), strict=True)), durations.sum_s)
    return family


class _Counting(Protocol):
    @property
    def replica(self) -> str: ...

    @property
    def counts(self) -> Mapping[str, int]: ...


def _outcomes(processes: Iterable[_Counting], *outcomes: str) -> Iterator[tuple[Sequence[str], float]]:
    for process in processes:
        yield from (([process.replica, outcome], process.counts.get(outcome, 0)) for outcome in outcomes)


def _of_deliberations(catalog: Catalog, outcomes: Mapping[SubmissionOutcome, int]) -> Iterator[Metric]:
    text = "Accepted and unfinished deliberations by status"
    yield _labelled(GaugeMetricFamily, "deliberations_active", text, "status", catalog.active_by_status())
    text = "Seconds that the oldest deliberation has waited which has not started; 0 without any"
    yield GaugeMetricFamily("queue_head_wait_seconds", text, value=catalog.backlog.head_waited_s())
    for outcome, description in _SUBMISSIONS.items():
        yield CounterMetricFamily(f"deliberations_{outcome}", description, value=outcomes.get(outcome, 0))


class Connections(Protocol):
    @property
    def opened(self) -> int: ...

    @property
    def refused(self) -> Mapping[str, int]: ...


def _of_connections(connections: Connections) -> Iterator[Metric]:
    yield GaugeMetricFamily("gateway_connections", "Open connections of this process", value=connections.opened)
    text = "Connections refused before a request existed"
    yield _labelled(CounterMetricFamily, "gateway_connections_refused", text, "code", connections.refused)


def _of_refusals(refused: Callable[[], Mapping[str, int]]) -> Iterator[Metric]:
    text = "Records read from the log and not accepted, by the signature that did not verify: log, key"
    yield _labelled(CounterMetricFamily, "log_records_refused", text, "signature", refused())


def _of_contexts(counts: Mapping[ContextStatus, int]) -> Iterator[Metric]:
    text = "Answers of the context service: `given`, `empty`, `unanswered`, `unusable`"
    known = {status: counts.get(status, 0) for status in get_args(ContextStatus)}
    yield _labelled(CounterMetricFamily, "deliberations_contexts", text, "status", known)


def _of_plans(counts: Mapping[str, int]) -> Iterator[Metric]:
    text = (
        "Events of the planning service that this process took: plans `started`, `repeated`, `delayed` by a full "
        "queue; `transitions` of stories; `rejected` of both"
    )
    known = {outcome: counts.get(outcome, 0) for outcome in _PLAN_OUTCOMES}
    yield _labelled(CounterMetricFamily, "planning_events", text, "outcome", known)


def _of_spends(spends: DailySpends) -> Iterator[Metric]:
    labels = ["tenant", "currency"]
    spent = GaugeMetricFamily("tenant_spend", "What a tenant has spent in the present day in UTC", labels=labels)
    limits = GaugeMetricFamily("tenant_spend_limit", "What it may spend in a day", labels=labels)
    for tenant, amount in sorted(spends.by_tenant().items()):
        spent.add_metric([tenant, spends.limits.currency], float(amount))
        if (limit := spends.limits.of_tenant(tenant)) is not None:
            limits.add_metric([tenant, spends.limits.currency], float(limit))
    yield from (spent, limits)


def _of_log(figures: LogFigures | None) -> Iterator[Metric]:
    yield GaugeMetricFamily("log_reachable", "1 while the log answers this process", value=float(figures is not None))
    streams, consumers = (figures.streams, figures.consumers) if figures else ((), ())
    sizes = (([stream.name], stream.bytes) for stream in streams)
    yield _family(GaugeMetricFamily, "log_stream_bytes", "Bytes that a stream holds", "stream", sizes)
    text = "Items that a durable consumer has not been given yet"
    lags = (([consumer.stream, consumer.name], consumer.lag) for consumer in consumers)
    yield _family(GaugeMetricFamily, "log_consumer_lag", text, "stream consumer", lags)
    text = "Items that a durable consumer was given and has not acknowledged"
    pending = (([consumer.stream, consumer.name], consumer.unacknowledged) for consumer in consumers)
    yield _family(GaugeMetricFamily, "log_consumer_unacknowledged", text, "stream consumer", pending)


def _of_coordinators(coordinators: Sequence[CoordinatorStatus], clusters: Sequence[str]) -> Iterator[Metric]:
    yield GaugeMetricFamily("coordinators", "Coordinators that answered", value=len(coordinators))
    text = "Of those, the ones that take deliberations with a label"
    takers = (([label], sum(label in coordinator.clusters for coordinator in coordinators)) for label in clusters)
    yield _family(GaugeMetricFamily, "cluster_coordinators", text, "cluster", takers)
    ended = [
        (coordinator.replica, strategy, counts)
        for coordinator in coordinators
        for strategy, counts in coordinator.counts.strategies.items()
    ]
    text = "Seconds from the acceptance to the end of deliberations that a coordinator ended"
    seconds = (
        ([replica, strategy, status], durations)
        for replica, strategy, counts in ended
        for status, durations in counts.seconds.items()
    )
    yield _histogram("deliberation_seconds", text, "replica strategy status", seconds)
    text = "Of those, the ones with a degraded verdict"
    degraded = (([replica, strategy], counts.degraded) for replica, strategy, counts in ended)
    yield _family(CounterMetricFamily, "deliberations_degraded", text, "replica strategy", degraded)
    text = "Seconds from the acceptance to the first stage of ended deliberations"
    waited = (
        ([coordinator.replica, name], histogram)
        for coordinator in coordinators
        for name, histogram in coordinator.counts.waited.items()
    )
    yield _histogram("deliberation_wait_seconds", text, "replica priority", waited)
    text = "Seconds from the opening to the closing of stages of ended deliberations"
    stages = (
        ([coordinator.replica, name], histogram)
        for coordinator in coordinators
        for name, histogram in coordinator.counts.stages.items()
    )
    yield _histogram("deliberation_stage_seconds", text, "replica purpose", stages)
    text = (
        "Deliberations that a coordinator took over: after the `loss` of another one, or of its connection to the log; "
        "after its `stop` in order"
    )
    taken = (
        ([coordinator.replica, cause], count)
        for coordinator in coordinators
        for cause, count in coordinator.counts.takeovers.items()
    )
    yield _family(CounterMetricFamily, "deliberation_takeovers", text, "replica after", taken)


def _of_engines(replicas: Sequence[AgentStatus]) -> Iterator[Metric]:
    labels = "role replica engine"
    engines = [
        ([replica.role, replica.replica, engine.url], engine) for replica in replicas for engine in replica.engines
    ]
    text = "Seconds of requests that an engine answered"
    yield _histogram("engine_call_seconds", text, labels, ((values, engine.seconds) for values, engine in engines))
    text = "Seconds to the first token of streamed answers"
    first = ((values, engine.first_token) for values, engine in engines)
    yield _histogram("engine_first_token_seconds", text, labels, first)
    text = "Tokens of requests by kind: `prompt`, of them `cached`, and `completion`"
    tokens = (
        ([*values, kind], count)
        for values, engine in engines
        for kind, count in (
            ("prompt", engine.prompt_tokens),
            ("cached", engine.cached_tokens),
            ("completion", engine.completion_tokens),
        )
    )
    yield _family(CounterMetricFamily, "engine_tokens", text, f"{labels} kind", tokens)


def _of_tools(replicas: Sequence[AgentStatus]) -> Iterator[Metric]:
    labels = "role replica server"
    used = [
        ([replica.role, replica.replica, server], counts)
        for replica in replicas
        for server, counts in replica.tool_uses.items()
    ]
    text = "Uses of a server's tools by outcome; of `failed` ones the tool itself reports an error"
    outcomes = (([*values, outcome], count) for values, counts in used for outcome, count in counts.outcomes.items())
    yield _family(CounterMetricFamily, "tool_uses", text, f"{labels} outcome", outcomes)
    text = "Seconds of these uses"
    yield _histogram("tool_use_seconds", text, labels, ((values, counts.seconds) for values, counts in used))
    text = "Copies and directories of programs that a replica could not remove, once for each attempt"
    failed = (([replica.role, replica.replica], replica.failed_removals) for replica in replicas)
    yield _family(CounterMetricFamily, "workspace_removals_failed", text, "role replica", failed)
    text = "1 while a replica cannot reach the server"
    away = (
        ([replica.role, replica.replica, server.name], float(server.away_since is not None))
        for replica in replicas
        for server in replica.tools
    )
    yield _family(GaugeMetricFamily, "tool_server_away", text, labels, away)


def _of_replicas(replicas: Sequence[AgentStatus]) -> Iterator[Metric]:
    labels = ["role", "replica"]
    calls = CounterMetricFamily("agent_calls", "Calls by outcome: answered, failed, cut", labels=[*labels, "outcome"])
    retries = CounterMetricFamily("agent_retries", "Attempts beyond a call's first", labels=labels)
    hedges = CounterMetricFamily(
        "agent_hedges", "Calls sent to a second engine because the first was slow", labels=labels
    )
    lenient = CounterMetricFamily(
        "agent_lenient_readings", "Answers of which something was read leniently, by kind", labels=[*labels, "kind"]
    )
    cost = CounterMetricFamily(
        "agent_cost", "Cost of recorded calls by currency, without unpriced requests", labels=[*labels, "currency"]
    )
    in_flight = GaugeMetricFamily("agent_calls_in_flight", "Calls in flight", labels=labels)
    circuits = GaugeMetricFamily(
        "engine_circuit", "1 in the state of a replica's circuit to an engine", labels=[*labels, "engine", "state"]
    )
    for replica in replicas:
        labelled = [replica.role, replica.replica]
        for outcome in ("answered", "failed", "cut"):
            calls.add_metric([*labelled, outcome], replica.counts.get(outcome, 0))
        retries.add_metric(labelled, replica.counts.get("retries", 0))
        hedges.add_metric(labelled, replica.counts.get("hedges", 0))
        for kind in LENIENCIES.keys() & replica.lenient:
            lenient.add_metric([*labelled, kind], replica.lenient[kind])
        for currency, millionths in replica.costs.items():
            cost.add_metric([*labelled, currency], millionths / 1_000_000)
        in_flight.add_metric(labelled, replica.in_flight)
        for engine in replica.engines:
            for state in get_args(CircuitState):
                circuits.add_metric([*labelled, engine.url, state], float(engine.circuit == state))
    yield from (calls, retries, hedges, lenient, cost, in_flight, circuits)


def _of_senders(senders: Sequence[SenderStatus]) -> Iterator[Metric]:
    yield GaugeMetricFamily("webhook_senders", "Senders that answered", value=len(senders))
    text, attempts = "Requests to receivers by outcome", _outcomes(senders, "succeeded", "failed")
    yield _family(CounterMetricFamily, "webhook_attempts", text, "sender outcome", attempts)
    text, ended = "Deliveries by how they ended", _outcomes(senders, "delivered", "stopped", "exhausted", "expired")
    yield _family(CounterMetricFamily, "webhook_deliveries", text, "sender ending", ended)
    in_flight = {sender.replica: sender.in_flight for sender in senders}
    yield _labelled(GaugeMetricFamily, "webhook_attempts_in_flight", "Requests in flight", "sender", in_flight)
    waiting = {sender.replica: sender.waiting for sender in senders}
    yield _labelled(GaugeMetricFamily, "webhook_attempts_waiting", "Requests that wait for a slot", "sender", waiting)
    text = (
        "In the log: `webhooks`, deliberations to follow; `attempts`, attempts to make. `new` ones wait; `taken` "
        "ones are in progress or scheduled"
    )
    queues = senders[0].queues.items() if senders else ()
    items = (([name, state], count) for name, states in queues for state, count in states.items())
    yield _family(GaugeMetricFamily, "webhook_queue", text, "queue state", items)


def _of_projectors(projectors: Sequence[ProjectorStatus]) -> Iterator[Metric]:
    yield GaugeMetricFamily("archive_projectors", "Projectors that answered", value=len(projectors))
    text = (
        "By what was done: `written`, `deleted`, `expired`; `skipped`: not readable, refused by the database, or lost"
    )
    copied = _outcomes(projectors, "written", "deleted", "expired", "skipped")
    yield _family(CounterMetricFamily, "archive_deliberations", text, "projector outcome", copied)
    pending = projectors[0].pending if projectors else 0
    yield GaugeMetricFamily("archive_pending", "Facts in the log that are not in the archive yet", value=pending)


class Metrics:
    """The registry of one gateway, and the families of the other processes' status replies.

    Requests are those of the gateway. Series with `replica`, `sender` or `projector` are that process's own, and each
    gateway shows the same ones.
    """

    def __init__(
        self,
        catalog: Catalog,
        outcomes: Mapping[SubmissionOutcome, int],
        connections: Connections,
        refused: Callable[[], Mapping[str, int]],
        contexts: Mapping[ContextStatus, int] | None = None,
        spends: DailySpends | None = None,
    ) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "gateway_requests", "Requests answered", ["method", "route", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "gateway_request_seconds",
            "Seconds to the last byte of the answer, without streams",
            ["method", "route"],
            buckets=_REQUEST_BUCKETS_S,
            registry=registry,
        )
        self.sse_viewers = Gauge("sse_viewers", "Open SSE streams", registry=registry)
        registry.register(_Collected(partial(_of_deliberations, catalog, outcomes)))
        registry.register(_Collected(partial(_of_connections, connections)))
        registry.register(_Collected(partial(_of_refusals, refused)))
        if contexts is not None:
            registry.register(_Collected(partial(_of_contexts, contexts)))
        if spends is not None:
            registry.register(_Collected(partial(_of_spends, spends)))

    def show_plans(self, counts: Mapping[str, int]) -> None:
        """Show what this gateway has taken of the planning service's events, by outcome."""
        self.registry.register(_Collected(partial(_of_plans, counts)))

    def exposition(
        self,
        replicas: Sequence[AgentStatus] = (),
        coordinators: Sequence[CoordinatorStatus] = (),
        log: LogFigures | None = None,
        senders: Sequence[SenderStatus] | None = None,
        projectors: Sequence[ProjectorStatus] | None = None,
        clusters: Sequence[str] = (),
    ) -> bytes:
        """The text exposition; None for a log without an answer, and where a kind of process is off."""
        registries = [
            self.registry,
            _Collected(partial(_of_log, log)),
            _Collected(partial(_of_coordinators, coordinators, clusters)),
            _Collected(partial(_of_replicas, replicas)),
            _Collected(partial(_of_engines, replicas)),
            _Collected(partial(_of_tools, replicas)),
        ]
        if senders is not None:
            registries.append(_Collected(partial(_of_senders, senders)))
        if projectors is not None:
            registries.append(_Collected(partial(_of_projectors, projectors)))
        return b"".join(map(generate_latest, registries))
