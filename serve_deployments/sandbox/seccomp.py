"""seccomp: restricts the system calls of a process, and lets its warden count some of them.

Filters are programs of classic BPF over (number, architecture, arguments); https://docs.kernel.org/userspace-api/
seccomp_filter.html. Calls that are not listed are refused. Filters cannot follow pointers, so no decision rests on a
pointer: Landlock restricts files.
"""

import ctypes
import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

from serve_deployments.sandbox.syscalls import Architecture


class Instruction(NamedTuple):
    code: int
    if_true: int
    if_false: int
    k: int


FilterBody = tuple[Instruction, ...]

_LOAD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_ARGUMENTS_AT = 16
_WORD = 0xFFFFFFFF

ALLOW: FilterBody = (Instruction(_RETURN, 0, 0, 0x7FFF0000),)
COUNT: FilterBody = (Instruction(_RETURN, 0, 0, 0x7FC00000),)
KILL: FilterBody = (Instruction(_RETURN, 0, 0, 0x80000000),)

CLONE_THREAD = 0x10000
_UNNAMED = 0o20000000  # the bit of O_TMPFILE that O_DIRECTORY does not have
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPES = 1, 1, 0xF
_OWNER_MAY_ALL = 0o700
_PR_SET_NAME = 15
# Queries on opening files and terminals, non-blocking mode and inheritance: TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO,
# FIONCLEX, FIOCLEX.
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ. F_SETOWN and F_SETSIG are absent: they
# send any signal to any process of the same user. Range locks are absent: the kernel does not bound their number.
_FCNTLS = (0, 1, 2, 3, 4, 1030, 1032)

_PLAIN = (
    "access alarm arch_prctl brk chdir clock_getres clock_gettime clock_nanosleep clone close close_range dup dup2 "
    "dup3 epoll_create1 epoll_ctl epoll_pwait epoll_wait eventfd2 execve exit exit_group faccessat faccessat2 fchdir "
    "fdatasync flock fstat fstatfs fsync ftruncate futex getcpu getcwd getdents64 getegid geteuid getgid getgroups "
    "getitimer getpgid getpgrp getpid getppid getrandom getresgid getresuid getrlimit getrusage getsid getsockname "
    "getsockopt gettid gettimeofday getuid kill lseek lstat madvise membarrier mmap mprotect mremap munmap nanosleep "
    "newfstatat pause pipe pipe2 poll ppoll pread64 preadv pselect6 pwrite64 pwritev read readlink readlinkat readv "
    "recvfrom rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask "
    "rt_sigreturn rt_sigsuspend rt_sigtimedwait sched_get_priority_max sched_get_priority_min sched_getaffinity "
    "sched_getparam sched_getscheduler sched_yield select sendfile set_robust_list set_tid_address setitimer "
    "setsockopt shutdown sigaltstack stat statfs statx sysinfo tgkill time times uname unlink unlinkat wait4 waitid "
    "write writev"
).split()
# The C library tries these first and falls back on older calls after ENOSYS.
_ABSENT = ("clone3", "openat2")


def refuse(number: int) -> FilterBody:
    return (Instruction(_RETURN, 0, 0, 0x00050000 | number),)


def when(
    argument: int, mask: int, value: int, then: FilterBody, otherwise: FilterBody, *, upper: bool = False
) -> FilterBody:
    """`then` where the lower (or upper) word of an argument under the mask is `value`."""
    return (
        Instruction(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument + (4 if upper else 0)),
        Instruction(_AND, 0, 0, mask),
        Instruction(_EQUAL, 0, len(then), value),
        *then,
        *otherwise,
    )


def when_listed(argument: int, values: Sequence[int], then: FilterBody, otherwise: FilterBody) -> FilterBody:
    body = otherwise
    for value in values:
        body = when(argument, _WORD, value, then, body)
    return body


def _when_null(argument: int, then: FilterBody, otherwise: FilterBody) -> FilterBody:
    return when(argument, _WORD, 0, when(argument, _WORD, 0, then, otherwise, upper=True), otherwise)


