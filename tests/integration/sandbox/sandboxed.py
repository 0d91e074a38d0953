import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.deliberation.calls import Check
from app.deliberation.outputs import SandboxReport, TestCase
from serve_deployments.node_directory.directory import NodeDirectory
from serve_deployments.sandbox import checks
from serve_deployments.sandbox.checks import Sandbox

WITHIN_S = 60.0


def calls(name: str, *arguments: Any, expected: Any = None) -> TestCase:
    return TestCase(name=f"{name}{arguments}"[:200], call=name, arguments=[*arguments], expected=expected)


def script(stdin: str, stdout: str) -> TestCase:
    return TestCase(name="a script", stdin=stdin, stdout=stdout)


PASSES = calls("f", expected=1)


def check(program: str, *tests: TestCase, timeout_s: int = 2, memory_mb: int = 256) -> Check:
    return Check(code=textwrap.dedent(program), tests=tests, timeout_s=timeout_s, memory_mb=memory_mb)


async def reported(asked: Check, within_s: float = WITHIN_S) -> SandboxReport:
    return await Sandbox(NodeDirectory()).report(asked, "acme", within_s)


async def ran(program: str, *tests: TestCase, timeout_s: int = 2) -> SandboxReport:
    return await reported(check(program, *tests or (PASSES,), timeout_s=timeout_s))


@contextmanager
def altered(boot: str) -> Iterator[None]:
    before, marked, after = checks._COMMAND[-1].partition("from serve_deployments")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "_COMMAND", (*checks._COMMAND[:-1], before + boot + marked + after))
        yield
