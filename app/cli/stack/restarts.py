"""What to do when a child of the stack dies, or lives and is of no use. Pure: the supervisor tells, and obeys.

A child that serves is asked for a sign of life now and then. That it dies is certain when it has; that it hangs is only
ever likely, so the bound is generous: a machine that is short of CPU must not be robbed of what it has got done.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

FIRST_DELAY_S = 0.2
DELAY_MAX_S = 10.0
# What crashes at its start does so at once; who has served for so long is missed by all others, and comes back now.
STEADY_AFTER_S = 5.0
START_ATTEMPTS_MAX = 2
PROBE_INTERVAL_S = 2.0
SILENCE_MAX_S = 10.0
MISSES_MIN = 3


@dataclass(frozen=True, kw_only=True)
class ChildDependencies:
    """Where a child stands: what must be ready before it starts, and with whom it starts and ends."""

    name: str
    needs: tuple[str, ...] = ()
    fails_with: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Past:
    """What is remembered of a child from one life to the next."""

    deaths: int = 0
    ever_ready: bool = False
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Death:
    """How one life ended: seconds it had been ready (None if it never was), and the child that took it along."""

    ready_for_s: float | None
    fell_with: str | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """Start it again after `delay_s`, as soon as what it needs is ready, remembering `past`."""

    delay_s: float
    past: Past


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It never became ready: the stack cannot start."""


def on_death(past: Past, death: Death) -> Restart | GiveUp:
    """Restart with exponential backoff, forgotten after a steady life; give up on what has never become ready.

    A child that fell with another one did nothing wrong: it restarts at once. One that was ready before is restarted
    for ever, because what it needs may come back; one that never was is most likely told wrong things.
    """
    now = replace(past, deaths=past.deaths + 1, ever_ready=past.ever_ready or death.ready_for_s is not None)
    if death.fell_with is not None:
        return Restart(0.0, replace(now, deaths=past.deaths))
    if not now.ever_ready and now.deaths >= START_ATTEMPTS_MAX:
        return GiveUp()
    steady = death.ready_for_s is not None and death.ready_for_s >= STEADY_AFTER_S
    delay_s = FIRST_DELAY_S if steady or not past.delay_s else min(2 * past.delay_s, DELAY_MAX_S)
    return Restart(delay_s, replace(now, delay_s=delay_s))


@dataclass(frozen=True, slots=True)
class Well:
    """It answers as it should."""


@dataclass(frozen=True, slots=True)
class Silent:
    """It does not answer."""


@dataclass(frozen=True, slots=True)
class Broken:
    """It answers that it cannot serve, and why; `curable` when a restart would mend it now."""

    reason: str
    curable: bool


Sign = Well | Silent | Broken


@dataclass(frozen=True, slots=True)
class Pulse:
    """What is remembered of a child's signs: when it last answered, how often it did not since, and its complaint."""

    heard_at_s: float
    misses: int = 0
    complaint: str = ""


@dataclass(frozen=True, slots=True)
class GoOn:
    """Let it be. A `notice` that is not empty is to be told."""

    pulse: Pulse
    notice: str = ""


@dataclass(frozen=True, slots=True)
class StartAnew:
    """Only a restart helps; `at_once` because it would not hear a request to stop."""

    reason: str
    at_once: bool


def on_sign(pulse: Pulse, sign: Sign, now_s: float) -> GoOn | StartAnew:
    """End what has been silent for long, asked several times, and what is broken and can be mended by a restart.

    Both bounds hold: after a pause of the whole machine one silence alone looks as long as it likes. What a restart
    would not mend is told once, and left as it is: it may still do a part of its work.
    """
    match sign:
        case Well():
            notice = f"serves again after: {pulse.complaint}" if pulse.complaint else ""
            return GoOn(Pulse(now_s), notice)
        case Silent():
            silent_s, misses = now_s - pulse.heard_at_s, pulse.misses + 1
            if misses >= MISSES_MIN and silent_s >= SILENCE_MAX_S:
                return StartAnew(f"hung: no answer for {silent_s:.0f} s", at_once=True)
            return GoOn(replace(pulse, misses=misses))
        case Broken(reason, curable):
            if curable:
                return StartAnew(f"broken: {reason}", at_once=False)
            return GoOn(Pulse(now_s, complaint=reason), "" if reason == pulse.complaint else reason)
        case _:
            assert_never(sign)


def check_order(children: Sequence[ChildDependencies]) -> None:
    """Raise ValueError unless each child needs, and falls with, only earlier ones.

    Declared so, the order has no cycle, and the reverse of it is the order in which the stack is stopped.
    """
    earlier: set[str] = set()
    for child in children:
        unknown = {*child.needs, *child.fails_with} - earlier
        if unknown or child.name in earlier:
            raise ValueError(f"{child.name} is declared twice or needs what is not declared before it: {unknown}")
        earlier.add(child.name)
