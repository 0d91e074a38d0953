from tests.fuzz.evil_replies import play
from tests.fuzz.replies import compare

COUNT = 500  # `make fuzz` compares and plays 20,000


async def test_an_agent_reads_what_the_official_client_reads() -> None:
    differences: list[str] = []
    complete, different = await compare(range(COUNT), differences.append)
    assert complete > COUNT / 2 and different == 0, "\n".join(differences[:5])


async def test_whatever_an_engine_sends_ends_and_can_be_read_and_archived() -> None:
    faults: list[str] = []
    assert await play(range(COUNT), faults.append) == 0, "\n".join(faults[:5])
