"""Parts of a prompt that shape an answer: the task, the candidates, the writer's own text and the issues raised.

Prompts mark them alike: a section `# Task`, and text between two fence lines that carry one nonce, named by the line
above (`Candidate B:`). Every part is optional; a bare question is the task.
"""

import builtins
import json
import keyword
import re
import textwrap
from collections.abc import Sequence
from functools import cached_property
from typing import Any

_TASK = re.compile(r"^#+[ \t]*Task[ \t]*\n(.*?)(?=^#{1,2} |\Z)", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(
    r"^(?P<heading>[^\n]*)\n<<<\s*[\w-]+[ \t]+(?P<nonce>[\w-]{6,})(?:>>>)?[ \t]*\n"
    r"(?P<text>.*?)\n?^[^\n]*(?P=nonce)[^\n]*>>>",
    re.MULTILINE | re.DOTALL,
)
_LABEL = re.compile(r"\bcandidate\s+([A-Z]{1,2})\b\W*$", re.IGNORECASE)
_OWN = re.compile(r"^Candidate ([A-Z]{1,2}) is your own\b", re.MULTILINE)
_FIX = re.compile(r"^[ \t]*\d+[.)]\s.*?(?:\bFix: *(.+))?$", re.MULTILINE)
_FUNCTION = re.compile(r"\bdef\s+([A-Za-z_]\w*)\s*\(|(?<![\w.])([A-Za-z_]\w*)\(|\"call\": \"([A-Za-z_]\w*)\"")
_ENTRY_POINT = "solve"
_TITLE_CHARS = 72
_CONVERSATION = "in the conversation that follows"
_RESULT = re.compile(r"^Result of call (\S+):\n", re.MULTILINE)
# Smolagents has no messages of tools: it tells a call in Python's form, or the error alone.
_TOLD_CALL = re.compile(r"'type': 'function'|^Error:\n", re.MULTILINE)


class PromptReader:
    def __init__(self, texts: tuple[str, ...]) -> None:
        self._text = "\n\n".join(texts)
        self._last = texts[-1]

    @cached_property
    def task(self) -> str:
        match = _TASK.search(self._text)
        if match and _CONVERSATION in match.group(1):
            # The user's last message, which stands before the work.
            said = self._last.partition("\n\n# ")[0].strip()
            return "the results of the calls" if _RESULT.match(said) else said
        return (match.group(1).strip() if match else "") or self._last

    @cached_property
    def title(self) -> str:
        sentence = re.split(r"(?<=[.?!;:])\s|\n", self.task.strip(" \n#*`>-"), maxsplit=1)[0].rstrip(".;:! ")
        return textwrap.shorten(sentence, _TITLE_CHARS, placeholder=" …") or "the question"

    @cached_property
    def _fenced(self) -> list[tuple[str, str]]:
        return [(match["heading"].lower(), match["text"]) for match in _FENCED.finditer(self._text)]

    @cached_property
    def tool_results(self) -> list[tuple[str, str]]:
        """The first line of each result of a tool, with the tool's name."""
        results = ((re.match(r"result of tool (\S+), use", heading), text) for heading, text in self._fenced)
        return [(name[1], text.strip().partition("\n")[0]) for name, text in results if name]

    @cached_property
    def results(self) -> int:
        """How many calls of the client's tools have returned."""
        return len(_RESULT.findall(self._text)) + len(_TOLD_CALL.findall(self._text))

    def called_lines(self, names: Sequence[str]) -> list[list[tuple[str, str]]]:
        """The calls of these tools that each line of the texts spells out, as `add({"a": 1})`: names and arguments."""
        pattern = re.compile(rf"\b({'|'.join(map(re.escape, names))})\((\{{[^\n]*?\}})\)")
        return [calls for line in self._text.splitlines() if (calls := pattern.findall(line))]

    def _under(self, word: str) -> str:
        return next((text for heading, text in self._fenced if word in heading), "")

    @cached_property
    def candidates(self) -> dict[str, str]:
        labelled = ((_LABEL.search(heading), text) for heading, text in self._fenced)
        return {label.group(1).upper(): text for label, text in labelled if label is not None}

    @cached_property
    def schema(self) -> dict[str, Any] | None:
        _, sign, schema = self._last.rpartition("JSON Schema:\n")
        try:
            return json.loads(schema) if sign else None
        except ValueError:
            return None

    @cached_property
    def own(self) -> str:
        """The writer's own text, or "" when the prompt shows none: the candidate that the prompt calls the writer's."""
        if letters := _OWN.findall(self._text):
            return self.candidates.get(letters[-1], "")
        return self._under("your ")

    @cached_property
    def fixes(self) -> list[str]:
        return _FIX.findall(self._under("issues"))

    @cached_property
    def entry_point(self) -> str:
        """The first function that the task, or else a given test, names; `solve` when there is none."""
        for text in (self.task, self._under("tests")):
            matches = sorted(_FUNCTION.findall(text), key=lambda match: not match[0])
            names = map("".join, matches)
            named = next((name for name in names if not keyword.iskeyword(name) and not hasattr(builtins, name)), None)
            if named is not None:
                return named
        return _ENTRY_POINT
