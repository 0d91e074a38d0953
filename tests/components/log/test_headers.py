"""Headers of messages are read as nats-py reads them."""

import pytest
from nats.aio.client import Client

from app.log.connection import LogClient

BLOCKS = [
    b"",
    b"\r\n",
    b"Nats-Sequence: 7\r\nNats-Subject: deliberations.t.1.accepted\r\n\r\n",
    b"Name:Value\r\nOther:\tvalue \r\n\r\n",
    b"no colon\r\nEmpty:\r\nLast: a: b\r\n",
    b"white space: is no name\r\n in front: 1\r\nTab\tin: 2\r\n",
    "N\u00e4me: x\r\nName: \u00e4\r\n".encode(),
    b"Name: \xff\xfe\r\n",
    "Name: \u00a0kept\u00a0 \r\n".encode(),
    "\u00a0Name: x\r\nIn\u2003ner: x\r\nEnd: x\x1c\r\n".encode(),
    b"Twice: 1\r\nTwice: 2\r\n",
]


@pytest.mark.parametrize("block", BLOCKS)
def test_headers_are_those_that_nats_py_reads(block: bytes) -> None:
    reads = LogClient._parse_header_lines, Client._parse_header_lines  # pyright: ignore[reportPrivateUsage]

    assert reads[0](block) == reads[1](block)
