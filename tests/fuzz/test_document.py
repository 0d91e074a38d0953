import asyncio

from tests.fuzz.document import fuzz
from tests.fuzz.gateway import fuzzed

SEED = 1
EXAMPLES = 4
# The phase `coverage` has more than a thousand requests, and runs only in `make fuzz`.
PHASES = "examples,fuzzing,stateful"
HANGS_S = 300


async def test_the_gateway_conforms_to_its_document() -> None:
    async with fuzzed() as (url, key), asyncio.timeout(HANGS_S):
        status, output = await fuzz(url, key, seed=SEED, examples=EXAMPLES, phases=PHASES)
    assert status == 0, output
