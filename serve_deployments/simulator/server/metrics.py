"""The metrics of vLLM 0.32 that the product and its tests read, under vLLM's names and labels."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_LABELS = ("model_name", "engine")
_BUCKETS_S = (0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 160.0, 640.0, 2560.0)


class EngineMetrics:
    """Counters of one simulated engine. As in vLLM, each of a request's `n` sequences counts by itself."""

    def __init__(self, model: str, running: Callable[[], int], waiting: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        own = {"model_name": model, "engine": "0"}

        def gauge(name: str, text: str, read: Callable[[], int]) -> None:
            Gauge(name, text, _LABELS, registry=self._registry).labels(**own).set_function(read)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, _LABELS, registry=self._registry).labels(**own)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(name, text, _LABELS, registry=self._registry, buckets=_BUCKETS_S).labels(**own)

        gauge("vllm:num_requests_running", "Number of requests in model execution batches.", running)
        gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", waiting)
        self.prompt_tokens = counter("vllm:prompt_tokens", "Number of prefill tokens processed.")
        self.generation_tokens = counter("vllm:generation_tokens", "Number of generation tokens processed.")
        self.prefix_queries = counter("vllm:prefix_cache_queries", "Prefix cache queries, in tokens.")
        self.prefix_hits = counter("vllm:prefix_cache_hits", "Prefix cache hits, in tokens.")
        self.first_token_s = histogram("vllm:time_to_first_token_seconds", "Time to first token in seconds.")
        self.request_s = histogram("vllm:e2e_request_latency_seconds", "End-to-end request latency in seconds.")
        success = Counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )
        self._success = {
            reason: success.labels(**own, finished_reason=reason) for reason in ("stop", "length", "abort")
        }

    def ended(self, reason: str, sequences: int = 1) -> None:
        """Count sequences that ended for `reason`: stop, length or abort."""
        self._success[reason].inc(sequences)

    def exposition(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self._registry)
