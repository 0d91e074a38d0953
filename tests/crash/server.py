"""A nats-server in memory: the part of JetStream that the log and the work queue use, and its faults.

It behaves as nats-server 2.15.1 was observed to. The contracts of the journal (tests/contracts/test_journal.py) and of
the queue (tests/contracts/test_delivery.py) run against both. Not here: the
expiry of messages, storage limits, several servers.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, Protocol

from nats.aio.msg import Msg

from app.deliberation.calls import StageRequest
from app.log.stream_settings import (
    ANNOUNCEMENTS_STREAM,
    CONSUMER,
    INPUTS_STREAM,
    STREAM,
    TASKS,
    TASKS_STREAM,
    StreamSettings,
    task_subject,
    worker_consumer,
)
from tests.crash.consumer import Consumer, Pull
from tests.crash.stream import Headers, Stored, Stream
from tests.fakes import subject_matches

STREAMS = {
    "agent.response": "AGENT_RESPONSES",
    "orchestration": ANNOUNCEMENTS_STREAM,
    TASKS: TASKS_STREAM,
    "deliberations": STREAM,
    "keys": "KEYS",
    "inputs": INPUTS_STREAM,
}
# The consumers with the stream and the subjects of each: coordinators, and the workers of the only role.
QUEUES = {
    CONSUMER: (STREAM, "deliberations.*.*.accepted"),
    worker_consumer("DEV"): (TASKS_STREAM, task_subject("DEV", "*", "*")),
}
API = "$JS.API."
NEXT = f"{API}CONSUMER.MSG.NEXT."
DIRECT_GET = f"{API}DIRECT.GET."
ACK = "$JS.ACK."

Fate = Literal["served", "unanswered", "late", "lost"]
"""The fate of a request: answered; executed but not answered; executed after the time-out; or never executed."""


class Connection(Protocol):
    connected: bool


@dataclass(eq=False)
class Interest:
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
    before their end was in the log; `erased_early` are calls whose task was removed before they were recorded. `now`
    tells the time of messages, and for tasks whose deadline is over.
    """

    ack_wait_s: float = StreamSettings().ack_wait_s
    up: bool = True
    fates: list[tuple[str, Fate]] = field(default_factory=list[tuple[str, Fate]])
    interests: list[Interest] = field(default_factory=list[Interest])
    deaths: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    returns: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    acknowledged_early: list[int] = field(default_factory=list[int])
    erased_early: list[str] = field(default_factory=list[str])
    now: Callable[[], datetime] = field(default=partial(datetime.now, UTC))

    def __post_init__(self) -> None:
        self.consumers = {
            name: Consumer(self.ack_wait_s, partial(self._deliver, name), self._status) for name in QUEUES
        }
        self.consumer = self.consumers[CONSUMER]
        self._streams = {name: Stream(name, lambda: self.now()) for name in STREAMS.values()}
        self._streams[INPUTS_STREAM].one_per_subject = True
        self.log = self._streams[STREAM]

    def stream(self, name: str) -> Stream:
        return self._streams[name]

    @property
    def idle(self) -> bool:
        return all(consumer.empty for consumer in self.consumers.values())

    def kill(self) -> None:
        if self.up:
            self.up = False
            for call in list(self.deaths):
                call()
            for consumer in self.consumers.values():
                consumer.die()

    def start(self) -> None:
        if not self.up:
            self.up = True
            for call in list(self.returns):
                call()
            for consumer in self.consumers.values():
                consumer.live()

    def fate(self, subject: str) -> Fate:
        for place, (pattern, fate) in enumerate(self.fates):
            if subject_matches(pattern, subject):
                del self.fates[place]
                return fate
        return "served"

    def send(self, subject: str, data: bytes, *, headers: Headers | None = None, reply: str = "") -> bool:
        return self._give(subject, subject, data, headers, reply)

    def _give(self, address: str, subject: str, data: bytes, headers: Headers | None, reply: str) -> bool:
        heard = [interest for interest in self.interests if interest.wants(address)]
        for interest in heard:
            interest.take(Msg(None, subject=subject, reply=reply, data=data, headers=headers))  # pyright: ignore
        return bool(heard)

    def request(self, subject: str, data: bytes, headers: Headers) -> dict[str, Any] | None:
        stream = next((name for prefix, name in STREAMS.items() if subject.startswith(f"{prefix}.")), None)
        if stream is not None:
            return self._append(self._streams[stream], subject, data, headers)
        if not subject.startswith(API):
            return None
        match subject.removeprefix(API).split("."):
            case ["STREAM", "MSG", "GET", name] if name not in self._streams:
                return {"error": {"code": 404, "err_code": 10_037, "description": "no message found"}}
            case ["STREAM", "MSG", "DELETE", name] if name in self._streams:
                return self._erase(self._streams[name], json.loads(data)["seq"])
            case ["STREAM", "MSG", "GET", name]:
                return self._streams[name].message(json.loads(data))
            case ["STREAM", "PURGE", name]:
                stream = self._streams.get(name)
                return stream.purge(json.loads(data)["filter"]) if stream else {"success": True, "purged": 0}
            case ["STREAM", "INFO", name] if name in self._streams:
                return self._streams[name].info()
            case ["CONSUMER", "INFO", _, name] if name in self.consumers:
                return self.consumers[name].info()
            case _:
                return {"error": {"code": 404, "err_code": 10_059, "description": "not found"}}

    def publish(self, subject: str, data: bytes, headers: Headers, reply: str) -> None:
        if subject.startswith(ACK):
            self._acknowledged(subject.split(".")[3], int(subject.split(".")[5]), data)
        elif subject.startswith(NEXT):
            self.consumers[subject.rpartition(".")[2]].pull(Pull.of(json.loads(data), reply))
        elif subject.startswith(DIRECT_GET):
            self._direct_get(self._streams[subject.removeprefix(DIRECT_GET)], json.loads(data), reply)
        elif (answer := self.request(subject, data, headers)) is not None:
            if reply:
                self.send(reply, json.dumps(answer).encode())
        elif not self.send(subject, data, reply=reply) and reply:
            self.send(reply, b"", headers={"Status": "503"})

    def _acknowledged(self, name: str, sequence: int, word: bytes) -> None:
        if name == CONSUMER:
            accepted = self.log.stored[sequence - 1].subject
            if word == b"+ACK" and accepted.removesuffix("accepted") + "end" not in self.log.last:
                self.acknowledged_early.append(sequence)
        elif word == b"+ACK":
            # A work queue keeps no message that is acknowledged.
            self._erase(self._streams[TASKS_STREAM], sequence)
        self.consumers[name].acknowledge(sequence, word)

    def _erase(self, stream: Stream, sequence: int) -> dict[str, Any]:
        if stream.name == TASKS_STREAM and sequence not in stream.removed:
            self._note_early(StageRequest.model_validate_json(stream.stored[sequence - 1].data))
            for name in QUEUES:
                if QUEUES[name][0] == TASKS_STREAM:
                    self.consumers[name].forget(sequence)
        return stream.erase(sequence)

    def _note_early(self, task: StageRequest) -> None:
        subject = f"deliberations.{task.tenant}.{task.deliberation_id}"
        if f"{subject}.end" in self.log.last or self.now() >= task.deadline_at:
            return
        outcomes = {call.call_id: f"{subject}.call.{call.call_id}.finished" for call in task.calls}
        self.erased_early += [call_id for call_id, outcome in outcomes.items() if outcome not in self.log.last]

    def _append(self, stream: Stream, subject: str, data: bytes, headers: Headers) -> dict[str, Any]:
        message = stream.append(subject, data, headers)
        if not isinstance(message, Stored):
            return message
        self.send(f"live.{subject}", data, headers={"Nats-Sequence": str(message.sequence)})
        for name, (source, filtered) in QUEUES.items():
            if source == stream.name and subject_matches(filtered, subject):
                self.consumers[name].add(message.sequence)
        return {"stream": stream.name, "seq": message.sequence}

    def _direct_get(self, stream: Stream, query: dict[str, Any], inbox: str) -> None:
        found, pending = stream.query(query)
        if not found:
            self.send(inbox, b"", headers={"Status": "404", "Description": "Message Not Found"})
            return
        for each in found:
            self.send(inbox, each.data, headers={"Nats-Subject": each.subject, "Nats-Sequence": str(each.sequence)})
        self.send(inbox, b"", headers={"Status": "204", "Description": "EOB", "Nats-Num-Pending": str(pending)})

    def _deliver(self, name: str, inbox: str, sequence: int, deliveries: int, place: int) -> bool:
        stream = QUEUES[name][0]
        message = self._streams[stream].stored[sequence - 1]
        reply = f"{ACK}{stream}.{name}.{deliveries}.{sequence}.{place}.0.0"
        return self._give(inbox, message.subject, message.data, None, reply)

    def _status(self, inbox: str, headers: Headers) -> bool:
        return self.send(inbox, b"", headers=headers)
