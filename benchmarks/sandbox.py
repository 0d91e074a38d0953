"""`python -m benchmarks.sandbox [--beside REVISION]`: how long the sandbox of `execute` takes for a program.

In ms: the least of fifteen checks of one program with 1, 8 and 32 tests, and 24 checks of 8 tests at once, in all. The
least is what the load of a shared machine disturbs least.
"""

import asyncio
import json
import logging
import sys
from time import perf_counter

import structlog

CHECKS, AT_ONCE = 15, 24


async def round_() -> dict[str, float]:
    """One round in the tree that is imported."""
    from app.deliberation import outputs
    from app.deliberation.calls import Check
    from serve_deployments.node_directory.directory import NodeDirectory
    from serve_deployments.sandbox.checks import Sandbox

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    sandbox = Sandbox(NodeDirectory())

    async def ms(tests: int) -> float:
        cases = tuple(outputs.TestCase(name=f"{n}", call="f", arguments=[n], expected=2 * n) for n in range(tests))
        program, began_s = Check(code="def f(x): return 2 * x", tests=cases, timeout_s=5, memory_mb=256), perf_counter()
        report = await sandbox.report(program, "acme", 60.0)
        assert len(report.outcomes) == tests and all(outcome.passed for outcome in report.outcomes), report
        return (perf_counter() - began_s) * 1_000

    await ms(1)
    found = {f"{tests} tests": min([await ms(tests) for _ in range(CHECKS)]) for tests in (1, 8, 32)}
    began_s = perf_counter()
    await asyncio.gather(*(ms(8) for _ in range(AT_ONCE)))
    return found | {f"{AT_ONCE} checks": (perf_counter() - began_s) * 1_000}


if __name__ == "__main__":
    if "--round" in sys.argv:
        print(json.dumps(asyncio.run(round_())))
    else:
        from benchmarks.beside import compare

        compare(__file__, __doc__, rounds=5)
