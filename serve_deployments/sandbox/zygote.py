"""The zygote: a fresh, confined interpreter that forks a process for each test, which runs the program.

The zygote has loaded no module that reaches sockets or machine code, and runs no foreign code. The warden (`child`)
arranges its descriptors. Commands are lines on CONTROL, events are lines on STATUS. No expected value enters here. A
program's process holds no barrier: foreign code can reach all of it, and can only forge its own result.
"""

import _thread
import json
import os
import sys
import types
from itertools import pairwise
from typing import Any

# The module name, and file name, of a program's text.
PROGRAM = "solution"

# The descriptors of a zygote, after standard input (the test's input), output and error.
ORDER, CONTROL, STATUS, RESULT, NOTES, LIFELINE = range(3, 9)
# Its events, on STATUS.
READY, STARTED, ENDED, EXITED = "ready", "started", "ended", "exited"
# The exit status of the zygote and its processes when they could not do their work.
BROKEN = 70

# The commands on CONTROL: call a function, or run the program as a script.
CALL, SCRIPT = b"call", b"script"
# A process writes LOADED on RESULT, then one of the other lines, and after it the value as JSON or the error's text.
LOADED, RETURNED, FINISHED, RAISED = b"loaded\n", b"returned\n", b"finished\n", b"raised\n"

THREAD_STACK_BYTES = 2 << 20
# Modules by which a program would reach memory or machine code.
DENIED = frozenset(("ctypes", "_ctypes", "_testcapi", "_testinternalcapi", "_xxtestfuzz", "_xxsubinterpreters"))

# Attempts at these are reported: whole groups of audit events, and single ones.
_GROUPS = ("ctypes", "pty", "subprocess", "socket", "ftplib", "http", "urllib", "smtplib")
_EVENTS = frozenset(
    "os.system os.exec os.fork os.forkpty os.posix_spawn os.spawn os.kill os.killpg os.putenv os.setxattr os.symlink "
    "os.link os.chmod os.chown os.truncate signal.pthread_kill sys.settrace sys.setprofile gc.get_objects "
    "gc.get_referrers resource.setrlimit resource.prlimit fcntl.fcntl".split()
)
_AF_UNIX = 1
_NOTE_BYTES_MAX = 120
_REASON_CHARS_MAX = 500
_LINE_BYTES = 64
_DESCRIPTORS_MAX = 1_024


def main(program: str) -> None:
    _thread.stack_size(THREAD_STACK_BYTES)
    os.environ.clear()
    os.close(ORDER)
    _say(READY)
    while command := os.read(CONTROL, _LINE_BYTES):
        _test(program, command.strip())


def _test(program: str, command: bytes) -> None:
    """One test: its process stays a zombie until the warden, which may kill it, confirms the end."""
    pid = os.fork()
    if pid == 0:
        _run(program, command)
    _say(STARTED, pid)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    _say(ENDED)
    os.read(CONTROL, _LINE_BYTES)
    _say(EXITED, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _say(*words: object) -> None:
    os.write(STATUS, " ".join(map(str, words)).encode() + b"\n")


def _run(program: str, command: bytes) -> None:
    try:
        for below, above in pairwise((2, RESULT, NOTES, _DESCRIPTORS_MAX)):
            os.closerange(below + 1, above)
        os.lseek(0, 0, os.SEEK_SET)
        _watch()
        try:
            said = _script(program) if command == SCRIPT else _call(program, sys.stdin.read())
        except BaseException as error:
            # A program may raise anything, SystemExit too: the test fails, and the error is the reason.
            said = RAISED + _described(error).encode("utf-8", "replace")
        _write(said)
        os._exit(0)
    finally:
        os._exit(BROKEN)


def _call(program: str, order: str) -> bytes:
    name, arguments = json.loads(order)
    module = _module(PROGRAM)
    exec(compile(program, PROGRAM, "exec", dont_inherit=True), vars(module))
    _write(LOADED)
    if name not in vars(module):
        raise NameError(f"the program does not define {name!r}")
    value = vars(module)[name](*arguments)
    try:
        return RETURNED + json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"the value is not JSON: {error}") from None


def _script(program: str) -> bytes:
    """Run the program as a script; an exit with status 0 is an end like any other."""
    code = compile(program, PROGRAM, "exec", dont_inherit=True)
    _write(LOADED)
    try:
        exec(code, vars(_module("__main__")))
    except SystemExit as exit_:
        if exit_.code not in (None, 0):
            raise
    sys.stdout.flush()
    return FINISHED


def _module(name: str) -> types.ModuleType:
    module = sys.modules[name] = types.ModuleType(name)
    return module


def _write(said: bytes) -> None:
    with open(RESULT, "wb", closefd=False) as file:
        file.write(said)


def _described(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename == PROGRAM:
        return f"SyntaxError: {error.msg} (line {error.lineno} of the program)"
    line, trace = 0, error.__traceback__
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == PROGRAM else line
        trace = trace.tb_next
    text = f"{type(error).__name__}: {error}".rstrip(": ")[:_REASON_CHARS_MAX]
    return f"{text} (line {line} of the program)" if line else text


def _watch() -> None:
    """Report attempts at withheld operations on NOTES, and deny the modules that no program needs."""
    seen: set[str] = set()

    def note(tried: str) -> None:
        line = tried.encode("ascii", "replace").replace(b"\n", b" ")[:_NOTE_BYTES_MAX]
        if tried not in seen:
            seen.add(tried)
            os.write(NOTES, line + b"\n")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        group = event.partition(".")[0]
        if event == "import":
            if arguments[0].partition(".")[0] in DENIED:
                note(f"import {arguments[0]}")
                raise ImportError(f"no module {arguments[0]!r} here")
        elif event == "open":
            path, _, flags = arguments
            if flags & (os.O_WRONLY | os.O_RDWR) and str(path).startswith(("/", "..")) and path != "/dev/null":
                note(f"open {path} for writing")
        elif event in _EVENTS or group in _GROUPS:
            # A pair within the process is no attempt: asyncio makes one.
            if event != "socket.__new__" or arguments[1] != _AF_UNIX:
                note(event)

    sys.addaudithook(hook)
