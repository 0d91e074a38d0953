import asyncio
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli.render.progress import ChildReady, ChildStarted, StackStopped
from app.cli.stack.children import stack_children
from app.cli.stack.layout import StackOptions, plan_stack
from app.cli.stack.supervisor import marked, supervised
from app.log.journal import JetStreamJournal
from app.log.stream_settings import StreamSettings
from app.log.streams import plan
from tests.integration.cli.children import Events, alive, listeners
from tests.stack_user import admit


async def test_nats_keeps_its_port_and_store_after_a_kill_and_a_new_stack(tmp_path: Path) -> None:
    events = Events()

    async def write_and_read(url: str, write: bool) -> bytes:
        journal = await JetStreamJournal.connect(url)
        try:
            async with asyncio.timeout(10):
                assert await plan(journal, StreamSettings()) == ([], [])
                if write:
                    await journal.client.jetstream().publish("planning.kept", b"kept")
                return (await journal.client.jetstream().get_last_msg("PLANNING_EVENTS", "planning.kept")).data or b""
        finally:
            await journal.close()

    layout = plan_stack(StackOptions(port=0, nats_port=0, data_dir=tmp_path), events)
    [nats] = [child for child in stack_children(layout) if child.name == "nats"]
    url = admit(layout, "tests")
    async with supervised([nats], layout.stack_run, events):
        assert await write_and_read(url, write=True) == b"kept"
        os.kill(events.of(ChildStarted, "nats")[-1].pid, signal.SIGKILL)
        await events.until_ready("nats", 2)
        assert await write_and_read(url, write=False) == b"kept"
    async with supervised([nats], layout.stack_run, events):
        assert await write_and_read(url, write=False) == b"kept"
    assert marked(layout.mark) == []


ACTOR = """
import os, ray, signal
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
@ray.remote(num_cpus=0)
class Replica:
    def pid(self): return os.getpid()
replica = Replica.remote()
print("replica", ray.get(replica.pid.remote()), flush=True)
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.serve
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("daemon", ["raylet", "gcs_server"])
async def test_ray_listens_on_loopback_and_restarts_when_a_daemon_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, daemon: str
) -> None:
    """A dead daemon answers as little as a hung one, and `ray start --block` ends with it."""
    monkeypatch.setattr("app.cli.stack.supervisor.UNRESPONSIVE_AFTER_S", 1.0)
    monkeypatch.setattr("app.cli.stack.supervisor.HEALTH_CHECK_INTERVAL_S", 0.5)
    monkeypatch.setattr("app.cli.stack.checks._TIMEOUT_S", 1.0)
    events = Events()
    layout = plan_stack(StackOptions(port=0, nats_url="nats://127.0.0.1:1", data_dir=tmp_path), events)
    layout.ray_dir.mkdir()
    ray, deployer = (child for child in stack_children(layout) if child.name in ("ray", "deployer"))
    stub = replace(deployer, command=(sys.executable, "-c", ACTOR), stop_within_s=3.0)

    async with supervised([ray, stub], layout.stack_run, events):
        first = {process.pid: process.command for process in marked(layout.mark)}
        [replica] = [pid for pid, command in first.items() if command.startswith("ray::Replica")]
        [victim] = [pid for pid, command in first.items() if command.split()[0].endswith(f"/{daemon}")]
        assert [each for each in listeners(set(first)) if not each.loopback] == []
        assert replica not in {started.pid for started in events.of(ChildStarted)}

        os.kill(victim, signal.SIGSTOP)
        await events.until_ready("deployer", 2)
        assert not [command for pid, command in first.items() if alive(pid)]
        assert layout.ray_address in {events.of(ChildReady, "ray")[-1].detail}
    assert events.of(StackStopped)[0].left == ()
    assert marked(layout.mark) == []
    shutil.rmtree(layout.ray_dir)
