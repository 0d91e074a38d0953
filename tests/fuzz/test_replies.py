from tests.fuzz.replies import compare

COUNT = 1_000  # `make fuzz` compares 20,000


async def test_an_agent_reads_what_the_official_client_reads() -> None:
    differences: list[str] = []
    complete, different = await compare(range(COUNT), differences.append)
    assert complete > COUNT / 2 and different == 0, "\n".join(differences[:5])
