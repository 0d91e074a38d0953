"""A child of the warden: a process for one test, confined before foreign code runs in it, watched until it ends."""

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import time
from itertools import pairwise
from typing import NamedTuple

from serve_deployments.sandbox import trial
from serve_deployments.sandbox.confinement import CannotIsolate, Isolation, ResourceLimits, die_with_parent

OUTPUT_BYTES_MAX = 1 << 20
THREADS_MAX = 64
CREATIONS_MAX = 256
CONFINED_WITHIN_S = 10.0

_VERDICT_BYTES_MAX = 8_192
_READ_BYTES = 65_536
_INPUT, _OUTPUT, _ERRORS = 0, 1, 2
_VERDICT, _NONCE, _LINK = 10, 11, 12
_ABOVE = 20
_DESCRIPTORS_MAX = 1_024
_BROKEN = 70

# struct seccomp_notif, struct seccomp_notif_resp, and the requests that receive the one and send the other.
_NOTIFICATION, _RESPONSE = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1


class TrialOutcome(NamedTuple):
    """The result of a trial.

    `loaded`: the program loaded; `timed_out`: the time-out ended it; `void`: the test asserted nothing.
    """

    passed: bool
    reason: str = ""
    loaded: bool = False
    timed_out: bool = False
    void: bool = False


class Abandoned(Exception):
    """The replica no longer waits for the report: it has closed standard input."""


class SandboxChild:
    """A running trial. Raises CannotIsolate when it could not be confined; then nothing was run."""

    def __init__(self, isolation: Isolation, limits: ResourceLimits, program: str, test: str) -> None:
        self._isolation = isolation
        self._output, output = os.pipe()
        self._verdict, verdict = os.pipe()
        nonce, self._nonce = os.pipe()
        self._link, link = socket.socketpair()
        self._listener: int | None = None
        self._printed = self._created = 0
        self._said = bytearray()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _be_child(parent, isolation, limits, (program, test), (output, verdict, nonce, link.fileno()))
        for fd in (output, verdict, nonce):
            os.close(fd)
        link.close()

    def verdict(self, timeout_s: float) -> TrialOutcome:
        """Watch the trial to its end, and kill it when it exceeds `timeout_s` or a limit."""
        try:
            self._wait_until_confined()
            nonce = os.urandom(trial.NONCE_BYTES)
            os.write(self._nonce, nonce)
            ended = self._watched(timeout_s)
        finally:
            status = self._killed()
        return ended or _judged(bytes(self._said), nonce, status)

    def _killed(self) -> int:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        for fd in (self._output, self._verdict, self._nonce, self._listener):
            if fd is not None:
                os.close(fd)
        self._link.close()
        return status

    def _wait_until_confined(self) -> None:
        self._link.settimeout(CONFINED_WITHIN_S)
        try:
            said, listeners, _, _ = socket.recv_fds(self._link, len(b"listener"), 1)
            if listeners:
                (self._listener,) = listeners
                said = b""
            said += self._link.recv(1_024)
        except TimeoutError:
            said = b"it took too long"
        if self._listener is None or said != b"confined":
            raise CannotIsolate(said.decode("utf-8", "replace") or "the process ended before it was confined")

    def _watched(self, timeout_s: float) -> TrialOutcome | None:
        """The outcome of a trial that was cut off; None when it closed its verdict pipe, as an ending process does."""
        until = time.monotonic() + timeout_s
        poll = select.poll()
        for fd in (self._output, self._verdict, self._listener):
            assert fd is not None, "it is confined"
            poll.register(fd, select.POLLIN)
        poll.register(_INPUT, 0)
        while (left := until - time.monotonic()) > 0:
            for fd, _ in poll.poll(left * 1_000):
                if fd == _INPUT:
                    raise Abandoned
                if fd == self._listener:
                    if not self._answered():
                        poll.unregister(fd)
                    continue
                data = os.read(fd, _READ_BYTES)
                if fd == self._output:
                    self._printed += len(data)
                    if self._printed > OUTPUT_BYTES_MAX:
                        return TrialOutcome(False, f"printed more than {OUTPUT_BYTES_MAX >> 20} MB")
                    if not data:
                        poll.unregister(fd)
                else:
                    self._said += data
                    if not data or len(self._said) > _VERDICT_BYTES_MAX:
                        return None
        return TrialOutcome(False, f"ran longer than {timeout_s:.3g} s", timed_out=True)

    def _answered(self) -> bool:
        """Allow or refuse a counted system call; False when no more can come."""
        assert self._listener is not None, "it is confined"
        notification = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, notification)
        except OSError:
            return False  # its process has ended or is ending
        number, _, _, call, *_ = _NOTIFICATION.unpack(notification)
        refusal = self._refusal(call)
        answer = _RESPONSE.pack(number, 0, -refusal, 0 if refusal else _CONTINUE)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._listener, _SEND, answer)
        return True

    def _refusal(self, call: int) -> int:
        if call == self._isolation.architecture.numbers["clone"]:
            return errno.EAGAIN if len(os.listdir(f"/proc/{self.pid}/task")) >= THREADS_MAX else 0
        self._created += 1
        return errno.ENOSPC if self._created > CREATIONS_MAX else 0


def _judged(said: bytes, nonce: bytes, status: int) -> TrialOutcome:
    code = os.waitstatus_to_exitcode(status)
    kind, reason = said[:1], said[1:].decode("utf-8", "replace")
    if code < 0:
        return TrialOutcome(False, f"ended by {signal.Signals(-code).name} before the test returned")
    if said == nonce and code == 0:
        return TrialOutcome(True, loaded=True)
    if code == 0 and kind in (trial.FAILED, trial.NOT_LOADED, trial.VOID) and reason:
        return TrialOutcome(False, reason, loaded=kind != trial.NOT_LOADED, void=kind == trial.VOID)
    return TrialOutcome(False, f"the process ended with status {code} before the test returned")


def _be_child(
    parent: int, isolation: Isolation, limits: ResourceLimits, texts: tuple[str, str], ends: tuple[int, int, int, int]
) -> None:
    """Confine this new process, run the trial, end. Never returns."""
    try:
        die_with_parent(parent)
        _arrange(ends, keep=isolation.landlock_fd)
        link = socket.socket(fileno=_LINK)
        try:
            isolation.confine(limits, link)
        except CannotIsolate as error:
            link.send(str(error).encode())
            return
        link.send(b"confined")
        link.close()
        _forget()
        trial.run(*texts, _VERDICT, _NONCE)
    finally:
        os._exit(_BROKEN)


def _arrange(ends: tuple[int, int, int, int], keep: int) -> None:
    """Move the descriptors to their numbers, and close all others but `keep`."""
    nothing = os.open("/dev/null", os.O_RDONLY)
    aside = [fcntl.fcntl(end, fcntl.F_DUPFD, _ABOVE) for end in (nothing, ends[0], *ends)]
    for end, place in zip(aside, (_INPUT, _OUTPUT, _ERRORS, _VERDICT, _NONCE, _LINK), strict=True):
        os.dup2(end, place, inheritable=False)
    taken = (_ERRORS, *sorted((keep, _VERDICT, _NONCE, _LINK)), _DESCRIPTORS_MAX)
    for below, above in pairwise(taken):
        os.closerange(below + 1, above)


def _forget() -> None:
    """Remove the sandbox's modules from where an import finds them."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("serve_deployments", "ctypes", "_ctypes"):
            del sys.modules[name]
