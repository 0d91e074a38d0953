"""Confinement: a process restricts itself before it becomes the zygote, and verifies the restrictions.

Neither privilege nor user namespaces are needed: confinement works for an ordinary user and for root. It also
works in a container under the default seccomp profiles of Docker, containerd and Podman.
"""

import ctypes
import os
import resource
import socket
import sys
from collections.abc import Callable
from typing import NamedTuple

from serve_deployments.sandbox import seccomp
from serve_deployments.sandbox.landlock import EXECUTE, LISTING, READ, WRITE, Landlock
from serve_deployments.sandbox.syscalls import Architecture, architecture

FILE_BYTES_MAX = 1 << 20
OPEN_FILES_MAX = 64
SIGNALS_MAX = 64
STACK_BYTES = 8 << 20
NICENESS = 5
# The real path: through a virtual environment's link the interpreter would look for that environment's packages.
INTERPRETER = os.path.realpath(sys.executable)

_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x20080522
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
_READABLE = ("/etc/ld.so.cache", "/usr/share/zoneinfo", "/dev/urandom")
# Not readable: installed packages, and modules that call arbitrary machine code by name.
_WITHHELD = ("site-packages", "dist-packages", "ctypes", "lib-dynload", "test", "idlelib", "ensurepip")


class CannotIsolate(Exception):
    """The machine lacks something that the sandbox needs."""


class ResourceLimits(NamedTuple):
    cpu_s: int
    memory_mb: int


class Isolation:
    """The set-up for all tests of a program. Raises CannotIsolate, which names what is missing."""

    def __init__(self, directory: str) -> None:
        known = architecture()
        if known is None:
            raise CannotIsolate(f"no list of system calls for {os.uname().machine}")
        self.architecture: Architecture = known
        self.directory = directory
        try:
            self.landlock = Landlock(known)
            _grant(self.landlock, directory)
        except OSError as error:
            raise CannotIsolate(f"Landlock: {error.strerror}") from error

    def confine(self, limits: ResourceLimits, link: socket.socket) -> None:
        """Confine this process for ever, and send the descriptor of asked calls to the warden through `link`.

        Raises CannotIsolate when a step failed, or when a verified restriction does not hold.
        """
        try:
            os.chdir(self.directory)
            _first_victim()
            _limit(limits)
            _give_up_privileges(self.architecture)
            self.landlock.restrict()
            os.close(self.landlock.fd)
            listener = seccomp.install(self.architecture, seccomp.counted(self.architecture), listen=True)
            socket.send_fds(link, [b"listener"], [listener])
            os.close(listener)
            seccomp.install(self.architecture, seccomp.allowed(self.architecture))
        except OSError as error:
            raise CannotIsolate(str(error.strerror or error)) from error
        _verify()


def _grant(landlock: Landlock, directory: str) -> None:
    library = os.path.dirname(os.__file__)
    extensions = os.path.join(library, "lib-dynload")
    landlock.allow([library], LISTING)
    landlock.allow(_entries(library, lambda name: name not in _WITHHELD), READ)
    landlock.allow(_entries(extensions, lambda name: not name.startswith("_ctypes")), READ)
    for libraries in {os.path.realpath(path) for path in _LIBRARIES}:
        landlock.allow(_entries(libraries, lambda name: not name.startswith("python")), READ)
    landlock.allow(_READABLE, READ)
    beside = os.path.dirname(library)
    landlock.allow(_entries(beside, lambda name: name.startswith("libpython")), READ)
    landlock.allow([INTERPRETER, *map(os.path.realpath, _LOADERS)], EXECUTE)
    landlock.allow(["/dev/null"], READ | WRITE)
    landlock.allow([directory], READ | WRITE)


def _entries(directory: str, wanted: Callable[[str], bool]) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(directory) if wanted(entry.name)]
    except FileNotFoundError:
        return []


def _first_victim() -> None:
    """Yield CPU time to the replica, and let the kernel end this process first when memory runs out."""
    os.nice(NICENESS)
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _limit(limits: ResourceLimits) -> None:
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
    # SIGXCPU first, which names the reason, then SIGKILL.
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))


def _give_up_privileges(known: Architecture) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"no_new_privs: {os.strerror(ctypes.get_errno())}")
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    nothing = (ctypes.c_uint32 * 6)()
    if libc.syscall(ctypes.c_long(known.numbers["capset"]), ctypes.byref(header), ctypes.byref(nothing)) != 0:
        raise OSError(ctypes.get_errno(), f"capset: {os.strerror(ctypes.get_errno())}")


def _verify() -> None:
    """Try operations that must fail: a kernel may accept a restriction and not enforce it."""
    _must_fail("files", lambda: os.close(os.open("/", os.O_RDONLY | os.O_DIRECTORY)))
    _must_fail("the network", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close())
    _must_fail("new processes", lambda: os.fork() or os._exit(0))


def _must_fail(what: str, attempt: Callable[[], object]) -> None:
    try:
        attempt()
    except PermissionError:
        return
    raise CannotIsolate(f"{what} can be had in spite of all that was set")
