"""A Docker daemon, and the stack of deploy/compose/compose.yaml as a Compose project in it."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.environments import ROOT, Environment

ENVIRONMENT = Environment(Path(os.environ.get("CONTAINERS_VENV") or ROOT / ".venv-containers").absolute())
PACKED_COMPOSE = ENVIRONMENT.path / "docker-compose"
COMPOSE_FILES = ROOT / "deploy/compose"
DAEMON_S = 60


class ContainersFailed(Exception):
    """A daemon, an image or a container is not to be had; the text has the cause or the remedy."""


def run(*command: str | Path, environment: Mapping[str, str], timeout_s: float = 120) -> str:
    """Returns what the command printed; raises ContainersFailed with all of it when the command fails."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise ContainersFailed(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def succeeds(*command: str | Path, environment: Mapping[str, str]) -> bool:
    return subprocess.run(command, env=environment, capture_output=True, timeout=DAEMON_S, check=False).returncode == 0


@contextmanager
def docker_daemon() -> Iterator[dict[str, str]]:
    """Yields the environment variables by which `docker` reaches a daemon.

    It is the daemon that answers already, else one of the tests' own, which keeps its images in ENVIRONMENT.
    """
    given = dict(os.environ)
    if succeeds("docker", "version", environment=given):
        yield given
        return
    if shutil.which("dockerd") is None or os.getuid() != 0:
        raise ContainersFailed("no Docker daemon answers; start one, or install docker.io and run this as root")
    log = ENVIRONMENT.path / "dockerd.log"
    # Sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="dockerd-", ignore_cleanup_errors=True) as folder, log.open("wb") as output:
        own = given | {"DOCKER_HOST": f"unix://{folder}/socket"}
        places = {"--data-root": f"{ENVIRONMENT.path}/docker", "--exec-root": folder, "--pidfile": f"{folder}/pid"}
        words = [word for option in places.items() for word in option]
        # Compose makes a network for each of the file's. A root without CAP_SYS_RESOURCE may not lower the score.
        command = ["dockerd", *words, "--host", own["DOCKER_HOST"], "--bridge", "none", "--oom-score-adjust", "0"]
        daemon = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            _wait_for(daemon, own, log)
            yield own
        finally:
            daemon.terminate()
            daemon.wait(timeout=DAEMON_S)


def _wait_for(daemon: subprocess.Popen[bytes], environment: Mapping[str, str], log: Path) -> None:
    until = time.monotonic() + DAEMON_S
    while not succeeds("docker", "version", environment=environment):
        if daemon.poll() is not None or time.monotonic() > until:
            raise ContainersFailed(f"dockerd does not answer:\n{log.read_text()[-4000:]}")
        time.sleep(0.2)


@dataclass(frozen=True)
class Project:
    """The Compose project `name` of `files`; `environment` has the variables that they ask for."""

    name: str
    environment: dict[str, str]
    files: tuple[str, ...] = ("compose.yaml",)

    def compose(self, *words: str, timeout_s: float = 120) -> str:
        plugin = succeeds("docker", "compose", "version", environment=self.environment)
        command = ["docker", "compose"] if plugin else [str(PACKED_COMPOSE)]
        options = [word for file in self.files for word in ("--file", str(COMPOSE_FILES / file))]
        return run(
            *command, "--project-name", self.name, *options, *words, environment=self.environment, timeout_s=timeout_s
        )

    def docker(self, *words: str) -> str:
        return run("docker", *words, environment=self.environment)

    def up(self, *services: str) -> None:
        """Start the services, by default all, as docs/operations.md does; return once they are healthy."""
        self.compose("up", "--wait", "--no-build", *services, timeout_s=300)

    def services(self) -> list[str]:
        return sorted(self.compose("config", "--services").split())

    def exec(self, service: str, *command: str) -> str:
        return self.compose("exec", "-T", service, *command)

    def python(self, service: str, program: str) -> str:
        return self.exec(service, "python", "-c", program).strip()

    def inspect(self, service: str) -> dict[str, Any]:
        containers = self.compose("ps", "--all", "--quiet", service).split()
        (found,) = json.loads(self.docker("inspect", *containers))
        return found

    def status(self, service: str) -> dict[str, str]:
        """Returns the fields of the kernel's status of a container's first process."""
        status = Path(f"/proc/{self.inspect(service)['State']['Pid']}/status").read_text()
        return {
            name: value.split()[0]
            for name, _, value in (line.partition(":") for line in status.splitlines())
            if value.strip()
        }

    def kill(self, service: str) -> int:
        """Kill a container's first process, as a crash would, and return its number of restarts before.

        After `docker kill` Docker would not start it again.
        """
        found = self.inspect(service)
        os.kill(found["State"]["Pid"], signal.SIGKILL)
        return found["RestartCount"]

    def is_restarted(self, service: str, restarts_before: int) -> bool:
        found = self.inspect(service)
        return found["RestartCount"] > restarts_before and found["State"].get("Health", {}).get("Status") == "healthy"


# A killed Ray starts anew, on two cores in half a minute, and each healthcheck has its interval.
RESTART_S = 180


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition whose check takes a command."""
    async with asyncio.timeout(RESTART_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.2)
