"""The events that the supervisor reports while the stack runs: a closed union, for a terminal or as JSON lines."""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """A process was started; `attempt` counts from 1."""

    name: str
    pid: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ChildReady:
    """A child is ready, `seconds` after its process started; `detail` names its address or what it serves."""

    name: str
    detail: str
    seconds: float
    attempt: int


@dataclass(frozen=True, slots=True)
class ChildDied:
    """A child exited and will be restarted."""

    name: str
    reason: str
    restart_in_s: float
    log_tail: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChildFailed:
    """A child could not start, so the stack stops."""

    name: str
    reason: str
    hint: str
    log: str
    log_tail: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PortShifted:
    """The wanted port was taken, so another one is used."""

    name: str
    wanted: int
    port: int


@dataclass(frozen=True, slots=True)
class PartGiven:
    """An external part, `nats` or `engine`, and whether it responds."""

    name: str
    url: str
    answers: bool


@dataclass(frozen=True, slots=True)
class Noticed:
    """A notice for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class StackReady:
    """The stack is ready, and the gateway's /readyz returns 200.

    `url` is the gateway's for this machine, `host` its listen address; `keys`: whether it requires keys.
    """

    url: str
    nats_url: str
    engine_urls: tuple[str, ...]
    ray_address: str
    roles: tuple[str, ...]
    simulated: bool
    data_dir: str
    seconds: float
    keys: bool = False
    host: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class StackStopping:
    """A child is being stopped."""

    name: str


@dataclass(frozen=True, slots=True)
class StackStopped:
    """The stack has stopped; `left` names remaining processes with the stack's mark."""

    seconds: float
    left: tuple[str, ...]


ProgressEvent = (
    ChildStarted
    | ChildReady
    | ChildDied
    | ChildFailed
    | PortShifted
    | PartGiven
    | Noticed
    | StackReady
    | StackStopping
    | StackStopped
)
ProgressReport = Callable[[ProgressEvent], None]


def as_document(event: ProgressEvent) -> dict[str, Any]:
    """The event as one JSON object; `event` is its type in snake case, without the word stack."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(event).__name__.removeprefix("Stack")).lower()
    return {"event": name, **asdict(event)}
