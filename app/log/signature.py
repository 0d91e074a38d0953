"""Signatures of the log: HMAC-SHA256 under the log key over subject and bytes. Without a key all records count.

A signature is cut to 128 bits (RFC 2104, section 5), because each stored message carries one.

The server gives the sequence later, so a foreign writer may repeat a record on the record's own subject.
"""

import base64
import hmac
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import structlog

from app.deliberation.errors import InvalidRequest

SIGNATURE_HEADER = "Deliberate-Signature"
SECRET_CHARS_MIN = 32
LOG_KEY_VARIABLE = "LOG_KEY_FILE"
LOG_KEY_NAME = "log_key"
"""The file's name in the data directory of `deliberate up`."""
_VERSION = "v1:"
_SIGNATURE_BYTES = 16
_LOG_AGAIN_S = 60.0

log = structlog.get_logger(__name__)


class Refusals:
    def __init__(self, event: str) -> None:
        self.count = 0
        self._event = event
        self._quiet_until_s = 0.0

    def note(self, subject: str) -> None:
        """Count one; `subject` is logged, cut and escaped, because its writer is not trusted."""
        self.count += 1
        now_s = time.monotonic()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + _LOG_AGAIN_S
            log.warning(self._event, subject=repr(subject[:100]), refused=self.count)


class LogSigner:
    """Signs what a process writes and verifies what it reads. The first key signs; each key verifies."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self.refusals = Refusals("log_record_refused")
        self._keys = tuple(key.encode() for key in keys)

    @classmethod
    def of_file(cls, path: Path | None) -> Self:
        """The signature of a file with one key per line, newest first; raises InvalidRequest for an unusable file."""
        if path is None:
            return cls()
        try:
            keys = [key for line in path.read_text(encoding="utf-8-sig").splitlines() if (key := line.strip())]
        except (OSError, ValueError) as exc:
            # Without `from`: the error of a wrong encoding quotes the file.
            raise InvalidRequest(f"{LOG_KEY_VARIABLE}={path}: {type(exc).__name__}") from None
        if not keys or any(len(key) < SECRET_CHARS_MIN for key in keys):
            raise InvalidRequest(f"{LOG_KEY_VARIABLE}={path}: a key has at least {SECRET_CHARS_MIN} characters")
        return cls(keys)

    @classmethod
    def of_environment(cls) -> Self:
        return cls.of_file(Path(path) if (path := os.environ.get(LOG_KEY_VARIABLE)) else None)

    @property
    def active(self) -> bool:
        return bool(self._keys)

    def headers(self, subject: str, data: bytes) -> dict[str, str]:
        return {SIGNATURE_HEADER: self._sign(self._keys[0], subject, data)} if self._keys else {}

    def is_authentic(self, subject: str, data: bytes, headers: Mapping[str, str]) -> bool:
        """Whether a record bears a valid signature; counts the ones that do not."""
        if not self._keys:
            return True
        signature = headers.get(SIGNATURE_HEADER, "").encode()
        if any(hmac.compare_digest(self._sign(key, subject, data).encode(), signature) for key in self._keys):
            return True
        self.refusals.note(subject)
        return False

    @staticmethod
    def _sign(key: bytes, subject: str, data: bytes) -> str:
        digest = hmac.digest(key, b"%b\n%b" % (subject.encode(), data), "sha256")
        return _VERSION + base64.b64encode(digest[:_SIGNATURE_BYTES]).decode()
