"""A real PgBouncer of the tests' own, in transaction mode and else with its default settings."""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from sqlalchemy import make_url

from tests.conftest import free_port

MISSING = "PgBouncer is missing; as root: apt-get install --no-install-recommends pgbouncer"


class PgBouncer:
    """A pooler before the server of a URL."""

    def __init__(self, server_url: str, **settings: str) -> None:
        program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None, MISSING
        self._directory = Path(tempfile.mkdtemp(prefix="pgbouncer-", dir="/tmp"))
        said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
        self.version = tuple(map(int, re.findall(r"\d+", said)[:2]))
        self._port = free_port()
        server = make_url(server_url)
        (self._directory / "users").write_text(f'"{server.username}" ""\n')
        given = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self._port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(self._directory / "users"),
            "pool_mode": "transaction",
            **settings,
        }
        lines = ["[databases]", f"* = host={server.host} port={server.port}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in given.items()]
        (self._directory / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
        command = [program, str(self._directory / "pgbouncer.ini")]
        if os.getuid() == 0:
            for path in (self._directory, *self._directory.iterdir()):
                shutil.chown(path, "postgres", "postgres")
            command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]
        log = self._directory / "log"
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(command, stderr=stderr)
        while not self._answers():
            assert self._process.poll() is None, log.read_text()
            time.sleep(0.02)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port)):
            return True
        return False

    @property
    def keeps_statements(self) -> bool:
        """Whether it keeps prepared statements by its default settings."""
        return self.version >= (1, 24)

    def url(self, server_url: str) -> str:
        return make_url(server_url).set(host="127.0.0.1", port=self._port).render_as_string()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=10)
        shutil.rmtree(self._directory)