def _opening(flags: int) -> FilterBody:
    """Opening files: no unnamed files, and no truncation of read-only files, which Landlock 1 and 2 overlook."""
    read_only = when(flags, os.O_ACCMODE, os.O_RDONLY, refuse(errno.EPERM), ALLOW)
    opened = when(flags, os.O_TRUNC, os.O_TRUNC, read_only, ALLOW)
    return when(flags, _UNNAMED, _UNNAMED, refuse(errno.EOPNOTSUPP), opened)


def _assembled(architecture: Architecture, rules: dict[str, FilterBody], otherwise: FilterBody) -> FilterBody:
    program = [
        Instruction(_LOAD, 0, 0, 4),
        Instruction(_EQUAL, 1, 0, architecture.audit),
        *KILL,
        Instruction(_LOAD, 0, 0, 0),
    ]
    for name, body in rules.items():
        if name in architecture.numbers:
            program += [Instruction(_EQUAL, 0, len(body), architecture.numbers[name]), *body]
    return (*program, *otherwise)


def counted(architecture: Architecture) -> FilterBody:
    """The filter that asks the warden about new threads, processes, directories, files to write, execution and signals.

    No answer rests on a pointer, because a process could change the memory behind it.
    """
    writing = [
        when(flags, os.O_ACCMODE, os.O_RDONLY, when(flags, os.O_CREAT, os.O_CREAT, COUNT, ALLOW), COUNT)
        for flags in (1, 2)
    ]
    rules = {
        **dict.fromkeys(("clone", "execve", "kill", "tgkill"), COUNT),
        "open": writing[0],
        "openat": writing[1],
        "mkdir": COUNT,
        "mkdirat": COUNT,
    }
    return _assembled(architecture, rules, ALLOW)


def allowed(architecture: Architecture) -> FilterBody:
    """The filter of the calls that one process with threads needs to compute, and of those that the warden answers.

    No process can inspect another, and none has a socket but a connected pair of its own.
    """
    no = refuse(errno.EPERM)
    directory = [when(mode, _OWNER_MAY_ALL, _OWNER_MAY_ALL, ALLOW, no) for mode in (1, 2)]
    rules = {
        **dict.fromkeys(_PLAIN, ALLOW),
        **dict.fromkeys(_ABSENT, refuse(errno.ENOSYS)),
        "open": _opening(1),
        "openat": _opening(2),
        # The warden could not remove a directory that its owner cannot enter.
        "mkdir": directory[0],
        "mkdirat": directory[1],
        "ioctl": when_listed(1, _IOCTLS, ALLOW, refuse(errno.ENOTTY)),
        "fcntl": when_listed(1, _FCNTLS, ALLOW, no),
        "prctl": when_listed(0, (_PR_SET_NAME,), ALLOW, no),
        # A process may read its own limits.
        "prlimit64": when(0, _WORD, 0, _when_null(2, ALLOW, no), no),
        "socketpair": when(0, _WORD, _AF_UNIX, when(1, _SOCK_TYPES, _SOCK_STREAM, ALLOW, no), no),
        # A connected pair needs no address.
        "sendto": _when_null(4, ALLOW, no),
    }
    return _assembled(architecture, rules, no)


class _Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filters", ctypes.POINTER(_Filter))]


_SET_MODE_FILTER = 1
_NEW_LISTENER = 1 << 3


def install(architecture: Architecture, body: FilterBody, *, listen: bool = False) -> int:
    """Put this process under a filter for ever; returns the descriptor of counted calls if `listen`. Raises OSError."""
    filters = (_Filter * len(body))(*(_Filter(*instruction) for instruction in body))
    program = _Program(len(body), filters)
    libc = ctypes.CDLL(None, use_errno=True)
    returned = int(
        libc.syscall(
            ctypes.c_long(architecture.numbers["seccomp"]),
            ctypes.c_long(_SET_MODE_FILTER),
            ctypes.c_long(_NEW_LISTENER if listen else 0),
            ctypes.byref(program),
        )
    )
    if returned < 0:
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")
    return returned
