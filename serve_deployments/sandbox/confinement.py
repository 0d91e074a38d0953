"""Confinement: what a child does to itself before it runs anything, and how it makes sure that it worked.

Nothing here needs a privilege: it works for an ordinary user, within a container under the default seccomp profiles of
Docker, containerd and Podman, and for root. User namespaces, which those profiles deny, are not needed.
"""

import _thread
import ctypes
import os
import resource
import signal
import socket
from collections.abc import Callable
from typing import NamedTuple

from serve_deployments.sandbox import seccomp
from serve_deployments.sandbox.landlock import LISTING, READ, WRITE, Landlock
from serve_deployments.sandbox.syscalls import Architecture, architecture

FILE_BYTES_MAX = 1 << 20
OPEN_FILES_MAX = 64
SIGNALS_MAX = 64
STACK_BYTES = 8 << 20
THREAD_STACK_BYTES = 2 << 20

NICENESS = 5

_M_ARENA_MAX = -8
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CAPABILITY_VERSION = 0x20080522
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_READABLE = ("/etc/ld.so.cache", "/usr/share/zoneinfo", "/dev/urandom")
# Not readable: other people's packages, and the way to call arbitrary machine code by name.
_WITHHELD = ("site-packages", "dist-packages", "ctypes", "lib-dynload", "test", "idlelib", "ensurepip")


class CannotIsolate(Exception):
    """Something that the sandbox needs is not to be had here."""


class ResourceLimits(NamedTuple):
    """What one test may use: seconds of the processor, and megabytes of address space."""

    cpu_s: int
    memory_mb: int


class Isolation:
    """What is set up once for all tests of a program. CannotIsolate says what is missing."""

    def __init__(self, directory: str) -> None:
        known = architecture()
        if known is None:
            raise CannotIsolate(f"no list of system calls for {os.uname().machine}")
        self.architecture: Architecture = known
        self.directory = directory
        try:
            self._landlock = Landlock(known)
            _grant(self._landlock, directory)
        except OSError as error:
            raise CannotIsolate(f"Landlock: {error.strerror}") from error

    @property
    def landlock_abi(self) -> int:
        """The version of Landlock's ABI."""
        return self._landlock.abi

    @property
    def landlock_fd(self) -> int:
        """The descriptor of the ruleset, which a child must keep until it is confined."""
        return self._landlock.fd

    def confine(self, limits: ResourceLimits, link: socket.socket) -> None:
        """Confine this process, for ever, and hand the descriptor of counted calls to the warden through `link`.

        CannotIsolate: a part of it failed, or did not hold when it was tried.
        """
        try:
            os.chdir(self.directory)
            _first_victim()
            _limit(limits)
            _give_up_privileges(self.architecture)
            self._landlock.restrict()
            os.close(self._landlock.fd)
            listener = seccomp.install(self.architecture, seccomp.counted(self.architecture), listen=True)
            socket.send_fds(link, [b"listener"], [listener])
            os.close(listener)
            seccomp.install(self.architecture, seccomp.allowed(self.architecture, os.getpid()))
        except OSError as error:
            raise CannotIsolate(str(error.strerror or error)) from error
        _verify()


def _grant(landlock: Landlock, directory: str) -> None:
    library = os.path.dirname(os.__file__)
    extensions = os.path.join(library, "lib-dynload")
    landlock.allow([library], LISTING)
    landlock.allow(_entries(library, lambda name: name not in _WITHHELD), READ)
    landlock.allow(_entries(extensions, lambda name: not name.startswith("_ctypes")), READ)
    for libraries in {os.path.realpath(each) for each in _LIBRARIES}:
        landlock.allow(_entries(libraries, lambda name: not name.startswith("python")), READ)
    landlock.allow(_READABLE, READ)
    landlock.allow(["/dev/null"], READ | WRITE)
    landlock.allow([directory], READ | WRITE)


def _entries(directory: str, wanted: Callable[[str], bool]) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(directory) if wanted(entry.name)]
    except FileNotFoundError:
        return []


def _first_victim() -> None:
    """Work comes before what is tested; and where memory runs out, the kernel shall end this process first."""
    os.nice(NICENESS)
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _limit(limits: ResourceLimits) -> None:
    # What threads reserve and do not use counts as well: without this a handful of them would be the most.
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    _thread.stack_size(THREAD_STACK_BYTES)
    for which, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, SIGNALS_MAX),
        (resource.RLIMIT_FSIZE, FILE_BYTES_MAX),
        (resource.RLIMIT_NOFILE, OPEN_FILES_MAX),
        (resource.RLIMIT_AS, limits.memory_mb << 20),
        (resource.RLIMIT_STACK, STACK_BYTES),
    ):
        _, hard = resource.getrlimit(which)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (bound, bound))
    # First a signal that names the reason, then the end.
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))


def _give_up_privileges(known: Architecture) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"no_new_privs: {os.strerror(ctypes.get_errno())}")
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    nothing = (ctypes.c_uint32 * 6)()
    if libc.syscall(ctypes.c_long(known.numbers["capset"]), ctypes.byref(header), ctypes.byref(nothing)) != 0:
        raise OSError(ctypes.get_errno(), f"capset: {os.strerror(ctypes.get_errno())}")


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends. CannotIsolate: it has ended already, or it cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
        raise CannotIsolate("the child would outlive its warden")


def _verify() -> None:
    """Try what must fail: a kernel that says yes and does nothing would be the worst of all."""
    _must_fail("files", lambda: os.close(os.open("/", os.O_RDONLY | os.O_DIRECTORY)))
    _must_fail("the network", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close())
    _must_fail("new processes", lambda: os.fork() or os._exit(0))


def _must_fail(what: str, attempt: Callable[[], object]) -> None:
    try:
        attempt()
    except PermissionError:
        return
    raise CannotIsolate(f"{what} can be had in spite of all that was set")
