"""The events that the supervisor reports while the stack runs: a closed union, for a terminal or as JSON lines."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from app.access.loopback import is_loopback
from app.cli.options import program
from app.cli.render.text import printable
from app.cli.target import options_for

TITLES = {
    "nats": "NATS",
    "engine": "Engine",
    "simulator": "Engine simulator",
    "ray": "Ray",
    "deployer": "Ray Serve",
    "coordinator": "Coordinator",
    "worker": "Worker",
    "gateway": "Gateway",
    "webhooks": "Webhooks",
    "archive": "Archive",
}
_SLOWEST = {"ray", "deployer"}
_EXAMPLE = {"task": "Reverse a linked list", "num_agents": 3}


@dataclass(frozen=True, slots=True)
class ChildStarted:
    name: str
    pid: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ChildReady:
    name: str
    detail: str
    seconds: float
    attempt: int


@dataclass(frozen=True, slots=True)
class ChildDied:
    name: str
    reason: str
    restart_in_s: float
    log_tail: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChildFailed:
    name: str
    reason: str
    hint: str
    log: str
    log_tail: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PortShifted:
    name: str
    wanted: int
    port: int


@dataclass(frozen=True, slots=True)
class PartGiven:
    name: str
    url: str
    answers: bool


@dataclass(frozen=True, slots=True)
class Noticed:
    text: str


@dataclass(frozen=True, slots=True)
class FaultFound:
    """A finding, which says why the stack is not ready; its fields are those of `GET /status`."""

    code: str
    part: str
    severity: str
    detail: str
    why: str
    remedy: str


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
    name: str


@dataclass(frozen=True, slots=True)
class StackStopped:
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
    | FaultFound
    | StackReady
    | StackStopping
    | StackStopped
)
ProgressReport = Callable[[ProgressEvent], None]


def as_document(event: ProgressEvent) -> dict[str, Any]:
    """The event as one JSON object; `event` is its type in snake case, without the word stack."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(event).__name__.removeprefix("Stack")).lower()
    return {"event": name, **asdict(event)}


@dataclass(slots=True)
class Checklist:
    """Reports progress on a terminal: a line for each ready child, and a moving last line for those that start.

    Without a terminal it prints a line when only Ray is missing, which takes longest.
    """

    console: Console
    starting: dict[str, str] = field(default_factory=dict[str, str])
    status: Status | None = None

    def __call__(self, event: ProgressEvent) -> None:
        match event:
            case ChildStarted(name=name):
                self.starting[name] = TITLES[name]
            case ChildReady():
                self.starting.pop(event.name, None)
                again = " again" if event.attempt > 1 else ""
                self._line("✔", "green", TITLES[event.name], f"{event.detail}  ({event.seconds:.1f} s{again})")
                if not self.console.is_terminal and self.starting and self.starting.keys() <= _SLOWEST:
                    self._line("…", "dim", "Waiting for", ", ".join(self.starting.values()))
            case ChildDied():
                self._tail(event.log_tail)
                when = f"starting it again {f'in {event.restart_in_s:g} s' if event.restart_in_s else 'after that one'}"
                self._line("!", "yellow", TITLES[event.name], f"{event.reason}; {when}")
            case ChildFailed():
                self._tail(event.log_tail)
                self._line("✘", "red", TITLES[event.name], f"{event.reason}; its log: {event.log}")
            case PortShifted():
                self._line("!", "yellow", TITLES[event.name], f"port {event.wanted} is taken, using {event.port}")
            case PartGiven(url=url, answers=True):
                self._line("✔", "green", TITLES[event.name], f"{url}  given")
            case PartGiven(url=url):
                self._line("!", "yellow", TITLES[event.name], f"{url}  given, but it does not answer now")
            case Noticed(text=text):
                self._line("!", "yellow", "", text)
            case FaultFound():
                self._line("!", "yellow", TITLES.get(event.part, event.part), f"{event.detail}. {event.why}")
                self._line("→", "dim", "", event.remedy)
            case StackReady():
                self.starting.clear()
                self._ready(event)
            case StackStopping(name=name):
                self.starting = {name: f"stopping {TITLES[name]}"}
            case StackStopped():
                self.starting.clear()
                self._line("✔", "green", "Stopped", f"({event.seconds:.1f} s)")
                self._tail(event.left)
        self._move()

    def _line(self, sign: str, style: str, title: str, text: str) -> None:
        self.console.print(Text.assemble((f" {sign} ", style), f"{title:<17}" if title else "", printable(text)))

    def _tail(self, lines: tuple[str, ...]) -> None:
        for line in lines:
            self.console.print(Text(f"   │ {printable(line)}", "dim"))

    def _ready(self, event: StackReady) -> None:
        open_to = "loopback only" if is_loopback(event.host) else "open to all that reach this host"
        mode = f"Keys are required, {open_to}" if event.keys else "Development mode: no keys, loopback only"
        command, at = program(), options_for(Path(event.data_dir))
        self._hint("Data:", event.data_dir)
        if event.keys:
            self._hint("A key:", f"export DELIBERATE_API_KEY=$({command} keys create me --tenant mine{at})")
        self._hint("Ask:", f'{command} ask "{_EXAMPLE["task"]}"{at}')
        self._hint("Or:", f"curl -sS {event.url}/deliberations \\")
        self._hint("", "-H 'content-type: application/json' \\")
        if event.keys:
            self._hint("", '-H "authorization: Bearer $DELIBERATE_API_KEY" \\')
        self._hint("", f"-d '{json.dumps(_EXAMPLE)}'")
        self._hint(f"{mode}.")
        self._hint(f"Up in {event.seconds:.1f} s; Ctrl-C stops it.")

    def _hint(self, title: str, command: str = "") -> None:
        self.console.print(Text(f"   {title:<7} {command}".rstrip()))

    def _move(self) -> None:
        if not self.console.is_terminal:
            return
        if self.status is None:
            self.status = self.console.status("")
        if self.starting:
            self.status.update(", ".join(self.starting.values()) + " …")
            self.status.start()
        else:
            self.status.stop()
