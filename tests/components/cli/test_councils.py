"""The members of a council that `deliberate ask --council` names."""

import json
from pathlib import Path

import pytest
import typer

from app.cli.ask import parse_council


def test_a_council_is_named_by_roles_or_read_from_a_file(tmp_path: Path) -> None:
    members = [{"name": "sceptic", "persona": "You doubt.", "role": "QA"}, {"role": "DEV", "count": 2}]
    (file := tmp_path / "council.json").write_text(json.dumps(members))
    assert parse_council(f"@{file}") == members
    assert parse_council("DEV:2,QA") == [{"role": "DEV", "count": 2}, {"role": "QA", "count": 1}]


@pytest.mark.parametrize("text", ["{}", "5", "[", "[]", '"DEV:2"'])
def test_a_file_that_is_no_list_of_members_is_refused(tmp_path: Path, text: str) -> None:
    (file := tmp_path / "council.json").write_text(text)
    with pytest.raises(typer.BadParameter, match="list"):
        parse_council(f"@{file}")
