"""The terminal of a user, in a folder of its own."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.wheels import STEP_S

TASK = "Write a function that merges two sorted lists."


@dataclass
class Terminal:
    folder: Path
    bin: Path
    variables: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"PATH": path, "COLUMNS": "200", "XDG_CONFIG_HOME": str(self.folder / "config")}
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("DELIBERATE_", "PYTHONPATH"))}
        return {**kept, **own, **self.variables}

    async def start(self, *command: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *command,
            cwd=self.folder,
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def run(self, *command: str, code: int = 0) -> str:
        process = await self.start(*command)
        async with asyncio.timeout(STEP_S):
            printed = (await process.communicate())[0].decode()
        assert process.returncode == code, printed
        assert "Traceback" not in printed
        return printed

    async def deliberate(self, *arguments: str, code: int = 0) -> str:
        return await self.run(str(self.bin / "deliberate"), *arguments, code=code)

    @asynccontextmanager
    async def up(self, *options: str) -> AsyncGenerator[dict[str, Any]]:
        process = await self.start(str(self.bin / "deliberate"), "up", *options)
        assert process.stdout is not None
        lines: list[str] = []
        try:
            async with asyncio.timeout(STEP_S):
                async for line in process.stdout:
                    lines.append(line.decode())
                    if "Ctrl-C stops it" in lines[-1]:
                        break
            assert "Ctrl-C stops it" in lines[-1], "".join(lines)
            yield json.loads((self.folder / ".deliberate" / "stack.json").read_text())
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
            async with asyncio.timeout(STEP_S):
                lines.append((await process.stdout.read()).decode())
                code = await process.wait()
        assert code == 0 and "Stopped" in lines[-1], "".join(lines)
        assert "make " not in "".join(lines), "a wheel has no Makefile"
