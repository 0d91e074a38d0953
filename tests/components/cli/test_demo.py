import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from app.api.requests import DeliberationRequest
from app.cli import cli
from app.cli import demo as demo_command
from app.cli.demo import demo_body
from app.cli.exits import CommandError, Exit
from app.cli.render.progress import ChildFailed, ChildReady, ProgressReport, StackReady, StackStopped
from app.cli.stack.layout import StackOptions
from app.deliberation.roles import Complexity
from tests.components.cli.council_run import Council, StubGateway

runner = CliRunner()
READY = StackReady("http://here", "nats://here", ("http://engine",), "ray", ("DEV",), True, "/data", 7.5)


@pytest.fixture
def stacks(url: str, monkeypatch: pytest.MonkeyPatch) -> list[StackOptions]:
    started: list[StackOptions] = []

    @asynccontextmanager
    async def running(options: StackOptions, report: ProgressReport) -> AsyncGenerator[SimpleNamespace]:
        started.append(options)
        (options.data_dir / "logs").mkdir(parents=True)
        report(ChildReady("gateway", "answers", 1.0, 1))
        report(READY)
        yield SimpleNamespace(url=url)
        report(StackStopped(0.5, ()))

    monkeypatch.setattr(demo_command, "running_stack", running)
    return started


@pytest.mark.parametrize(
    ("case", "roles"),
    [
        (None, ["DEV", "DEV", "DEV"]),
        ("basic", ["DEV", "QA"]),
        ("medium", ["ARCHITECT", "DEV", "QA"]),
        ("complex", ["ARCHITECT", "DEV", "QA", "DEVOPS"]),
    ],
)
def test_each_case_requests_its_council(case: Complexity | None, roles: list[str]) -> None:
    request = DeliberationRequest.model_validate(demo_body(case, "think"))
    assert [agent.role for agent in request.roster for _ in range(agent.count)] == roles
    assert (request.strategy, request.rounds, request.task) == ("council", 1, "think")


def test_the_demo_shows_a_council_and_the_next_steps(stub: StubGateway, stacks: list[StackOptions]) -> None:
    result = runner.invoke(cli, ["demo", "--case", "basic"])
    assert result.exit_code == 0
    for expected in (
        "ready in 7.5 s",
        "stage 1 propose",
        "Ranking",
        "The council's answer",
        "deliberate up",
        "curl -s",
    ):
        assert expected in result.stdout
    assert "make up" not in result.stdout, "an installed package has no Makefile"
    assert "Stopped" in result.stdout
    assert Counter(member["role"] for member in stub.bodies[0]["agents"]) == {"DEV": 1, "QA": 1}
    assert not stacks[0].data_dir.exists(), "nothing is left behind"


def test_the_demo_prints_only_json(stacks: list[StackOptions]) -> None:
    result = runner.invoke(cli, ["demo", "--json"])
    assert [json.loads(line)["status"] for line in result.stdout.splitlines()] == ["completed"]
    assert "ready in" in result.stderr


def test_a_chosen_data_directory_is_kept(stacks: list[StackOptions], tmp_path: Path) -> None:
    assert runner.invoke(cli, ["demo", "--data-dir", str(tmp_path / "kept"), "--port", "0"]).exit_code == 0
    assert (tmp_path / "kept" / "logs").is_dir()
    assert stacks[0].port == 0


def test_the_exit_code_is_the_councils_outcome(
    stub: StubGateway, stacks: list[StackOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Council, "resource", stub.council.resource | {"status": "failed"})
    assert runner.invoke(cli, ["demo"]).exit_code == 1
    assert not stacks[0].data_dir.exists()


def test_a_failed_start_keeps_its_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[StackOptions] = []

    @asynccontextmanager
    async def failing(options: StackOptions, report: ProgressReport) -> AsyncGenerator[SimpleNamespace]:
        started.append(options)
        report(ChildFailed("ray", "no memory", "", "ray.log", ("last words",)))
        raise CommandError(Exit.FAILED, "ray_failed", "ray: no memory")
        yield

    monkeypatch.setattr(demo_command, "running_stack", failing)
    result = runner.invoke(cli, ["demo"])
    assert result.exit_code == 1
    assert "ray_failed" in result.stderr and str(started[0].data_dir) in result.stderr
    assert "last words" in result.stdout
    assert started[0].data_dir.is_dir()
    started[0].data_dir.rmdir()
