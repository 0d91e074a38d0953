"""The program's side: loads the program, and answers the test's requests. It never learns a verdict.

Nothing here is a barrier: foreign code in the same process can reach all of it, and can only return other values.
"""

import os
import sys
import types
from typing import Any

from serve_deployments.sandbox.peer import Peer
from serve_deployments.sandbox.protocol import PROGRAM
from serve_deployments.sandbox.remote import ProcessGone
from serve_deployments.sandbox.values import has_form

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


def serve(program: str, incoming: int, outgoing: int, notes: int) -> None:
    """Answer the test's process until it ends."""
    peer = Peer(incoming, outgoing, strict=False)
    module = types.ModuleType(PROGRAM)

    def load() -> list[Any]:
        """The module, its names with values that are not plain, and the names of the modules that it imports."""
        sys.modules[PROGRAM] = module
        exec(compile(program, PROGRAM, "exec", dont_inherit=True), vars(module))
        own = {name: value for name, value in vars(module).items() if not name.startswith("__")}
        imported = [name for name, value in own.items() if isinstance(value, types.ModuleType)]
        return [module, {name: own[name] for name in own if name not in imported and not has_form(own[name])}, imported]

    peer.operations["load"] = load
    _watch(notes)
    try:
        peer.serve()
    except ProcessGone:
        return


def _watch(notes: int) -> None:
    """Report attempts at withheld operations, and deny the modules that no program needs."""
    seen: set[str] = set()

    def note(tried: str) -> None:
        line = tried.encode("ascii", "replace").replace(b"\n", b" ")[:_NOTE_BYTES_MAX]
        if tried not in seen:
            seen.add(tried)
            os.write(notes, line + b"\n")

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
