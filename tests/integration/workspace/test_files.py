"""Agents read the files of a request by the tools of workspaces; their texts stay in the acceptance alone."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from app.deliberation.calls import StageRequest
from app.deliberation.facts import CallFinished, ToolUsed
from app.deliberation.specification import FilesWorkspace, Specification, ToolAllowance, WorkspaceFile
from app.deliberation.tools import FILES_TOOLS, WORKSPACE_LIMITS
from app.log.journal import JetStreamJournal
from serve_deployments.tools.toolbox import ToolFailure
from serve_deployments.workspace.sources import RequestFiles
from serve_deployments.workspace.workspace import WorkspaceToolbox
from tests.fakes import InMemoryJournal
from tests.integration.agent.stage_runs import request
from tests.integration.tools.tool_calls import Engine, call, facts_of
from tests.integration.workspace.workspace_agents import agent_of
from tests.repositories import copies_in, sandbox_in
from tests.unit.facts_of import accepted, specification

WITHIN_S = 30.0
FILES = {
    "merge.py": "def merge(a, b):\n    return a + b\n",
    'tests/test "merge".py': "",
    "tests/test_merge.py": "from merge import merge\n\ndef test_merges():\n    assert merge([3], [1]) == [1, 3]\n",
    "docs/größe.md": "Zeile eins\nZeile zwei\n",
    ".gitattributes": "* filter=evil diff=evil\n",
}


def with_files(files: dict[str, str], **fields: Any) -> Specification:
    workspace = FilesWorkspace(files=tuple(WorkspaceFile(path=path, text=text) for path, text in files.items()))
    return specification(3, **fields).model_copy(update={"workspace": workspace})


async def box_of(folder: Path, files: dict[str, str]) -> WorkspaceToolbox:
    journal, fact = InMemoryJournal(), accepted(with_files(files))
    await journal.append("acme", fact)
    source = RequestFiles(journal, fact.deliberation_id, "acme")
    return WorkspaceToolbox(copies_in(folder), sandbox_in(folder), source)


async def used(box: WorkspaceToolbox, name: str, **arguments: Any) -> str:
    result = await box.use(name, arguments, WITHIN_S)
    assert not result.failed, result.text
    return result.text


async def test_every_tool_but_those_of_history_works_over_files(tmp_path: Path) -> None:
    box = await box_of(tmp_path, FILES)
    assert (await used(box, "list_files")).splitlines() == sorted(
        f"{path} ({len(text.encode())} bytes)" for path, text in FILES.items()
    )
    assert (await used(box, "read_file", path="docs/größe.md", first_line=2)).endswith("\nZeile zwei")
    assert await used(box, "search", pattern="return a") == "merge.py:2:    return a + b"
    assert await used(box, "search", pattern="zeile zwei", ignore_case=True) == "docs/größe.md:2:Zeile zwei"


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is the Linux kernel's")
async def test_tests_and_programs_run_beside_files(tmp_path: Path) -> None:
    box = await box_of(tmp_path, FILES)
    assert "tests/test_merge.py::test_merges ... FAIL" in await used(box, "run_tests")
    assert await used(box, "run", code="import merge\nprint(merge.merge([1], [2]))") == "[1, 2]\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is the Linux kernel's")
async def test_an_agent_reads_the_files_that_its_stage_only_names(journal: JetStreamJournal, tmp_path: Path) -> None:
    allowance = ToolAllowance(names=FILES_TOOLS, uses=WORKSPACE_LIMITS.calls, bytes=WORKSPACE_LIMITS.bytes)
    asked = request((call().model_copy(update={"tools": allowance}),)).model_copy(update={"workspace": "files"})
    fact = accepted(with_files(FILES)).model_copy(update={"deliberation_id": asked.deliberation_id})
    await journal.append(asked.tenant, fact)
    assert StageRequest.model_validate_json(asked.model_dump_json()).workspace == "files"
    engine = Engine(("list_files", {}), ("run_tests", {}), ("diff", {}))
    agent = agent_of(journal, engine, tmp_path, ())
    await agent.run_stage(asked)
    listed, tested, refused = await facts_of(journal, ToolUsed)
    assert "merge.py (34 bytes)" in listed.text and "::test_merges ... FAIL" in tested.text
    assert refused.problem is not None and "there is no tool 'diff'" in refused.problem.detail
    (outcome,) = await facts_of(journal, CallFinished)
    assert outcome.problem is None
    offered = {tool["function"]["name"] for tool in engine.bodies[0]["tools"]}
    assert offered == set(FILES_TOOLS)
    assert "return a + b" not in json.dumps(engine.bodies[0]), "a prompt holds no text of a file"
    await agent.close()


async def test_another_deliberation_or_tenant_reads_none_of_them(tmp_path: Path) -> None:
    journal, fact = InMemoryJournal(), accepted(with_files({"a": "secret"}))
    await journal.append("acme", fact)
    copies = copies_in(tmp_path)
    own = WorkspaceToolbox(copies, sandbox_in(tmp_path), RequestFiles(journal, fact.deliberation_id, "acme"))
    assert "secret" in await used(own, "read_file", path="a")
    for tenant, id in (("globex", fact.deliberation_id), ("acme", "another")):
        box = WorkspaceToolbox(copies, sandbox_in(tmp_path), RequestFiles(journal, id, tenant))
        with pytest.raises(ToolFailure, match="does not hold the files"):
            await box.use("list_files", {}, WITHIN_S)


@pytest.mark.parametrize("path", ["../a", "/etc/passwd", "a/../../b", ".git/config", "a\nM 100644 inline b", "a//b"])
async def test_a_record_with_a_path_that_leads_out_makes_no_copy(tmp_path: Path, path: str) -> None:
    box = await box_of(tmp_path, {path: "x", "fine": "y"})
    with pytest.raises(ToolFailure, match="leads out") as failure:
        await box.use("list_files", {}, WITHIN_S)
    assert failure.value.code == "refused"
    assert [each for each in (tmp_path / "copies").iterdir() if each.suffix != ".lock"] == []


async def test_a_text_that_reads_like_commands_of_the_import_stays_a_text(tmp_path: Path) -> None:
    forged = "x\n\nM 100644 inline forged\ndata 1\ny\ncommit refs/heads/files\ndone\n\x00\r\n"
    box = await box_of(tmp_path, {"a": forged, "b": ""})
    assert await used(box, "list_files") == f"a ({len(forged)} bytes)\nb (0 bytes)"
