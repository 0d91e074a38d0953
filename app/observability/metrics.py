"""Metrics for Prometheus: rate, errors and duration of requests, deliberations, agents and open streams."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.api.cluster_schemas import CircuitState
from app.api.webhook_stats import Senders
from app.catalog.index import Catalog
from app.lifecycle.deliberations import SubmissionOutcome
from app.observability.replica_status import AgentStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REQUEST_BUCKETS_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1, 2, 5, 15, 60)
_SUBMISSIONS: Mapping[SubmissionOutcome, str] = {
    "accepted": "Accepted by this process",
    "replayed": "Answered again by Idempotency-Key",
    "refused": "Refused with 429: too much is waiting",
}


class _Deliberations(Collector):
    """Reads the catalog and the counts of submissions at each scrape."""

    def __init__(self, catalog: Catalog, outcomes: Mapping[SubmissionOutcome, int]) -> None:
        self._catalog = catalog
        self._outcomes = outcomes

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        active = GaugeMetricFamily(
            "deliberations_active", "Accepted and unfinished deliberations by status", labels=["status"]
        )
        for status, count in self._catalog.active_by_status().items():
            active.add_metric([status], count)
        yield active
        ended = CounterMetricFamily(
            "deliberations_ended", "Ended deliberations that this process has read from the log", labels=["status"]
        )
        for status, count in self._catalog.ended_counts.items():
            ended.add_metric([status], count)
        yield ended
        for outcome, description in _SUBMISSIONS.items():
            yield CounterMetricFamily(f"deliberations_{outcome}", description, value=self._outcomes.get(outcome, 0))


class _Replicas(Collector):
    """The current status of agent replicas; a count that another version lacks reads as 0."""

    def __init__(self, replicas: Sequence[AgentStatus]) -> None:
        self._replicas = replicas

    def collect(self) -> Iterator[Metric]:
        labels = ["role", "replica"]
        calls = CounterMetricFamily(
            "agent_calls", "Calls by outcome: answered, failed, cut", labels=[*labels, "outcome"]
        )
        retries = CounterMetricFamily("agent_retries", "Attempts beyond a call's first", labels=labels)
        hedges = CounterMetricFamily(
            "agent_hedges", "Calls sent to a second engine because the first was slow", labels=labels
        )
        in_flight = GaugeMetricFamily("agent_calls_in_flight", "Calls in flight", labels=labels)
        circuits = GaugeMetricFamily(
            "engine_circuit",
            "1 in the state of a replica's circuit to an engine",
            labels=[*labels, "engine", "state"],
        )
        for replica in self._replicas:
            labelled = [replica.role, replica.replica]
            for outcome in ("answered", "failed", "cut"):
                calls.add_metric([*labelled, outcome], replica.counts.get(outcome, 0))
            retries.add_metric(labelled, replica.counts.get("retries", 0))
            hedges.add_metric(labelled, replica.counts.get("hedges", 0))
            in_flight.add_metric(labelled, replica.in_flight)
            for engine in replica.engines:
                for state in get_args(CircuitState):
                    circuits.add_metric([*labelled, engine.url, state], float(engine.circuit == state))
        yield from (calls, retries, hedges, in_flight, circuits)


class Metrics:
    """The registry of one gateway. It counts its own requests, and the deliberations of the whole log."""

    def __init__(self, catalog: Catalog, outcomes: Mapping[SubmissionOutcome, int]) -> None:
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
        registry.register(_Deliberations(catalog, outcomes))

    def exposition(
        self, replicas: Sequence[AgentStatus] = (), senders: Sequence[Mapping[str, Any]] | None = None
    ) -> bytes:
        """The text exposition. `senders` is None where webhooks are off, and empty where senders are missing."""
        registries = [self.registry, _Replicas(replicas)] + ([] if senders is None else [Senders(senders)])
        return b"".join(map(generate_latest, registries))
