"""What the document says is what happens: no server's error, and nothing that is not declared."""

import asyncio

from tests.fuzz.document import fuzz
from tests.fuzz.gateway import fuzzed

SEED = 1
EXAMPLES = 8
# What lies at the bounds of every schema, more than a thousand requests, is left to `make fuzz`.
PHASES = "examples,fuzzing,stateful"
HANGS_S = 300


async def test_the_gateway_conforms_to_its_document() -> None:
    async with fuzzed() as (url, key), asyncio.timeout(HANGS_S):
        status, said = await fuzz(url, key, seed=SEED, examples=EXAMPLES, phases=PHASES)
    assert status == 0, said
