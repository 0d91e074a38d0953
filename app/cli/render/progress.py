"""What the supervisor tells while the stack runs: a closed union of facts, for a terminal or as lines of JSON."""

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
    """A child answers, `seconds` after its process was started; `detail` tells where, or what it serves."""

    name: str
    detail: str
    seconds: float
    attempt: int


@dataclass(frozen=True, slots=True)
class ChildDied:
    """A child ended and will be started again."""

    name: str
    reason: str
    restart_in_s: float
    log_tail: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChildFailed:
    """A child could not be started; the stack is given up."""

    name: str
    reason: str
    hint: str
    log: str
    log_tail: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PortShifted:
    """The wanted port was taken."""

    name: str
    wanted: int
    port: int


@dataclass(frozen=True, slots=True)
class PartGiven:
    """A part that is not ours to start, `nats` or `engine`, and whether it answers."""

    name: str
    url: str
    answers: bool


@dataclass(frozen=True, slots=True)
class Noticed:
    """Something worth a line."""

    text: str


@dataclass(frozen=True, slots=True)
class StackReady:
    """Everything answers, the gateway's /readyz included; `keys` tells whether it asks for them."""

    url: str
    nats_url: str
    engine_urls: tuple[str, ...]
    ray_address: str
    roles: tuple[str, ...]
    simulated: bool
    data_dir: str
    seconds: float
    keys: bool = False


@dataclass(frozen=True, slots=True)
class StackStopping:
    """A child is being asked to stop."""

    name: str


@dataclass(frozen=True, slots=True)
class StackStopped:
    """Everything was stopped; `left` names processes that carry the stack's mark and would not go."""

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
