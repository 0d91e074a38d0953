"""The warden's side of the zygote: launches it, has it run the program, and watches each run from outside.

The kernel asks the warden about each new thread, process, file and signal (seccomp's user notification). Only the
zygote may create processes, and it may execute only once, its own interpreter.
"""

import contextlib
import errno
import fcntl
import marshal
import os
import re
import select
import signal
import socket
import struct
import time
from importlib.machinery import SourceFileLoader
from itertools import pairwise

from serve_deployments.sandbox import seccomp, zygote
from serve_deployments.sandbox.confinement import INTERPRETER, CannotIsolate, Isolation, ResourceLimits
from serve_deployments.sandbox.verdict import ProgramRun

OUTPUT_BYTES_MAX = RESULT_BYTES_MAX = 1 << 20
THREADS_MAX = 64
CREATIONS_MAX = 256
CONFINED_WITHIN_S = 10.0
TRIED_MAX = 16

# A program could write other lines.
_TRIED = re.compile(r"import [!-~]+|open [!-~]+ for writing|[a-z]+\.[A-Za-z_.]+")
_KEPT_BYTES_MAX = 8_192
_READ_BYTES = 65_536
_INPUT, _LINK = 0, 9
_ABOVE = 20
_DESCRIPTORS_MAX = 1_024
_F_SETSIG = 10

# struct seccomp_notif, struct seccomp_notif_resp, and the requests that receive the one and send the other.
_NOTIFICATION, _RESPONSE = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1

_BOOT = f"""
import builtins, marshal, sys
code, program = marshal.loads(open({zygote.ORDER}, "rb", closefd=False).read())
module = type(sys)("zygote")
vars(module)["__builtins__"] = dict(vars(builtins))  # a program may rebind its own
exec(code, vars(module))
module.main(program)
"""
# An arena for each thread would fill the address space: RLIMIT_AS counts what threads reserve and never use.
_COMMAND, _ENVIRONMENT = (INTERPRETER, "-I", "-S", "-E", "-B", "-X", "utf8", "-c", _BOOT), {"MALLOC_ARENA_MAX": "1"}


class Abandoned(Exception):
    """The replica no longer waits for the report: it has closed standard input."""


