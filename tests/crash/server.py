"""A nats-server in memory: the part of JetStream that the log and the work queue use, and its faults.

It behaves as nats-server 2.15.1 was observed to. The contracts of the journal (tests/contracts/test_journal.py) and of
the queue (tests/contracts/test_delivery.py) run against both. Not here: the
expiry of messages, storage limits, several servers.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from nats.aio.msg import Msg

from app.log.stream_settings import CONSUMER, StreamSettings
from app.testing import subject_matches
from tests.crash.consumer import Consumer, Pull
from tests.crash.stream import Headers, Stored, Stream

STREAMS = {"deliberations": "DELIBERATIONS", "keys": "KEYS"}
API = "$JS.API."
NEXT = f"{API}CONSUMER.MSG.NEXT.DELIBERATIONS.{CONSUMER}"
DIRECT_GET = f"{API}DIRECT.GET."
ACK = f"$JS.ACK.DELIBERATIONS.{CONSUMER}."

Fate = Literal["served", "unanswered", "late", "lost"]
"""The fate of a request: answered; executed but not answered; executed after the time-out; or never executed."""


class Connection(Protocol):
    """The owner of a subscription."""

    connected: bool


@dataclass(eq=False)
class Interest:
    """A subscription of a client: `take` gets every message on its subject."""

    subject: str
    take: Callable[[Msg], None]
    owner: Connection

    def __post_init__(self) -> None:
        self._literal = "*" not in self.subject and ">" not in self.subject

    def wants(self, subject: str) -> bool:
        if self._literal:
            return self.owner.connected and self.subject == subject
        return self.owner.connected and subject_matches(self.subject, subject)


@dataclass
class InMemoryServer:
    """The streams, the consumer's state and the subscriptions, which outlive every process.

    `fates` are those of requests and acknowledgements on matching subjects; each is used once, in order. `deaths` and
    `returns` are called when the server dies and restarts. `acknowledged_early` are queue items that were acknowledged
    before their end was in the log.
    """

    ack_wait_s: float = StreamSettings().ack_wait_s
    up: bool = True
    announced: dict[str, bytes] = field(default_factory=dict[str, bytes])
    fates: list[tuple[str, Fate]] = field(default_factory=list[tuple[str, Fate]])
    interests: list[Interest] = field(default_factory=list[Interest])
    deaths: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    returns: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    acknowledged_early: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        self.consumer = Consumer(self.ack_wait_s, self._deliver, self._status)
        self._streams = {name: Stream(name) for name in STREAMS.values()}
        self.log = self._streams["DELIBERATIONS"]

    def kill(self) -> None:
        """SIGKILL: connections, pulls and what the consumer had not written to disk are lost."""
        if self.up:
            self.up = False
            for call in list(self.deaths):
                call()
            self.consumer.die()

    def start(self) -> None:
        """Restart: clients connect again, and forgotten deliveries are made at once."""
        if not self.up:
            self.up = True
            for call in list(self.returns):
                call()
            self.consumer.live()

    def fate(self, subject: str) -> Fate:
        """The fate of the next request or acknowledgement on this subject."""
        for place, (pattern, fate) in enumerate(self.fates):
            if subject_matches(pattern, subject):
                del self.fates[place]
                return fate
        return "served"

    def send(self, subject: str, data: bytes, *, headers: Headers | None = None, reply: str = "") -> bool:
        """Deliver a message to its subscribers; False when there are none."""
        return self._give(subject, subject, data, headers, reply)

    def _give(self, address: str, subject: str, data: bytes, headers: Headers | None, reply: str) -> bool:
        heard = [interest for interest in self.interests if interest.wants(address)]
        for interest in heard:
            interest.take(Msg(None, subject=subject, reply=reply, data=data, headers=headers))  # pyright: ignore
        return bool(heard)

    def request(self, subject: str, data: bytes, headers: Headers) -> dict[str, Any] | None:
        """The server's answer to a request; None when the subject is not its own."""
        stream = STREAMS.get(subject.partition(".")[0])
        if stream is not None:
            return self._append(self._streams[stream], subject, data, headers)
        if subject.startswith("orchestration."):
            first = self.announced.setdefault(headers["Nats-Msg-Id"], data)
            return {"stream": "ORCHESTRATOR_EVENTS", "seq": 1, "duplicate": first is not data}
        if not subject.startswith(API):
            return None
        match subject.removeprefix(API).split("."):
            case ["STREAM", "MSG", "GET", name] if name in self._streams:
                return self._streams[name].last_message(json.loads(data)["last_by_subj"])
            case ["STREAM", "PURGE", name]:
                stream = self._streams.get(name)
                return stream.purge(json.loads(data)["filter"]) if stream else {"success": True, "purged": 0}
            case ["STREAM", "INFO", name] if name in self._streams:
                return self._streams[name].info()
            case ["CONSUMER", "INFO", "DELIBERATIONS", name] if name == CONSUMER:
                return self.consumer.info()
            case _:
                return {"error": {"code": 404, "err_code": 10_059, "description": "not found"}}

    def publish(self, subject: str, data: bytes, headers: Headers, reply: str) -> None:
        """Take any published message."""
        if subject.startswith(ACK):
            self._acknowledged(int(subject.split(".")[5]), data)
        elif subject == NEXT:
            self.consumer.pull(Pull.of(json.loads(data), reply))
        elif subject.startswith(DIRECT_GET):
            self._direct_get(self._streams[subject.removeprefix(DIRECT_GET)], json.loads(data), reply)
        elif (answer := self.request(subject, data, headers)) is not None:
            if reply:
                self.send(reply, json.dumps(answer).encode())
        elif not self.send(subject, data, reply=reply) and reply:
            self.send(reply, b"", headers={"Status": "503"})

    def _acknowledged(self, sequence: int, word: bytes) -> None:
        accepted = self.log.stored[sequence - 1].subject
        if word == b"+ACK" and accepted.removesuffix("accepted") + "end" not in self.log.last:
            self.acknowledged_early.append(sequence)
        self.consumer.acknowledge(sequence, word)

    def _append(self, stream: Stream, subject: str, data: bytes, headers: Headers) -> dict[str, Any]:
        message = stream.append(subject, data, headers)
        if not isinstance(message, Stored):
            return message
        self.send(f"live.{subject}", data, headers={"Nats-Sequence": str(message.sequence)})
        if subject_matches("deliberations.*.*.accepted", subject):
            self.consumer.add(message.sequence)
        return {"stream": stream.name, "seq": message.sequence}

    def _direct_get(self, stream: Stream, query: dict[str, Any], inbox: str) -> None:
        found, pending = stream.query(query)
        if not found:
            self.send(inbox, b"", headers={"Status": "404", "Description": "Message Not Found"})
            return
        for each in found:
            self.send(inbox, each.data, headers={"Nats-Subject": each.subject, "Nats-Sequence": str(each.sequence)})
        self.send(inbox, b"", headers={"Status": "204", "Description": "EOB", "Nats-Num-Pending": str(pending)})

    def _deliver(self, inbox: str, sequence: int, deliveries: int, place: int) -> bool:
        message = self.log.stored[sequence - 1]
        return self._give(inbox, message.subject, message.data, None, f"{ACK}{deliveries}.{sequence}.{place}.0.0")

    def _status(self, inbox: str, headers: Headers) -> bool:
        return self.send(inbox, b"", headers=headers)
