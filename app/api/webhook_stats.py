"""Prometheus metrics of the webhook senders."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTROL_SUBJECT = "control.webhooks"
SENDERS_MAX = 16
_ENDINGS = ("delivered", "stopped", "exhausted", "expired")


class Senders(Collector):
    """Metrics from the senders' replies to one scrape. Counts are per sender; the queues are shared by all."""

    def __init__(self, senders: Sequence[Mapping[str, Any]]) -> None:
        self._senders = senders

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        yield GaugeMetricFamily("webhook_senders", "Senders that answered this scrape", value=len(self._senders))
        attempts = CounterMetricFamily(
            "webhook_attempts", "Requests to receivers by outcome", labels=["sender", "outcome"]
        )
        ended = CounterMetricFamily("webhook_deliveries", "Ended deliveries by ending", labels=["sender", "ending"])
        in_flight = GaugeMetricFamily("webhook_attempts_in_flight", "Requests in flight", labels=["sender"])
        waiting = GaugeMetricFamily("webhook_attempts_waiting", "Requests that wait for a slot", labels=["sender"])
        queue = GaugeMetricFamily(
            "webhook_queue",
            "Queued items: `webhooks` are deliberations to follow, `attempts` are attempts to make. No sender has "
            "taken `new` items; `taken` ones are in progress or wait until they are due",
            labels=["queue", "state"],
        )
        for sender in self._senders:
            name, counts = sender["replica"], sender["counts"]
            for outcome in ("succeeded", "failed"):
                attempts.add_metric([name, outcome], counts.get(outcome, 0))
            for ending in _ENDINGS:
                ended.add_metric([name, ending], counts.get(ending, 0))
            in_flight.add_metric([name], sender["in_flight"])
            waiting.add_metric([name], sender["waiting"])
        queues: Mapping[str, Mapping[str, int]] = self._senders[0]["queues"] if self._senders else {}
        for name, states in queues.items():
            for state, items in states.items():
                queue.add_metric([name, state], items)
        yield from (attempts, ended, in_flight, waiting, queue)
