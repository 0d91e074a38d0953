"""A real PostgreSQL server of the tests' own, in a temporary directory."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.conftest import free_port

MISSING = "PostgreSQL is missing; as root: apt-get install --no-install-recommends postgresql"


def programs() -> Path:
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = debian[-1] if debian else shutil.which("initdb")
    assert found is not None, MISSING
    return Path(found).parent


class PostgresServer:
    """A server that can be killed and started again on the same port and data. It never runs as root."""

    def __init__(self) -> None:
        self._programs = programs()
        self._directory = Path(tempfile.mkdtemp(prefix="archive-"))
        self._as_user = (
            ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
        )
        if self._as_user:
            shutil.chown(self._directory, "postgres", "postgres")
        self._data = str(self._directory / "data")
        self._port = str(free_port())
        self._run("initdb", "--pgdata", self._data, "--auth", "trust", "--username", "archive", "--no-sync")

    def _run(self, program: str, *options: str) -> None:
        command = [*self._as_user, str(self._programs / program), *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self._directory)

    @property
    def data(self) -> Path:
        return Path(self._data)

    def start(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self._port,
            "unix_socket_directories": str(self._directory),
            "fsync": "off",
        }
        options = " ".join(f"--{name}={value}" for name, value in settings.items())
        log = str(self._directory / "log")
        self._run("pg_ctl", "start", "--wait", "--pgdata", self._data, "--log", log, "--options", options)

    def use_tls(self) -> Path:
        """Let the next start take connections with TLS too; the certificate for 127.0.0.1, signed by itself."""
        certificate = self.data / "server.crt"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=tests", "-days", "2"]
        command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "server.key", "-out", "server.crt"]
        subprocess.run([*self._as_user, *command], check=True, capture_output=True, cwd=self.data)
        with (self.data / "postgresql.conf").open("a") as file:
            file.write("ssl = on\n")
        return certificate

    def kill(self) -> None:
        self._run("pg_ctl", "stop", "--wait", "--pgdata", self._data, "--mode", "immediate")

    def remove(self) -> None:
        if (self._directory / "data" / "postmaster.pid").exists():
            self.kill()
        shutil.rmtree(self._directory)

    def database(self, name: str) -> str:
        self._run("createdb", "--host", "127.0.0.1", "--port", self._port, "--username", "archive", name)
        return f"postgresql://archive@127.0.0.1:{self._port}/{name}"
