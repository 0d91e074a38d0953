"""One stream of the in-memory server: messages in order, the last on each subject, and the log's reads."""

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from app.log.stream_settings import DUPLICATE_WINDOW_S
from tests.fakes import subject_matches

CREATED = "2026-01-01T00:00:00Z"

Headers = dict[str, str]


@dataclass(frozen=True, slots=True)
class Stored:
    subject: str
    sequence: int
    data: bytes
    at: datetime


@dataclass
class Stream:
    name: str
    now: Callable[[], datetime]
    one_per_subject: bool = False
    stored: list[Stored] = field(default_factory=list[Stored])
    last: dict[str, Stored] = field(default_factory=dict[str, Stored])
    removed: set[int] = field(default_factory=set[int])
    ids: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])

    def append(self, subject: str, data: bytes, headers: Headers) -> Stored | dict[str, Any]:
        now_s, id = asyncio.get_running_loop().time(), headers.get("Nats-Msg-Id", "")
        at_s, sequence = self.ids.get(id, (float("-inf"), 0))
        if now_s - at_s < DUPLICATE_WINDOW_S:
            return {"stream": self.name, "seq": sequence, "duplicate": True}
        standing = self._last(headers.get("Nats-Expected-Last-Subject-Sequence-Subject", subject))
        expected = headers.get("Nats-Expected-Last-Subject-Sequence")
        last = standing.sequence if standing else 0
        if expected is not None and int(expected) != last:
            return {"error": {"code": 400, "err_code": 10_071, "description": f"wrong last sequence: {last}"}}
        message = Stored(subject, len(self.stored) + 1, data, self.now())
        self.stored.append(message)
        if self.one_per_subject and subject in self.last:
            self.removed.add(self.last[subject].sequence)
        self.last[subject] = message
        if id:
            self.ids[id] = (now_s, message.sequence)
        return message

    def info(self) -> dict[str, Any]:
        bounds = {"first_seq": 1, "last_seq": len(self.stored)}
        return {"created": CREATED, "config": {"name": self.name}, "state": bounds}

    def message(self, query: dict[str, Any]) -> dict[str, Any]:
        if "last_by_subj" in query:
            message = self._last(query["last_by_subj"])
        else:
            since = datetime.fromisoformat(query.get("start_time", CREATED))
            rest = self.matching(query["next_by_subj"], query.get("seq", 1) - 1)
            message = next((candidate for candidate in rest if candidate.at >= since), None)
        if message is None:
            return {"error": {"code": 404, "err_code": 10_037, "description": "no message found"}}
        data = base64.b64encode(message.data).decode()
        return {"message": {"subject": message.subject, "seq": message.sequence, "data": data}}

    def _last(self, pattern: str) -> Stored | None:
        if pattern in self.last:
            return self.last[pattern]
        return max(
            (each for subject, each in self.last.items() if subject_matches(pattern, subject)),
            key=lambda message: message.sequence,
            default=None,
        )

    def purge(self, subject: str) -> dict[str, Any]:
        purged = {each.sequence for each in self.stored if each.subject == subject} - self.removed
        self.removed |= purged
        self.last.pop(subject, None)
        return {"success": True, "purged": len(purged)}

    def erase(self, sequence: int) -> dict[str, Any]:
        if sequence in self.removed:
            return {"error": {"code": 400, "err_code": 10_043, "description": f"sequence {sequence} not found"}}
        self.removed.add(sequence)
        subject = self.stored[sequence - 1].subject
        if self.last[subject].sequence == sequence:
            del self.last[subject]
            if left := self.matching(subject):
                self.last[subject] = left[-1]
        return {"success": True}

    def matching(self, pattern: str, after: int = 0) -> list[Stored]:
        return [
            each
            for each in self.stored[after:]
            if each.sequence not in self.removed and subject_matches(pattern, each.subject)
        ]

    def query(self, query: dict[str, Any]) -> tuple[list[Stored], int]:
        if "multi_last" in query:
            found = [each for s, each in self.last.items() if any(subject_matches(p, s) for p in query["multi_last"])]
            return sorted(found, key=lambda message: message.sequence), 0
        rest = self.matching(query["next_by_subj"], query["seq"] - 1)
        return rest[: query["batch"]], max(0, len(rest) - query["batch"])
