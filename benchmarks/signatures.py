"""`python -m benchmarks.signatures [--rounds 8]`: what the log key costs, on a real nats-server with records of 1 KB.

Per second: appends by 32 writers at once, records read in order, and reads of all ten facts of a deliberation. Rounds
without and with the key alternate. Prints medians with the least and the greatest, and the time of one signature.
"""

import argparse
import asyncio
import statistics
import tempfile
from collections import defaultdict
from itertools import count
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.table import Table

from app.log.journal import JetStreamJournal
from app.log.signature import LogSigner
from app.log.stream_settings import StreamSettings
from app.log.streams import apply
from tests.conftest import NatsServer

LOG_KEY = "the log key of the benchmark of signatures"
WRITERS, APPENDS, FACTS, LOOKS, SIGNATURES = 32, 4_000, 10, 1_000, 20_000
DATA = b"x" * 1_024


async def round_(journal: JetStreamJournal, tenant: str) -> dict[str, float]:
    """Append, read in order, and read each deliberation, under a tenant of its own: operations per second."""
    numbers = iter(range(APPENDS))

    async def write() -> None:
        for number in numbers:
            subject = f"deliberations.{tenant}.{number // FACTS}.call.{number % FACTS}.finished"
            assert (await journal.write(subject, DATA)).created

    began_s = perf_counter()
    await asyncio.gather(*(write() for _ in range(WRITERS)))
    found = {"appends": APPENDS / (perf_counter() - began_s)}
    began_s = perf_counter()
    read = [record async for record in journal.read(f"deliberations.{tenant}.>", 0)]
    found["records read in order"] = len(read) / (perf_counter() - began_s)
    assert len(read) == APPENDS
    began_s = perf_counter()
    for number in range(LOOKS):
        facts = await journal.facts(tenant, str(number % (APPENDS // FACTS)))
        assert len(facts) == FACTS
    return found | {"`facts` of ten records": LOOKS / (perf_counter() - began_s)}


async def measure(rounds: int) -> None:
    """Print the figures of both."""
    signers = {"without a key": LogSigner(), "with it": LogSigner([LOG_KEY])}
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in signers}
    with tempfile.TemporaryDirectory() as directory:
        server, tenants = NatsServer(Path(directory)), count()
        server.start()
        journals = {name: await JetStreamJournal.connect(server.url, signer=signer) for name, signer in signers.items()}
        await apply(journals["with it"], StreamSettings())
        for _ in range(rounds):
            for name, journal in journals.items():
                for figure, value in (await round_(journal, f"{next(tenants)}")).items():
                    found[name][figure].append(value)
        for journal in journals.values():
            await journal.close()
        server.stop()
    table = Table("per second", *signers, "ratio")
    for figure, values in found["without a key"].items():
        both = (values, found["with it"][figure])
        cells = [f"{statistics.median(each):,.0f} ({min(each):,.0f}-{max(each):,.0f})" for each in both]
        ratio = statistics.median(b / a for a, b in zip(*both, strict=True))
        table.add_row(figure, *cells, f"{ratio:.2f}")
    Console(width=max(120, Console().width)).print(table)
    began_s = perf_counter()
    for _ in range(SIGNATURES):
        signers["with it"].headers("deliberations.acme.one.end", DATA)
    print(f"a signature: {(perf_counter() - began_s) / SIGNATURES * 1e6:.1f} µs")


def main() -> None:
    """Read the options and measure."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=8)
    asyncio.run(measure(options.parse_args().rounds))


if __name__ == "__main__":
    main()
