"""`python -m benchmarks.restart [COUNT]`: how long nats-server takes to start again with COUNT stored deliberations.

One deliberation (`independent`, three calls of 32 pieces) is recorded in a stack of its own, and stored COUNT times
under other ids in a plain nats-server with the same streams and consumers. That server is then stopped by SIGKILL and
by SIGTERM in turn, each time just after more was stored. The time runs from the start of the process.

With `--record FILE` the recording is written and nothing else is done; `--play FILE` stores one. `--data-dir` takes it
from the data directory of a stopped stack that ran one deliberation, also of another version.
"""

import argparse
import asyncio
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.recording import Recording, connected, consume, declare, request, running_server, store, until_listening
from tests.conftest import NatsServer

SIGNALS = (signal.SIGKILL, signal.SIGTERM)
ROUNDS = 3
# Deliberations stored before each stop, so that the server's index on disk is older than its last messages.
MORE = 100


class Start(NamedTuple):
    """Seconds from the start of the process until its port listens, and until each stream answers."""

    listens_s: float
    streams_s: dict[str, float]


async def states(server: NatsServer, recording: Recording) -> dict[str, dict[str, Any]]:
    """The state of each stream."""
    client = await connected(server)
    found = {name: (await request(client, f"STREAM.INFO.{name}"))["state"] for name in names(recording)}
    await client.close()
    return found


def names(recording: Recording) -> list[str]:
    return [stream["name"] for stream in recording.streams]


async def settled(server: NatsServer, recording: Recording) -> dict[str, dict[str, Any]]:
    """The states once streams that copy have caught up."""
    before = await states(server, recording)
    while True:
        await asyncio.sleep(1)
        found = await states(server, recording)
        if all(found[name]["messages"] == each["messages"] for name, each in before.items()):
            return found
        before = found


async def started(server: NatsServer, recording: Recording) -> Start:
    """Start the server and measure it."""
    began_s = time.monotonic()
    server.start()
    await until_listening(server.port)
    listens_s, streams_s = time.monotonic() - began_s, dict[str, float]()
    client = await connected(server)
    for name in names(recording):
        await request(client, f"STREAM.INFO.{name}")
        streams_s[name] = time.monotonic() - began_s
    await client.close()
    return Start(listens_s, streams_s)


async def measure(recording: Recording, count: int) -> None:
    starts: dict[signal.Signals, list[Start]] = {each: [] for each in SIGNALS}
    with tempfile.TemporaryDirectory() as directory:
        async with running_server(Path(directory)) as (server, client):
            await declare(client, recording)
            began_s = time.monotonic()
            await store(server.url, recording, range(count))
            took_s = time.monotonic() - began_s
            await consume(client, recording)
            # It would connect again after each stop.
            await client.close()
            number = count
            for sent in SIGNALS * ROUNDS:
                before = await settled(server, recording)
                await store(server.url, recording, range(number, number + MORE))
                number += MORE
                assert server.process is not None
                server.process.send_signal(sent)
                await asyncio.to_thread(server.process.wait)
                starts[sent].append(await started(server, recording))
                after = await states(server, recording)
                for name, state in before.items():
                    assert after[name]["messages"] >= state["messages"], f"{name} lost messages"
            final = await settled(server, recording)
    show(recording, count, took_s, final, starts)


def show(
    recording: Recording,
    count: int,
    took_s: float,
    states: dict[str, dict[str, Any]],
    starts: dict[signal.Signals, list[Start]],
) -> None:
    """Print the tables."""
    title = (
        f"{count:,} deliberations of {len(recording.messages)} messages, and {2 * ROUNDS * MORE} more; {ROUNDS} starts"
    )
    table = Table("stream", title=title)
    for column in ("messages", "MiB", *(f"answers after {sent.name}, s" for sent in SIGNALS)):
        table.add_column(column, justify="right")
    for name, state in states.items():
        medians = [statistics.median(start.streams_s[name] for start in starts[sent]) for sent in SIGNALS]
        size = f"{state['messages']:,}", f"{state['bytes'] / 2**20:,.1f}"
        table.add_row(name, *size, *(f"{median:.2f}" for median in medians))
    listens = [[start.listens_s for start in starts[sent]] for sent in SIGNALS]
    table.add_row("the port listens", "", "", *(f"{statistics.median(each):.2f}" for each in listens))
    console = Console(width=max(110, Console().width))
    console.print(table)
    for sent in SIGNALS:
        seconds = ", ".join(f"{max(start.streams_s.values()):.2f}" for start in starts[sent])
        console.print(f"all streams answered after {sent.name}: {seconds} s")
    console.print(f"stored at {count * len(recording.messages) / took_s:,.0f} messages/s")


async def recorded(data_dir: Path | None, file: Path | None) -> Recording:
    if file is not None:
        return Recording.of_file(file)
    return await (Recording.of_stack() if data_dir is None else Recording.of_store(data_dir / "nats"))


async def main(asked: argparse.Namespace) -> None:
    recording = await recorded(asked.data_dir, asked.play)
    size = sum(len(part) for message in recording.messages for part in message)
    print(f"one deliberation writes {len(recording.messages)} messages of {size / 1_024:.1f} KiB")
    if asked.record is not None:
        recording.written(asked.record)
        return
    await measure(recording, asked.count)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("count", type=int, nargs="?", default=50_000, help="Stored deliberations")
    options.add_argument("--record", type=Path, metavar="FILE", help="Write the recording to a file, and end")
    options.add_argument("--play", type=Path, metavar="FILE", help="Store the recording of a file")
    options.add_argument("--data-dir", type=Path, help="Record from the data directory of a stopped stack")
    uvloop.run(main(options.parse_args()))
