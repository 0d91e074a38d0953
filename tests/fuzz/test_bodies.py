from tests.fuzz.bodies import post_all

COUNT = 3_000  # `make fuzz` posts 100,000
SEED = 2


async def test_mutated_bodies_get_declared_answers() -> None:
    answers = await post_all(COUNT, SEED)
    assert answers.faults == []
    assert answers.statuses.total() == COUNT
    assert min(answers.statuses[status] for status in (202, 400, 413, 422)) > COUNT / 200, (
        "the bodies reach every check"
    )
