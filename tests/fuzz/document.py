"""Schemathesis over the whole OpenAPI 3.2 document, including its links.

    python -m tests.fuzz.document --seconds 600                  # a gateway over a log in memory
    python -m tests.fuzz.document --url URL --key KEY --seconds 600    # a running one: deliberations may be deleted

Exits with 1 if an answer is a server error, has an undeclared status, header, media type or shape, or takes more than
20 seconds. Exits with 1 too if a valid request is refused or an invalid one accepted.
"""

import argparse
import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from tests.fuzz.gateway import fuzzed

ROOT = Path(__file__).parents[2]
CONFIG = Path(__file__).with_name("schemathesis.toml")
ALL_PHASES = "examples,coverage,fuzzing,stateful"


async def fuzz(
    url: str, key: str | None, *, seed: int, examples: int, seconds: int | None = None, phases: str = ALL_PHASES
) -> tuple[int, str]:
    """Run schemathesis against a gateway; returns its exit status and output.

    Runs for `seconds` if given. Otherwise it tries about `examples` requests for each operation, deterministic for a
    seed, besides those from the document's bounds and examples.
    """
    command = [
        Path(sys.executable).with_name("schemathesis"),
        "--config-file",
        CONFIG,
        "run",
        f"{url}/openapi-3.2.json",
    ]
    command += ["--checks=all", f"--seed={seed}", f"--max-examples={examples}", "--continue-on-failure", "--no-color"]
    command += [f"--header=Authorization: Bearer {key}"] if key else ["--exclude-checks=ignored_auth"]
    command += [f"--phases={phases}"]
    command += [f"--max-time={seconds}"] if seconds else []
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a gateway; one over a log in memory by default")
    parser.add_argument("--key", default=os.environ.get("DELIBERATE_API_KEY"), help="a key with all scopes")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    async with AsyncExitStack() as stack:
        url, key = (options.url, options.key) if options.url else await stack.enter_async_context(fuzzed())
        status, output = await fuzz(url, key, seed=options.seed, examples=options.examples, seconds=options.seconds)
    print(output)
    return status


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
