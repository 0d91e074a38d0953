"""Checks of the machine before a stack starts: open files, loopback, paths and space. A refusal names the lack."""

import os
import resource
import shutil
import socket
import tempfile
from pathlib import Path

from app.cli.exits import CommandError, Exit, cause

LOOPBACK = "127.0.0.1"
FREE_BYTES_MIN = 16 * 1024 * 1024
# Of Ray's shared memory, which it would else keep on the disk.
OBJECT_STORE_BYTES = 128 * 1024 * 1024
# SQLite's paths have at most 512 bytes, and its log's path is the file's with a suffix.
_PATH_BYTES_MAX = 480
# nats-server needs this many; Ray and the gateway raise their limits further.
_OPEN_FILES_MIN = 1_024


def check_machine() -> None:
    """Raise the limit of open files for all children; raises CommandError where that or loopback is not to be had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < _OPEN_FILES_MIN:
        detail = f"{hard} files may be open in a process here, and {_OPEN_FILES_MIN} are needed"
        raise CommandError(Exit.USAGE, "open_files_few", detail, remedy="raise what `ulimit -Hn` shows")
    if 0 <= soft < _OPEN_FILES_MIN:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES_MIN, hard))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # A datagram socket that connects looks up the route, and sends nothing.
            probe.connect((LOOPBACK, 9))
    except OSError as error:
        raise address_unusable(LOOPBACK, error) from error


def address_unusable(host: str, error: OSError) -> CommandError:
    remedy = "bring up the loopback interface" if host == LOOPBACK else "name an address of this machine by --host"
    return CommandError(Exit.USAGE, "address_unusable", f"{host} cannot be used: {cause(error)}", remedy=remedy)


def check_path(path: str) -> None:
    """Raises OSError for a path that a part could not read in its configuration."""
    # A locale of another encoding reads other letters from the same bytes.
    if os.fsencode(path) != path.encode(errors="replace"):
        raise OSError(0, "its path is not UTF-8, or this locale is not")
    if not path.isprintable():
        raise OSError(0, "its path has characters that cannot be printed")
    if len(path.encode()) > _PATH_BYTES_MAX:
        raise OSError(0, f"its path is longer than {_PATH_BYTES_MAX} bytes, which SQLite does not open")


def check_room(path: Path) -> None:
    """Raises OSError for a directory that is not writable, or has less room than FREE_BYTES_MIN."""
    tempfile.TemporaryFile(dir=path).close()
    if (free_bytes := shutil.disk_usage(path).free) < FREE_BYTES_MIN:
        raise OSError(0, f"{free_bytes >> 20} MiB are free there, and {FREE_BYTES_MIN >> 20} are needed")
