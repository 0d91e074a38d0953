"""The fenced blocks of the documentation, and what a comment above a block of commands says about running it."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.components.docs.tables import ROOT

PAGES = ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "deploy/README.md", "examples/README.md")
# How a block of commands is run. Without a comment it runs beside a stack in development mode.
NOT_RUN = "not run"
WITH_KEYS = "with keys"
STACK_WITH_KEYS = "the stack with keys"
ENDLESS = "runs until Ctrl-C"
_BLOCK = re.compile(
    r"(?:^<!-- (?P<comment>[^\n]*?) -->\n)?^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its page, first line, language and text, and the comment above it."""

    page: str
    line: int
    language: str
    text: str
    comment: str

    @property
    def mode(self) -> str:
        return self.comment.partition(":")[0] if self.language == "sh" else ""

    @property
    def reason(self) -> str:
        return self.comment.partition(":")[2].strip()

    @property
    def commands(self) -> list[str]:
        """The commands, one for each line; an indented line, or one after a backslash or in quotes, continues one."""
        commands, open_ = list[str](), False
        for line in self.text.splitlines():
            if open_ and commands:
                commands[-1] += "\n" + line
            elif line.strip():
                commands.append(line)
            open_ = bool(commands) and (commands[-1].endswith("\\") or commands[-1].count("'") % 2 == 1)
        return commands

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> list[Block]:
    pages = [*(ROOT / name for name in PAGES), *sorted(ROOT.glob("docs/**/*.md"))]
    return [block for page in pages if page.exists() for block in _blocks_of(page)]


def _blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))
    return [
        Block(
            name,
            text.count("\n", 0, found.start("language")) + 1,
            found["language"],
            found["text"],
            found["comment"] or "",
        )
        for found in _BLOCK.finditer(text)
    ]
