"""Landlock: a process restricts the files that it may reach from then on.

https://docs.kernel.org/userspace-api/landlock.html. Version 1 of its ABI is enough. Rights of later versions are used
when the kernel has them; the filters of `seccomp` deny them in any case.
"""

import ctypes
import fcntl
import os
from collections.abc import Iterable

from serve_deployments.sandbox.syscalls import Architecture

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REGULAR = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_REFER, _TRUNCATE = 1 << 13, 1 << 14
READ = _READ_FILE | _READ_DIR
EXECUTE = 1 << 0 | _READ_FILE
WRITE = _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REGULAR | _REFER | _TRUNCATE
LISTING = _READ_DIR

# The rights on files that each version of the ABI knows.
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_FILE_RIGHTS_NEWEST = (1 << 16) - 1
_NETWORK_FROM, _SCOPE_FROM = 4, 6
_ALL_NETWORK, _ALL_SCOPES = 0b11, 0b11
_RIGHTS_OF_ANY_FILE = EXECUTE | _WRITE_FILE | _TRUNCATE

_VERSION_FLAG = 1
_FD_MIN = 100
_PATH_BENEATH = 1


class _RulesetAttributes(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


class Landlock:
    """A ruleset. Every method raises OSError where the kernel refuses."""

    def __init__(self, architecture: Architecture) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._numbers = architecture.numbers
        self.abi = self._call("landlock_create_ruleset", None, 0, _VERSION_FLAG)
        self._rights = _FILE_RIGHTS.get(self.abi, _FILE_RIGHTS_NEWEST)
        attributes = _RulesetAttributes(
            self._rights,
            _ALL_NETWORK if self.abi >= _NETWORK_FROM else 0,
            _ALL_SCOPES if self.abi >= _SCOPE_FROM else 0,
        )
        size = 24 if self.abi >= _SCOPE_FROM else 16 if self.abi >= _NETWORK_FROM else 8
        fd = self._call("landlock_create_ruleset", ctypes.byref(attributes), size, 0)
        # Above the numbers that the zygote's descriptors get.
        self.fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FD_MIN)
        os.close(fd)

    def _call(self, name: str, *arguments: object) -> int:
        passed = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
        returned = int(self._libc.syscall(ctypes.c_long(self._numbers[name]), *passed))
        if returned < 0:
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
        return returned

    def allow(self, paths: Iterable[str], rights: int) -> None:
        """Grant rights on files, and on directories with everything below them; missing paths are skipped."""
        for path in paths:
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                granted = rights & self._rights
                if not os.path.isdir(path):
                    granted &= _RIGHTS_OF_ANY_FILE
                rule = _PathBeneath(granted, fd)
                self._call("landlock_add_rule", self.fd, _PATH_BENEATH, ctypes.byref(rule), 0)
            finally:
                os.close(fd)

    def restrict(self) -> None:
        self._call("landlock_restrict_self", self.fd, 0)
