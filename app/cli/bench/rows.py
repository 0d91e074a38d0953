"""The rows of a bench: a graded question each, written at once, so that a run that was cut goes on where it stood."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from app.cli.bench.grading import GradedAnswer
from app.cli.client import JsonObject
from app.cli.exits import CommandError, Exit, cause
from app.deliberation.answers import canonical_json


class GradedRows:
    """Graded questions by their requests and the role's models. With a file, each new one is written there at once.

    Raises CommandError for a file that cannot be read or has other lines.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, GradedAnswer] = {}
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            remedy = "name another file by --rows"
            raise CommandError(Exit.USAGE, "rows_unreadable", f"{path}: {cause(error)}", remedy=remedy) from error
        for number, line in enumerate(lines, start=1):
            try:
                row = cast("dict[str, Any]", json.loads(line))
                self._known[row["asked"]] = GradedAnswer(**row["graded"])
            except (ValueError, KeyError, TypeError) as error:
                if not isinstance(error, KeyError | TypeError):
                    # A kill may have cut it.
                    continue
                detail, remedy = f"{path}: line {number} is no row of a bench", "name another file by --rows"
                raise CommandError(Exit.USAGE, "rows_unreadable", detail, remedy=remedy) from error

    def graded(self, models: Sequence[str], body: JsonObject) -> GradedAnswer | None:
        """The row of an equal request, seed included; None where it must be asked."""
        return self._known.get(_key(models, body))

    def add(self, models: Sequence[str], body: JsonObject, graded: GradedAnswer) -> None:
        asked = _key(models, body)
        self._known[asked] = graded
        if self._path is None:
            return
        row = {"asked": asked, "strategy": body["strategy"], "seed": body["seed"], "graded": asdict(graded)}
        line = json.dumps(row)
        with self._path.open("a+b") as file:
            # Behind a line that was cut begins a new one.
            file.seek(0, 2)
            if end := file.tell():
                file.seek(end - 1)
                line = line if file.read() == b"\n" else f"\n{line}"
            file.write(f"{line}\n".encode())


def _key(models: Sequence[str], body: JsonObject) -> str:
    text = json.dumps([models, body])
    return hashlib.sha256((canonical_json(text) or text).encode()).hexdigest()
