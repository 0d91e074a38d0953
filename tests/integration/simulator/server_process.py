"""The simulator's server as a process of its own."""

import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

Fields = dict[str, Any]


@dataclass
class Simulator:
    process: subprocess.Popen[str]
    ready_line: str

    @property
    def url(self) -> str:
        return self.ready_line.split()[2]


@contextmanager
def running(*options: str) -> Generator[Simulator]:
    command = [sys.executable, "-m", "serve_deployments.simulator", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Simulator(process, process.stdout.readline().strip())
        finally:
            process.kill()


@asynccontextmanager
async def simulating(*options: str) -> AsyncGenerator[tuple[Simulator, httpx.AsyncClient]]:
    with running(*options) as simulator:
        async with httpx.AsyncClient(base_url=simulator.url, timeout=30) as client:
            yield simulator, client