class Zygote:
    """A running zygote with a program; raises CannotIsolate when confinement failed, and then nothing was run."""

    def __init__(self, isolation: Isolation, limits: ResourceLimits, program: str) -> None:
        self._numbers = isolation.architecture.numbers
        code = SourceFileLoader(zygote.__name__, zygote.__file__).get_code(zygote.__name__)
        order = _in_memory(marshal.dumps((code, program)))
        self._input = os.memfd_create("input")
        stdin = os.open(f"/proc/self/fd/{self._input}", os.O_RDONLY)
        # Reading ends here, writing ends there, and the other way around.
        self._output, output = os.pipe()
        self._errors, errors = os.pipe()
        self._status, status = os.pipe()
        self._result, result = os.pipe()
        self._notes, notes = os.pipe()
        control, self._control = os.pipe()
        lifeline, self._lifeline = os.pipe()
        self._link, link = socket.socketpair()
        self._listener: int | None = None
        self._executed = False
        self._printed = self._created = 0
        self._kept: dict[int, bytearray] = {}
        self.tried: list[str] = []
        theirs = (stdin, output, errors, order, control, status, result, notes, lifeline, link.fileno())
        self.pid = os.fork()
        if self.pid == 0:
            _launch(isolation, limits, theirs)
        for fd in theirs[:-1]:
            os.close(fd)
        link.close()
        self._poll = select.poll()
        for fd in (self._output, self._errors, self._status, self._result, self._notes, self._link.fileno()):
            os.set_blocking(fd, False)
            self._kept[fd] = bytearray()
            self._poll.register(fd, select.POLLIN)
        self._poll.register(_INPUT, 0)
        self._await(zygote.READY)

    def run(self, command: bytes, stdin: bytes, timeout_s: float) -> ProgramRun:
        os.ftruncate(self._input, 0)
        os.pwrite(self._input, stdin, 0)
        self._printed = self._created = 0
        for kept in self._kept.values():
            kept.clear()
        os.write(self._control, command + b"\n")
        exceeded = self._watched(zygote.ENDED, timeout_s, limited=True)
        exit_code = self._ended()
        self._note()
        exceeded = exceeded or self._exceeded()
        return ProgramRun(bytes(self._kept[self._result]), bytes(self._kept[self._output]), exit_code, exceeded)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _ended(self) -> int:
        (pid,) = self._await(zygote.STARTED)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._await(zygote.ENDED)
        os.write(self._control, b"\n")
        (exit_code,) = self._await(zygote.EXITED)
        self._drain()
        return exit_code

    def _await(self, event: str) -> list[int]:
        if self._watched(event, CONFINED_WITHIN_S):
            raise CannotIsolate("it took too long")
        return self._event(event) or []

    def _fate(self) -> str:
        link = self._link.fileno()
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self._read(link):
                pass
        said = self._kept[link].decode("utf-8", "replace").removeprefix("listener")
        return said if said not in ("", "confined") else "the process ended before it was confined"

    def _event(self, name: str) -> list[int] | None:
        """Returns the numbers of the last event of that name in this run; None before it."""
        for line in bytes(self._kept[self._status]).decode().split("\n")[:-1]:
            word, *numbers = line.split()
            if word == name:
                return list(map(int, numbers))
        return None

    def _watched(self, event: str, timeout_s: float, *, limited: bool = False) -> str:
        """Watch until an event; returns the limit that was exceeded before, empty if none."""
        until = time.monotonic() + timeout_s
        while self._event(event) is None:
            left = until - time.monotonic()
            if left <= 0:
                return f"ran longer than {timeout_s:.3g} s"
            for fd, _ in self._poll.poll(left * 1_000):
                if fd == _INPUT:
                    raise Abandoned
                if fd == self._listener:
                    self._answer()
                elif not self._read(fd):
                    self._poll.unregister(fd)
                    if fd == self._status:
                        raise CannotIsolate(self._fate())
            if limited and (exceeded := self._exceeded()):
                return exceeded
        return ""

    def _exceeded(self) -> str:
        if self._printed > OUTPUT_BYTES_MAX:
            return f"printed more than {OUTPUT_BYTES_MAX >> 20} MB"
        if len(self._kept[self._result]) > RESULT_BYTES_MAX:
            return f"returned more than {RESULT_BYTES_MAX >> 20} MB"
        return ""

    def _read(self, fd: int) -> bool:
        """Keep the bytes that a descriptor holds now; False at its end."""
        if fd == self._link.fileno() and self._listener is None:
            data, listeners, _, _ = socket.recv_fds(self._link, len(b"listener"), 1)
            if listeners:
                (self._listener,) = listeners
                self._poll.register(self._listener, select.POLLIN)
        else:
            data = os.read(fd, _READ_BYTES)
        if fd in (self._output, self._errors):
            self._printed += len(data)
        bound = OUTPUT_BYTES_MAX if fd in (self._output, self._result) else _KEPT_BYTES_MAX
        if len(self._kept[fd]) <= bound:
            self._kept[fd] += data
        return bool(data)

    def _drain(self) -> None:
        for fd in (self._output, self._errors, self._result, self._notes):
            with contextlib.suppress(BlockingIOError):
                while self._read(fd):
                    pass

    def _note(self) -> None:
        for line in bytes(self._kept[self._notes]).decode("ascii", "replace").split("\n")[:-1]:
            if _TRIED.fullmatch(line) and line not in self.tried and len(self.tried) < TRIED_MAX:
                self.tried.append(line)

    def _answer(self) -> None:
        assert self._listener is not None, "it is confined"
        notification = bytearray(_NOTIFICATION.size)
        with contextlib.suppress(OSError):  # its process has ended or is ending
            fcntl.ioctl(self._listener, _RECEIVE, notification)
            number, caller, _, call, _, _, first, *_ = _NOTIFICATION.unpack(notification)
            refusal = self._refusal(call, caller, first)
            answer = _RESPONSE.pack(number, 0, -refusal, 0 if refusal else _CONTINUE)
            fcntl.ioctl(self._listener, _SEND, answer)

    def _refusal(self, call: int, caller: int, first: int) -> int:
        """Returns the error number for a system call, by its caller and first argument; 0 if it may go on."""
        numbers = self._numbers
        if call == numbers["execve"]:
            allowed, self._executed = caller == self.pid and not self._executed, True
            return 0 if allowed else errno.EPERM
        if call in (numbers["kill"], numbers["tgkill"]):
            return 0 if os.path.exists(f"/proc/{first & 0xFFFFFFFF}/task/{caller}") else errno.EPERM
        if call == numbers["clone"]:
            if not first & seccomp.CLONE_THREAD:
                return 0 if caller == self.pid and self._executed else errno.EPERM
            return errno.EAGAIN if len(os.listdir(f"/proc/{caller}/task")) >= THREADS_MAX else 0
        self._created += 1
        return errno.ENOSPC if self._created > CREATIONS_MAX else 0


def _in_memory(data: bytes) -> int:
    fd = os.memfd_create("sandbox")
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _launch(isolation: Isolation, limits: ResourceLimits, ends: tuple[int, ...]) -> None:
    """Confine this new process, and start the zygote in its place. Never returns."""
    try:
        os.setpgid(0, 0)
        _arrange(ends, keep=isolation.landlock.fd)
        # The kernel kills the whole group when the warden ends and its end of this pipe closes.
        fcntl.fcntl(zygote.LIFELINE, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(zygote.LIFELINE, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(zygote.LIFELINE, fcntl.F_SETFL, os.O_ASYNC)
        link = socket.socket(fileno=_LINK)
        try:
            isolation.confine(limits, link)
            link.send(b"confined")
            os.execve(INTERPRETER, _COMMAND, _ENVIRONMENT)
        except (CannotIsolate, OSError) as error:
            link.send(str(error).encode())
    finally:
        os._exit(zygote.BROKEN)


def _arrange(ends: tuple[int, ...], keep: int) -> None:
    """Move the descriptors to their numbers, and close all others but `keep`."""
    aside = [fcntl.fcntl(end, fcntl.F_DUPFD, _ABOVE) for end in ends]
    for place, end in enumerate(aside):
        os.dup2(end, place, inheritable=place != _LINK)
    for below, above in pairwise((_LINK, keep, _DESCRIPTORS_MAX)):
        os.closerange(below + 1, above)
