"""Scripted faults: which request fails, and how.

A fault is written `KIND[:rate|:every=N|:first=N][:match=REGEX]`, for example `error:0.1`, `hang:first=2`,
`rate-limit:every=5:match=critique`. Without a bound it hits every request that matches. A rate is decided by a seeded
hash of the request and of how often it came, so a retry draws anew and a replay draws the same; `every` and `first`
count matching requests in the order in which they come.
"""

import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from serve_deployments.simulator.dice import fraction

_REMEMBERED_MAX = 100_000


class FaultKind(StrEnum):
    """What goes wrong."""

    RATE_LIMIT = "rate-limit"
    ERROR = "error"
    UNAVAILABLE = "unavailable"
    BAD_REQUEST = "bad-request"
    BROKEN_STREAM = "broken-stream"
    BAD_JSON = "bad-json"
    TRUNCATE = "truncate"
    HANG = "hang"
    STALL = "stall"
    SLOW = "slow"
    EMPTY = "empty"


FAULT_HELP = {
    FaultKind.RATE_LIMIT: "429 with Retry-After",
    FaultKind.ERROR: "500",
    FaultKind.UNAVAILABLE: "503 with Retry-After",
    FaultKind.BAD_REQUEST: "400",
    FaultKind.BROKEN_STREAM: "closes the connection midway",
    FaultKind.BAD_JSON: "a structured output that is not JSON",
    FaultKind.TRUNCATE: "half of the output, finish_reason length",
    FaultKind.HANG: "never answers",
    FaultKind.STALL: "half of a stream, then nothing",
    FaultKind.SLOW: "ten times slower, and a second late",
    FaultKind.EMPTY: "no text at all",
}


# Before Python 3.12 a plain string cannot be looked for in an enumeration.
_KINDS = frozenset(str(kind) for kind in FaultKind)


class FaultSyntaxError(ValueError):
    """A fault that cannot be read; the text says what was expected."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One scripted fault. At most one of `rate`, `every` and `first` is set; without one it always hits."""

    kind: FaultKind
    rate: float | None = None
    every: int | None = None
    first: int | None = None
    match: re.Pattern[str] | None = None


def parse_fault(text: str) -> Fault:
    """Read `KIND[:rate|:every=N|:first=N][:match=REGEX]`; FaultSyntaxError tells what is wrong."""
    rest, marker, pattern = text.partition(":match=")
    name, *bounds = rest.split(":")
    if name not in _KINDS:
        raise FaultSyntaxError(f"{text!r}: the kind is one of {', '.join(FaultKind)}, not {name!r}")
    if len(bounds) > 1:
        raise FaultSyntaxError(f"{text!r}: only one of a rate, every=N and first=N can be given")
    try:
        match = re.compile(pattern) if marker else None
    except re.error as exc:
        raise FaultSyntaxError(f"{text!r}: {pattern!r} is no regular expression: {exc}") from exc
    kind = FaultKind(name)
    if not bounds:
        return Fault(kind, match=match)
    key, _, value = bounds[0].rpartition("=")
    if key in ("every", "first") and value.isdecimal() and int(value) > 0:
        return (
            Fault(kind, every=int(value), match=match) if key == "every" else Fault(kind, None, None, int(value), match)
        )
    if not key and re.fullmatch(r"0|1|[01]?\.\d+", value) and float(value) <= 1.0:
        return Fault(kind, rate=float(value), match=match)
    raise FaultSyntaxError(f"{text!r}: after the kind comes a rate from 0 to 1, every=N or first=N, not {bounds[0]!r}")


class FaultPlan:
    """Decides for each request, in order of arrival, which fault hits it; the first that does wins."""

    def __init__(self, faults: Iterable[Fault], seed: int) -> None:
        self._faults = tuple(faults)
        self._seed = seed
        self._matched = [0] * len(self._faults)
        self._attempts: OrderedDict[bytes, int] = OrderedDict()

    def decide(self, request_key: bytes, text: str) -> FaultKind | None:
        """The fault of this request. `request_key` identifies it over its retries; `text` is what `match` searches."""
        if not self._faults:
            return None
        attempt = self._attempts.pop(request_key, 0) + 1
        self._attempts[request_key] = attempt
        if len(self._attempts) > _REMEMBERED_MAX:
            self._attempts.popitem(last=False)
        chosen: FaultKind | None = None
        for place, fault in enumerate(self._faults):
            if fault.match is not None and fault.match.search(text) is None:
                continue
            self._matched[place] += 1
            if chosen is None and self._hits(fault, self._matched[place], request_key, attempt):
                chosen = fault.kind
        return chosen

    def _hits(self, fault: Fault, matched: int, request_key: bytes, attempt: int) -> bool:
        if fault.rate is not None:
            return fraction("fault", self._seed, fault.kind, request_key, attempt) < fault.rate
        if fault.every is not None:
            return matched % fault.every == 0
        return fault.first is None or matched <= fault.first
