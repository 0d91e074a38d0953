"""Commands in namespaces of their own: without a network, without a user's name, with mounts."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

DELIBERATE = Path(sys.executable).with_name("deliberate")

MOUNTED = ("unshare", "--map-root-user", "--mount", "sh", "-c")
APART = ("unshare", "--map-root-user", "--net", "sh", "-c")
NAMELESS = ("unshare", "--map-user=54321", "--map-group=54321", "sh", "-c")
HERE = ("sh", "-c")

LOOPBACK_UP = 'import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 0x49))'


def may(around: tuple[str, ...]) -> bool:
    with suppress(OSError):
        return subprocess.run([*around, "true"], capture_output=True, check=False).returncode == 0
    return False
