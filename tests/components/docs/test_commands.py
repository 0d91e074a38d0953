"""Every block of commands in the documentation can be run, or says why not; its commands and options exist."""

import re
import shlex
import subprocess
import sys
from collections import defaultdict
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from app.cli import cli
from tests.components.docs.blocks import ENDLESS, NOT_RUN, STACK_WITH_KEYS, WITH_KEYS, blocks
from tests.components.docs.tables import ROOT

BLOCKS = blocks()
LANGUAGES = {"sh", "text", "json", "http", "python", "toml", "ts", "tsx", "yaml", "mermaid"}
COMMANDS = [(block, command) for block in BLOCKS if block.language == "sh" for command in block.commands]
BENCHMARK = re.compile(r"python\s+-m\s+(benchmarks[a-z._]*)([^`]*)`")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_block_names_its_language() -> None:
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []
    assert len(COMMANDS) > 40


def test_a_block_of_commands_runs_or_says_why_not() -> None:
    modes = {"", WITH_KEYS, STACK_WITH_KEYS, ENDLESS, NOT_RUN}
    assert [str(block) for block in BLOCKS if block.mode not in modes] == []
    assert [
        str(block) for block in BLOCKS if (block.mode == NOT_RUN) != bool(block.reason) and block.language == "sh"
    ] == []


# In one process: each benchmark alone takes seconds to import the product.
HELP_OF_EACH = """
import runpy, sys
for name in sys.argv[1:]:
    print("\\0" + name)
    sys.argv = [name, "--help"]
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        assert not ended.code, name
"""


def test_every_target_of_make_exists() -> None:
    named = [(str(block), found) for block, command in COMMANDS for found in re.findall(r"\bmake ([a-z-]+)", command)]
    assert len(named) >= 10
    assert [each for each in named if each[1] not in TARGETS] == []


def test_every_option_of_a_benchmark_exists() -> None:
    """A figure's command must run as it is written, so that anyone can repeat it."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = defaultdict[str, set[str]](set)
    for page in pages:
        for module, options in BENCHMARK.findall(page.read_text()):
            named[module] |= set(re.findall(r"--[a-z-]+", options))
    assert len(named) >= 15
    command = [sys.executable, "-c", HELP_OF_EACH, *named]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300).stdout
    helped = dict(each.split("\n", 1) for each in shown.split("\0")[1:])
    assert {name for name, text in helped.items() if "usage:" in text} == named.keys()
    for module, options in named.items():
        assert options <= set(re.findall(r"--[a-z-]+", helped[module])), module


@pytest.mark.parametrize(
    ("where", "command"),
    [
        (str(block), found)
        for block, command in COMMANDS
        for found in re.findall(r"(?:^|\$\(|-- )(deliberate [^)#|&<>\n]*)", command)
    ],
)
def test_a_documented_command_line_is_valid(where: str, command: str) -> None:
    """Parsed without being run, so this covers the blocks that are not run too."""
    _, *arguments = shlex.split(command)
    found: Any = typer.main.get_command(cli)
    context = None
    while isinstance(found, TyperGroup):
        context = typer.Context(found, context, found.name)
        _, found, arguments = found.resolve_command(context, arguments)
    found.make_context(found.name, arguments, context)
