"""The simulator's own count of requests, by which a test proves what an engine received and did.

Every request counts once as started and once as finished, aborted (its client left) or failed. `X-Call-Id` names the
calls it serves: one, or as many as it has completions, comma-separated.
"""

import json
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Literal

CALLS_MAX = 100_000
PROMPTS_MAX = 2_000

_COUNTED = ("started", "finished", "aborted", "failed", "prompt_tokens", "completion_tokens")


@dataclass(slots=True)
class ServedRequest:
    call_ids: tuple[str, ...]
    body: bytes = b""
    outcome: Literal["running", "finished", "aborted", "failed"] = "running"


class CallLedger:
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._calls: OrderedDict[str, dict[str, int]] = OrderedDict()
        self._prompts: deque[ServedRequest] = deque(maxlen=PROMPTS_MAX)
        self._prompts_kept = 0
        self._calls_forgotten = 0
        self._total: dict[str, int] = dict.fromkeys((*_COUNTED, "cached_tokens", "aborted_tokens"), 0)

    def start(self, call_ids: tuple[str, ...]) -> ServedRequest:
        served = ServedRequest(call_ids)
        self._count(served, "started")
        return served

    def keep_prompt(self, served: ServedRequest, body: bytes) -> None:
        served.body = body
        self._prompts.append(served)
        self._prompts_kept += 1

    def finish(self, served: ServedRequest, prompt_tokens: int, completion_tokens: list[int], cached: int) -> None:
        """Count a complete answer; the first call is charged all tokens that cannot be shared."""
        self.end(served, "finished")
        self._total["cached_tokens"] += cached
        for name, tokens in (("prompt_tokens", [prompt_tokens]), ("completion_tokens", completion_tokens)):
            self._total[name] += sum(tokens)
            shares = tokens if len(tokens) == len(served.call_ids) else [sum(tokens)]
            for call_id, share in zip(served.call_ids, shares, strict=False):
                self._call(call_id)[name] += share

    def abort(self, served: ServedRequest, tokens_written: int) -> None:
        self.end(served, "aborted")
        self._total["aborted_tokens"] += tokens_written

    def end(self, served: ServedRequest, outcome: Literal["finished", "aborted", "failed"]) -> None:
        """Count how a request ended; a refused request, and a request that a scripted fault broke off, has failed."""
        served.outcome = outcome
        self._count(served, outcome)

    def report(self, model: str, *, detail: bool) -> dict[str, object]:
        report: dict[str, object] = {
            "model": model,
            "requests": self._total["started"],
            **self._total,
            "calls": self._calls,
            "calls_forgotten": self._calls_forgotten,
        }
        if detail:
            report["prompts"] = [
                {
                    "call_ids": served.call_ids,
                    "outcome": served.outcome,
                    "messages": json.loads(served.body)["messages"],
                }
                for served in self._prompts
            ]
            report["prompts_forgotten"] = self._prompts_kept - len(self._prompts)
        return report

    def _count(self, served: ServedRequest, name: str) -> None:
        self._total[name] += 1
        for call_id in served.call_ids:
            self._call(call_id)[name] += 1

    def _call(self, call_id: str) -> dict[str, int]:
        if call_id not in self._calls:
            self._calls[call_id] = dict.fromkeys(_COUNTED, 0)
            if len(self._calls) > CALLS_MAX:
                self._calls.popitem(last=False)
                self._calls_forgotten += 1
        return self._calls[call_id]
