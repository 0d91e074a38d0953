import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.cli import cli
from tests.components.cli.real_gateway import RealGateway
from tests.components.planning.plans import PLAN

runner = CliRunner()


@pytest.fixture(scope="module")
def gateway() -> Iterator[RealGateway]:
    with RealGateway() as running:
        yield running


def invoke(gateway: RealGateway, *arguments: str, stdin: str | None = None) -> Result:
    return runner.invoke(cli, ["plan", *arguments, "--url", gateway.url], input=stdin)


@pytest.mark.parametrize(("case", "roles"), [("basic", 2), ("medium", 3), ("complex", 4)])
def test_a_case_is_a_plan_with_its_roles(gateway: RealGateway, case: str, roles: int) -> None:
    result = invoke(gateway, "approve", "--case", case, "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert len(plan["roles"]) == roles and plan["status"] == "in_progress"
    shown = invoke(gateway, "show", plan["id"])
    assert shown.exit_code == 0
    assert f"{plan['id']} of {plan['story_id']}: in_progress" in shown.stdout
    assert all(role["role"] in shown.stdout and role["deliberation_id"] in shown.stdout for role in plan["roles"])


def test_a_plan_comes_from_a_file_or_from_stdin(gateway: RealGateway, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(PLAN))
    first = invoke(gateway, "approve", "--file", str(file), "--json")
    again = invoke(gateway, "approve", "--file", "-", "--json", stdin=json.dumps(PLAN))
    assert first.exit_code == again.exit_code == 0
    assert json.loads(first.stdout) == json.loads(again.stdout)


@pytest.mark.parametrize(
    ("arguments", "stdin", "exit_code", "complaint"),
    [
        ([], None, 2, "--case basic"),
        (["--case", "basic", "--file", "-"], "{}", 2, "--case"),
        (["--file", "missing.json"], None, 2, "missing.json"),
        (["--file", "-"], "no JSON", 2, "--file -"),
        (["--file", "-"], "[]", 2, "no JSON object"),
        (["--file", "-"], "{}", 2, "--file plan_id: It is missing. Add it."),
    ],
)
def test_what_is_no_plan_is_refused_with_a_remedy(
    gateway: RealGateway, arguments: list[str], stdin: str | None, exit_code: int, complaint: str
) -> None:
    result = invoke(gateway, "approve", *arguments, stdin=stdin)
    assert result.exit_code == exit_code and complaint in result.stderr
