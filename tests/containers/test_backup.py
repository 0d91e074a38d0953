"""A backup of the volumes, taken and restored by the commands of docs/operations.md."""

import json
import subprocess
from pathlib import Path

import httpx

from tests.containers.docker import Project
from tests.containers.load import council

IMAGE = "deliberation-gateway:0.1.0"
BACKUP_S = 120


def volumes(stack: Project, mode: str) -> list[str]:
    names = {"nats-data": "/data", "archive-data": "/archive"}
    return [word for name, path in names.items() for word in ("--volume", f"{stack.name}_{name}:{path}:{mode}")]


def back_up(stack: Project, target: Path) -> None:
    command = ["docker", "run", "--rm", "--network", "none", *volumes(stack, "ro"), IMAGE]
    with target.open("wb") as output:
        tar = [*command, "tar", "--create", "/data", "/archive"]
        subprocess.run(tar, env=stack.environment, stdout=output, check=True, timeout=BACKUP_S)


def restore(stack: Project, source: Path) -> None:
    command = ["docker", "run", "--rm", "--interactive", "--network", "none", *volumes(stack, "rw"), IMAGE]
    with source.open("rb") as packed:
        tar = [*command, "tar", "--extract", "--directory", "/"]
        subprocess.run(tar, env=stack.environment, stdin=packed, check=True, timeout=BACKUP_S)


async def read(client: httpx.AsyncClient, deliberation_id: str) -> tuple[bytes, bytes]:
    """Returns the deliberation and the first page of its events, as they are sent."""
    found = await client.get(f"/deliberations/{deliberation_id}")
    events = await client.get(f"/deliberations/{deliberation_id}/events", headers={"Accept": "application/json"})
    return found.raise_for_status().content, events.raise_for_status().content


async def test_a_restored_backup_has_the_keys_the_log_and_the_archive(
    stack: Project, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    ended = await council(client)
    (await client.get("/deliberations", params={"after": "now"})).raise_for_status()
    before = await read(client, ended["id"])
    stack.compose("stop")
    back_up(stack, tmp_path / "backup.tar")
    stack.compose("down", "--volumes")

    stack.compose("up", "volumes")
    restore(stack, tmp_path / "backup.tar")
    export = ("run", "--rm", "-T", "--no-deps", "migration", "deliberate", "export", "-")
    archived = [json.loads(line) for line in stack.compose(*export).splitlines()]
    assert ended["id"] in json.dumps(archived), "before anything is copied from the log again"
    stack.up()

    assert await read(client, ended["id"]) == before, "the same bytes, by the same key"
    listed = (await client.get("/deliberations", params={"after": "now"})).json()
    assert ended["id"] in [item["id"] for item in listed["items"]]
    assert (await council(client))["status"] == "completed"
