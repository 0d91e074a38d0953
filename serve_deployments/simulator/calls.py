"""The simulator's own count of what it served, so that a test can prove what an engine saw and did.

Every request is counted once as started and once as finished, aborted (its client left) or failed. `X-Call-Id` names
the calls it serves: one, or as many as it has completions, comma-separated.
"""

import json
from collections import OrderedDict, deque
from dataclasses import asdict, dataclass
from typing import Literal

CALLS_MAX = 100_000
PROMPTS_MAX = 10_000
PROMPT_BYTES_MAX = 64 * 1024 * 1024

Outcome = Literal["running", "finished", "aborted", "failed"]


@dataclass(slots=True)
class CallCount:
    """What was seen of one call id. Tokens are those of finished requests only."""

    started: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(slots=True)
class Served:
    """One request while it is served, and what is remembered of it."""

    call_ids: tuple[str, ...]
    path: str
    body: bytes = b""
    outcome: Outcome = "running"


class CallLedger:
    """Counts by call id (the last 100,000), in all, and the last 10,000 prompts (64 MiB at most)."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._calls: OrderedDict[str, CallCount] = OrderedDict()
        self._prompts: deque[Served] = deque()
        self._prompt_bytes = 0
        self._calls_forgotten = 0
        self._prompts_forgotten = 0
        self._total = CallCount()
        self._cached_tokens = 0
        self._aborted_tokens = 0

    def reset(self) -> None:
        """Forget everything; requests that are running will be counted as they end."""
        self._clear()

    def start(self, call_ids: tuple[str, ...], path: str) -> Served:
        """Count a request as it arrives."""
        self._total.started += 1
        for call_id in call_ids:
            self._count(call_id).started += 1
        return Served(call_ids, path)

    def keep_prompt(self, served: Served, body: bytes) -> None:
        """Remember what was asked, dropping the oldest prompts beyond the bounds."""
        served.body = body
        self._prompts.append(served)
        self._prompt_bytes += len(body)
        while len(self._prompts) > PROMPTS_MAX or self._prompt_bytes > PROMPT_BYTES_MAX:
            self._prompt_bytes -= len(self._prompts.popleft().body)
            self._prompts_forgotten += 1

    def finish(self, served: Served, prompt_tokens: list[int], completion_tokens: list[int], cached: int) -> None:
        """Count a request that was answered in full; tokens by conversation and by completion."""
        served.outcome = "finished"
        self._total.finished += 1
        self._total.prompt_tokens += sum(prompt_tokens)
        self._total.completion_tokens += sum(completion_tokens)
        self._cached_tokens += cached
        for place, call_id in enumerate(served.call_ids):
            count = self._count(call_id)
            count.finished += 1
            count.prompt_tokens += _share(prompt_tokens, place, len(served.call_ids))
            count.completion_tokens += _share(completion_tokens, place, len(served.call_ids))

    def abort(self, served: Served, tokens_written: int) -> None:
        """Count a request whose client left after so many tokens were written."""
        served.outcome = "aborted"
        self._total.aborted += 1
        self._aborted_tokens += tokens_written
        for call_id in served.call_ids:
            self._count(call_id).aborted += 1

    def fail(self, served: Served) -> None:
        """Count a request that was refused, or broken off by a scripted fault."""
        served.outcome = "failed"
        self._total.failed += 1
        for call_id in served.call_ids:
            self._count(call_id).failed += 1

    def told(self, model: str, *, detail: bool) -> dict[str, object]:
        """Everything that is known, as `GET /simulator/calls` tells it; prompts only with `detail`."""
        total = asdict(self._total)
        told: dict[str, object] = {
            "model": model,
            "requests": total["started"],
            **total,
            "cached_tokens": self._cached_tokens,
            "aborted_tokens": self._aborted_tokens,
            "calls": {call_id: asdict(count) for call_id, count in self._calls.items()},
            "calls_forgotten": self._calls_forgotten,
        }
        if detail:
            told["prompts"] = [
                {
                    "call_ids": served.call_ids,
                    "path": served.path,
                    "outcome": served.outcome,
                    "messages": json.loads(served.body)["messages"],
                }
                for served in self._prompts
            ]
            told["prompts_forgotten"] = self._prompts_forgotten
        return told

    def _count(self, call_id: str) -> CallCount:
        count = self._calls.get(call_id)
        if count is None:
            count = self._calls[call_id] = CallCount()
            if len(self._calls) > CALLS_MAX:
                self._calls.popitem(last=False)
                self._calls_forgotten += 1
        return count


def _share(tokens: list[int], place: int, calls: int) -> int:
    """What call number `place` of `calls` is charged: its own part, or all for the first when their numbers differ."""
    if len(tokens) == calls:
        return tokens[place]
    return sum(tokens) if place == 0 else 0
