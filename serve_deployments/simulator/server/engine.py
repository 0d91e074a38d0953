"""The state of the simulated engine: its running sequences, its prefix cache, and the metrics of vLLM 0.32."""

import asyncio
from bisect import insort
from collections import OrderedDict
from itertools import count

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from serve_deployments.simulator.writer.tokens import BLOCK_TOKENS

_LABELS = ("model_name", "engine")
_BUCKETS_S = (0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 160.0, 640.0, 2560.0)


class SequenceSlots:
    """The lowest priority number first, then first come, first served; nothing that runs is stopped for another.

    A request larger than `limit` runs alone; without a limit no request waits.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._queue: list[tuple[int, int, int, asyncio.Future[None]]] = []
        self._arrivals = count()
        self.running = 0
        self.waiting = 0

    def join(self, need: int, priority: int = 0) -> "asyncio.Future[None]":
        """Ask for `need` slots; the future is done once they are held. Every `join` needs one `leave`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        insort(self._queue, (priority, next(self._arrivals), need, turn))
        self.waiting += need
        self._grant()
        return turn

    def leave(self, need: int, turn: "asyncio.Future[None]") -> None:
        if turn.done() and not turn.cancelled():
            self.running -= need
        else:
            self._queue = [waiting for waiting in self._queue if waiting[-1] is not turn]
            self.waiting -= need
        self._grant()

    def _grant(self) -> None:
        while self._queue:
            _, _, need, turn = self._queue[0]
            if self._limit is not None and self.running and self.running + need > self._limit:
                return
            del self._queue[0]
            self.waiting -= need
            self.running += need
            turn.set_result(None)


class PrefixCache:
    """The blocks of prompts that are not computed again; holds up to `blocks_max`.

    As in vLLM: whole blocks of `block_tokens` from the start, chained, separated by `cache_salt`, least recently used
    out. The last token of a prompt is always computed (https://docs.vllm.ai/en/stable/design/prefix_caching/).
    """

    def __init__(self, blocks_max: int = 65_536, block_tokens: int = BLOCK_TOKENS) -> None:
        self._blocks_max = blocks_max
        self._block_tokens = block_tokens
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def admit(self, blocks: list[str], prompt_tokens: int, salt: str | None) -> int:
        """Look a prompt up and store it; returns the number of its tokens that were stored before."""
        stored = self._blocks
        chain = hash(salt)
        hits = 0
        missed = False
        for place in range(prompt_tokens // self._block_tokens):
            chain = hash((chain, blocks[place]))
            if chain in stored:
                stored.move_to_end(chain)
                hits += not missed
            else:
                stored[chain] = None
                missed = True
        while len(stored) > self._blocks_max:
            stored.popitem(last=False)
        return min(hits, max(0, prompt_tokens - 1) // self._block_tokens) * self._block_tokens


class EngineMetrics:
    """Metrics under vLLM's names and labels. As in vLLM, each of a request's `n` sequences counts by itself."""

    def __init__(self, model: str, slots: SequenceSlots) -> None:
        self.registry = CollectorRegistry()
        own = {"model_name": model, "engine": "0"}

        def counter(name: str, text: str) -> Counter:
            return Counter(f"vllm:{name}", text, _LABELS, registry=self.registry).labels(**own)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"vllm:{name}", text, _LABELS, registry=self.registry, buckets=_BUCKETS_S).labels(**own)

        running = Gauge("vllm:num_requests_running", "Requests that are executed.", _LABELS, registry=self.registry)
        running.labels(**own).set_function(lambda: slots.running)
        waiting = Gauge("vllm:num_requests_waiting", "Requests that wait.", _LABELS, registry=self.registry)
        waiting.labels(**own).set_function(lambda: slots.waiting)
        self.prompt_tokens = counter("prompt_tokens", "Prefill tokens processed.")
        self.generation_tokens = counter("generation_tokens", "Generation tokens processed.")
        self.prefix_queries = counter("prefix_cache_queries", "Prefix cache queries, in tokens.")
        self.prefix_hits = counter("prefix_cache_hits", "Prefix cache hits, in tokens.")
        self.first_token_s = histogram("time_to_first_token_seconds", "Time to first token in seconds.")
        self.request_s = histogram("e2e_request_latency_seconds", "End-to-end request latency in seconds.")
        names = (*_LABELS, "finished_reason")
        ended = Counter("vllm:request_success", "Sequences that ended.", names, registry=self.registry)
        self.ended = {reason: ended.labels(**own, finished_reason=reason) for reason in ("stop", "length", "abort")}
