"""Checks the raw stream and the engine's requests after a run: nothing lost, no second end, no repeated call."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from benchmarks.chaos.files import FileFindings

MARGIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored fact: its subject's tokens, its time of storage (epoch seconds), and its type."""

    tokens: tuple[str, ...]
    stored_at_s: float
    type: str


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request that reached an engine: the call and the time (epoch seconds)."""

    deliberation_id: str
    call_id: str
    asked_at_s: float


@dataclass(frozen=True, slots=True)
class Fault:
    """An injected fault: its kind, its victim and the time (epoch seconds)."""

    kind: str
    victim: str
    at_s: float


@dataclass
class Findings:
    """The figures of a run; `violations` is empty when every guarantee held.

    `unseen` are deliberations with an end that a waiting client could not read. `unpromised` are accepted ones that no
    client knows though all have their answers: a task was accepted twice. `unfinished` describes each failed or
    late deliberation with its takeovers and its longest silence.
    """

    accepted: int = 0
    ended: int = 0
    requests: int = 0
    recorded: int = 0
    wasted: int = 0
    wasted_bound: int = 0
    ends: Counter[str] = field(default_factory=Counter[str])
    lost: list[str] = field(default_factory=list[str])
    second_ends: list[str] = field(default_factory=list[str])
    made_again: list[str] = field(default_factory=list[str])
    unseen: list[str] = field(default_factory=list[str])
    unpromised: list[str] = field(default_factory=list[str])
    unfinished: list[str] = field(default_factory=list[str])
    files: FileFindings = field(default_factory=FileFindings)
    # Ascending; one entry per kill and deliberation in progress.
    resumptions: list[tuple[float, Fault]] = field(default_factory=list["tuple[float, Fault]"])

    @property
    def resumed_s(self) -> list[float]:
        """Seconds from each kill to the next fact of each deliberation in progress, ascending.

        Waiting deliberations do not count, because the kill alone does not delay them.
        """
        return [seconds for seconds, _ in self.resumptions]

    @property
    def progress_s(self) -> list[float]:
        """Seconds from each kill to the next fact of any deliberation in progress, ascending."""
        first: dict[Fault, float] = {}
        for seconds, fault in self.resumptions:
            first.setdefault(fault, seconds)
        return list(first.values())

    @property
    def violations(self) -> list[str]:
        """The violated guarantees in words."""
        violations = [] if self.accepted else ["nothing was accepted"]
        violations += [f"lost: {id}" for id in self.lost]
        violations += [f"no client could read its end: {id}" for id in self.unseen]
        violations += [f"accepted a second time: {id}" for id in self.unpromised]
        violations += [f"ended more than once: {id}" for id in self.second_ends]
        violations += [f"requested again after it was recorded: {call}" for call in self.made_again]
        if self.wasted > self.wasted_bound:
            violations.append(f"{self.wasted} calls wasted, with {self.wasted_bound} in flight at the faults")
        return violations + self.files.faults


def check(
    promised: Iterable[str],
    stored: Sequence[Stored],
    asked: Sequence[EngineRequest],
    faults: Sequence[Fault],
    deleted: Collection[str] = frozenset(),
) -> Findings:
    """Check a run's guarantees. `promised` are the ids for which clients got a 202 or a 200.

    Of what clients `deleted` after its end nothing is left to check.
    """
    findings = Findings()
    stored = [fact for fact in stored if fact.tokens[2] not in deleted]
    asked = [request for request in asked if request.deliberation_id not in deleted]
    accepted_at: dict[str, float] = {}
    begun_at: dict[str, float] = {}
    ends: dict[str, list[float]] = defaultdict(list)
    facts: dict[str, list[float]] = defaultdict(list)
    recorded_at: dict[tuple[str, str], float] = {}
    takeovers: Counter[str] = Counter()
    for fact in stored:
        deliberation_id, tail = fact.tokens[2], fact.tokens[3:]
        facts[deliberation_id].append(fact.stored_at_s)
        match tail:
            case ("accepted",):
                accepted_at[deliberation_id] = fact.stored_at_s
            case ("stage", "1", "opened"):
                begun_at[deliberation_id] = fact.stored_at_s
            case ("takeover", _):
                takeovers[deliberation_id] += 1
            case ("end",):
                ends[deliberation_id].append(fact.stored_at_s)
                if fact.type in ("deliberation.failed", "deliberation.timeout"):
                    still_s = max(later - sooner for sooner, later in pairwise(facts[deliberation_id]))
                    silence = f"{takeovers[deliberation_id]} takeovers, {still_s:.0f} s without a fact"
                    findings.unfinished.append(f"{deliberation_id} {fact.type}: {silence}")
                findings.ends[fact.type.removeprefix("deliberation.")] += 1
            case ("call", call_id, "finished"):
                recorded_at.setdefault((deliberation_id, call_id), fact.stored_at_s)
            case _:
                pass
    findings.accepted, findings.ended = len(accepted_at), len(ends)
    ended = {id for id in ends if id in accepted_at}
    findings.lost = sorted({*promised, *accepted_at} - ended - {*deleted})
    findings.second_ends = sorted(id for id, times in ends.items() if len(times) > 1)
    _count_calls(findings, recorded_at, asked)
    ended_at = {deliberation_id: min(times) for deliberation_id, times in ends.items()}
    findings.wasted_bound = _in_flight((fault.at_s for fault in faults), recorded_at, ended_at, asked)
    kills = [fault for fault in faults if fault.kind == "SIGKILL"]
    findings.resumptions = _resumptions(kills, begun_at, ends, facts)
    return findings


def _in_flight(
    moments_s: Iterable[float],
    recorded_at: Mapping[tuple[str, str], float],
    ended_at: Mapping[str, float],
    asked: Sequence[EngineRequest],
) -> int:
    """Calls that an engine had been asked for and that were not recorded yet: each may have to be asked for again.

    The sum over all the moments. What is never recorded is in flight until its deliberation ends.
    """
    begun: dict[tuple[str, str], float] = {}
    for each in sorted(asked, key=lambda each: each.asked_at_s):
        begun.setdefault((each.deliberation_id, each.call_id), each.asked_at_s)
    starts = sorted(begun.values())
    over = ((at_s, recorded_at.get(call, ended_at.get(call[0], inf))) for call, at_s in begun.items())
    ends = sorted(max(each) for each in over)
    return sum(bisect_right(starts, at_s) - bisect_right(ends, at_s) for at_s in moments_s)


def _count_calls(
    findings: Findings, recorded_at: Mapping[tuple[str, str], float], asked: Sequence[EngineRequest]
) -> None:
    findings.requests, findings.recorded = len(asked), len(recorded_at)
    calls = {(each.deliberation_id, each.call_id) for each in asked}
    findings.wasted = len(asked) - len(calls)
    findings.made_again = sorted(
        f"{each.deliberation_id} {each.call_id}, {each.asked_at_s - at_s:.1f} s after"
        for each in asked
        if (at_s := recorded_at.get((each.deliberation_id, each.call_id))) is not None
        # Two replicas may hold one call after a hang; a request that set out before the record stood is no second one.
        and each.asked_at_s > at_s + MARGIN_S
    )


def _resumptions(
    faults: Sequence[Fault],
    begun_at: Mapping[str, float],
    ends: Mapping[str, list[float]],
    facts: Mapping[str, list[float]],
) -> list[tuple[float, Fault]]:
    found: list[tuple[float, Fault]] = []
    for fault in faults:
        for deliberation_id, at_s in begun_at.items():
            if at_s < fault.at_s < min(ends.get(deliberation_id, [0.0])):
                next_at_s = min(each for each in facts[deliberation_id] if each > fault.at_s)
                found.append((next_at_s - fault.at_s, fault))
    return sorted(found, key=lambda each: each[0])
