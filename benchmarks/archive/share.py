"""`python -m benchmarks.archive.share`: the archive's share of the CPU and of the stack's throughput.

The stack of `make bench`, with the engine at 500 ms a call, gets 200 deliberations at once, which need all CPU. Rounds
alternate between an archive that copies and one that SIGSTOP holds, which `up` bears for ten seconds. A round begins
once everything before it is copied. The archive's share of the CPU holds all that it computes for the round's
deliberations, also after the last of them. The ratio of the two rates varies by a tenth from run to run.

After the stack has stopped, a projector copies the whole log into a new database. So the speed of one that is behind
stands beside that of the stack, with the same deliberations.
"""

import argparse
import asyncio
import os
import signal
import statistics
import tempfile
from pathlib import Path

import uvloop
from sqlalchemy import func, select

from app.archive.database.connection import Database
from app.archive.database.migrate import migrate
from app.archive.database.tables import deliberations
from app.cli.stack.layout import StackOptions
from app.cli.stack.up import running_stack
from app.log.journal import JetStreamJournal
from app.log.signature import LOG_KEY_NAME, LogSigner
from app.log.stream_settings import ARCHIVE_CONSUMER, STREAM, StreamSettings
from app.log.streams import apply
from app.observability.process import settle_heap
from benchmarks.archive.copying import copy_waiting
from benchmarks.archive.reading import cpu_s
from benchmarks.bench import CALL_MS, Product, closed_loop, simulator
from tests.conftest import NatsServer

IN_FLIGHT = 200


def processes_of(module: str) -> list[int]:
    """The ids of the processes that run a module."""
    found = list[int]()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as command:
                if command.read().split(b"\0")[1:3] == [b"-m", module.encode()]:
                    found.append(int(name))
        except OSError:
            continue
    return found


def machine_cpu_s() -> float:
    """The seconds that all processes of the machine have computed."""
    with open("/proc/stat") as counters:
        user, nice, system = map(int, counters.readline().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


async def measure(data: Path, rounds: int, total: int) -> float:
    """Print the rounds, the ratio of the medians, and the archive's share of the CPU; returns the stack's rate."""
    before = processes_of("app.archive")
    rates: dict[bool, list[float]] = {True: [], False: []}
    shares = list[float]()
    options = StackOptions(data_dir=data, port=0, nats_port=0, simulate=simulator(CALL_MS))
    async with running_stack(options) as stack:
        (archive,) = set(processes_of("app.archive")) - set(before)
        product = Product(stack.url)
        for _ in range(rounds):
            for copies in (True, False):
                # Both begin with the same warm connections.
                await closed_loop(IN_FLIGHT, IN_FLIGHT, product.once)
                await product.archived()
                os.kill(archive, signal.SIGCONT if copies else signal.SIGSTOP)
                began_s, machine_began_s = cpu_s(archive), machine_cpu_s()
                sample = await closed_loop(IN_FLIGHT, total, product.once)
                rates[copies].append(sample.per_second)
                machine_took_s, before_s = machine_cpu_s() - machine_began_s, cpu_s(archive)
                os.kill(archive, signal.SIGCONT)
                await product.archived()
                took_s, after_s = cpu_s(archive) - began_s, cpu_s(archive) - before_s
                if copies:
                    shares.append(took_s / (machine_took_s + after_s))
                # What it computes after a round without it is no part of the round.
                each = f"{1_000 * machine_took_s / total:.1f} ms CPU each"
                each += f", and {1_000 * took_s / total:.2f} of the archive in all" if copies else ""
                print(f"{'copies ' if copies else 'stopped'} {sample.per_second:6.1f} a second, {each}", flush=True)
        await product.close()
    print(f"rates, copying over stopped {statistics.median(rates[True]) / statistics.median(rates[False]):.3f}")
    print(f"share of the machine's CPU  {statistics.median(shares):.3f}")
    return statistics.median(rates[True])


async def copy_again(data: Path, rate: float) -> None:
    """Have the log of a stack that has stopped copied into a new database; print how fast, beside the stack's rate."""
    settle_heap()
    url = f"sqlite:///{data}/again.db"
    await migrate(url)
    database = Database(url)
    server = NatsServer(data / "nats")
    server.start()
    try:
        signer = LogSigner.of_file(data / LOG_KEY_NAME)
        journal = await JetStreamJournal.connect(server.url, name="benchmark", signer=signer)
        # A new queue begins with the oldest fact.
        await journal.request(f"$JS.API.CONSUMER.DELETE.{STREAM}.{ARCHIVE_CONSUMER}")
        await apply(journal, StreamSettings())
        assert server.process is not None, "it was started"
        served_s = -cpu_s(server.process.pid)
        took_s, computed_s = await copy_waiting(journal, database)
        served_s += cpu_s(server.process.pid)
        async with database.begin() as connection:
            count = (await connection.execute(select(func.count()).select_from(deliberations))).scalar_one()
        await journal.close()
        await database.close()
    finally:
        server.stop()
    each = f"{1_000 * computed_s / count:.2f} ms CPU each, of nats-server {1_000 * served_s / count:.2f} ms"
    print(f"copied again {count / took_s:7.1f} a second, {each}")
    print(f"over the stack's rate {count / took_s / rate:.1f}")


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--deliberations", type=int, default=300, help="in each round, of less than ten seconds")
    given = parser.parse_args()
    # The loop of the archive's process.
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with runner, tempfile.TemporaryDirectory() as temporary:
        rate = runner.run(measure(Path(temporary), given.rounds, given.deliberations))
        runner.run(copy_again(Path(temporary), rate))


if __name__ == "__main__":
    main()
