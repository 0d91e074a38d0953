"""Every recorded reply, read by an agent: its outcome, its requests, and the requests per answered call.

python -m tests.fuzz.recorded
"""

import asyncio
import sys

from tests.integration.engine.raw_engine import RECORDED, recorded
from tests.integration.engine.recorded_outcomes import ANSWERED, outcome_of


async def play(case: str) -> tuple[int, bool]:
    """Returns the requests of a case, and whether they were answered."""
    played = RECORDED[case]
    async with recorded(case).serving() as engine:
        outcome = await outcome_of(engine, played["url_ends_with"], **played["engine"])
    said = "answered" if outcome.problem is None else f"{outcome.problem.code}: {outcome.problem.detail[:80]!r}"
    print(f"{case:24} {len(engine.bodies)} {said}")
    return len(engine.bodies), outcome.problem is None


async def main() -> bool:
    """Print all cases and the sums; returns whether each readable first reply was the only one."""
    results = {case: await play(case) for case, each in RECORDED.items() if isinstance(each["replies"], list)}
    for name, cases in (("with a readable first reply", ANSWERED), ("all", [*results])):
        answered = [results[case][0] for case in cases if results[case][1]]
        per_call = sum(answered) / len(answered)
        print(f"{name}: {sum(answered)} requests for {len(answered)} answered calls, {per_call:.2f} each")
    return all(results[case] == (1, True) for case in ANSWERED)


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
