"""`unshare -rmn python -m tests.components.webhooks.rebinding`: a sender that asks a real name server.

The network, `/etc/resolv.conf` and `/etc/nsswitch.conf` belong to these namespaces alone, where the loopback interface
has a public address too. The sender's process, unchanged, looks names up at a server that answers each question
differently. Prints as JSON, for each name, what was answered, which addresses got a connection, and how attempts ended.
"""

import asyncio
import fcntl
import json
import socket
import struct
import subprocess
import tempfile
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

from app.webhooks.attempts import Attempt, DeliveryHistory
from tests.components.webhooks.sending import SenderProcess, declared, submit
from tests.conftest import NatsServer, free_port

LOOPBACK = "127.0.0.1"
PUBLIC = "93.184.215.14"
# Names, and what the name server answers to the questions for each in turn, again and again.
ANSWERS = {
    "then-loopback.example": [[PUBLIC], [LOOPBACK]],
    "first-loopback.example": [[LOOPBACK], [PUBLIC]],
    "both.example": [[PUBLIC, LOOPBACK], [PUBLIC]],
    "then-nothing.example": [[PUBLIC], []],
}
NAME_SERVER_PORT = 53
_SIOCSIFADDR, _SIOCSIFFLAGS, _IFF_UP = 0x8916, 0x8914, 1
_TYPE_A = 1


def attempts_of(delivery: DeliveryHistory) -> list[Attempt]:
    ended = [] if delivery.ended is None or delivery.ended.attempt is None else [delivery.ended.attempt]
    return [delivery.failed[number].attempt for number in sorted(delivery.failed)] + ended


def _add_address(interface: bytes, address: str) -> None:
    family = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        fcntl.ioctl(opened, _SIOCSIFADDR, struct.pack("16s16s8x", interface, family))
        fcntl.ioctl(opened, _SIOCSIFFLAGS, struct.pack("16sH22x", interface, _IFF_UP))


def _replace(path: str, text: str, directory: Path) -> None:
    written = directory / Path(path).name
    written.write_text(text)
    subprocess.run(["mount", "--bind", written, path], check=True)


class NameServer(asyncio.DatagramProtocol):
    """Answers each question for an IPv4 address with the name's next answer, and other questions with none."""

    def __init__(self) -> None:
        self.given: defaultdict[str, list[list[str]]] = defaultdict(list)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        labels, at = list[str](), 12
        while size := data[at]:
            labels.append(data[at + 1 : at + 1 + size].decode())
            at += 1 + size
        name, (kind,), question = ".".join(labels), struct.unpack_from(">H", data, at + 1), data[12 : at + 5]
        addresses: list[str] = []
        if kind == _TYPE_A and name in ANSWERS:
            addresses = ANSWERS[name][len(self.given[name]) % len(ANSWERS[name])]
            self.given[name].append(addresses)
        head = data[:2] + struct.pack(">5H", 0x8580, 1, len(addresses), 0, 0)
        # A pointer to the name in the question, type, class, no time to live, and the length of an address.
        records = (struct.pack(">HHHIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(each) for each in addresses)
        self.transport.sendto(head + question + b"".join(records), addr)


async def attack(directory: Path) -> dict[str, dict[str, object]]:
    connected: defaultdict[str, list[str]] = defaultdict(list)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await reader.read(4_096)
        for name in ANSWERS:
            if name.encode() in hello:
                connected[name].append(writer.get_extra_info("sockname")[0])
        writer.close()

    port, names, server = free_port(), NameServer(), NatsServer(directory / "nats")
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: names, local_addr=(LOOPBACK, NAME_SERVER_PORT))
    server.start()
    sender = SenderProcess(server, WEBHOOK_HOSTS="", WEBHOOK_PORTS=str(port))
    async with AsyncExitStack() as opened:
        opened.callback(transport.close)
        opened.callback(server.stop)
        opened.callback(sender.stop)
        journal = await opened.enter_async_context(declared(server))
        await opened.enter_async_context(await asyncio.start_server(accept, "0.0.0.0", port))
        await sender.start()
        found: dict[str, dict[str, object]] = {}
        for name in ANSWERS:
            story = await submit(journal, f"https://{name}:{port}/hook")
            await story.end()
            (delivery,) = await story.finished(timeout_s=30)
            codes = [attempt.problem and attempt.problem.code for attempt in attempts_of(delivery)]
            found[name] = {"answered": names.given[name], "connected": connected[name], "attempts": codes}
    return found


def main() -> None:
    _add_address(b"lo", LOOPBACK)
    _add_address(b"lo:1", PUBLIC)
    with tempfile.TemporaryDirectory() as directory:
        _replace("/etc/resolv.conf", f"nameserver {LOOPBACK}\noptions timeout:2 attempts:1\n", Path(directory))
        _replace("/etc/nsswitch.conf", "hosts: files dns\n", Path(directory))
        print(json.dumps(asyncio.run(attack(Path(directory)))))


if __name__ == "__main__":
    main()
