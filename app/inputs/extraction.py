"""The program of a child that reads one file: `extraction KIND SOURCE TARGET CHARSET`.

It writes the text or the picture to the target, and says in lines of JSON that it has begun and what came of it.
"""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from app.inputs.extracted import Extracted, NotExtracted

BEGUN = b'"begun"\n'
"""What the child says once everything is imported: how it ends from then on is the file's doing."""

_MODULES = {"text": "encodings", "pdf": "pdf", "docx": "word"}


def main() -> None:
    kind, source, target, charset = sys.argv[1:]
    # The libraries of a kind take longer to import than a text in another encoding takes to read.
    module = import_module(f"app.inputs.{_MODULES.get(kind, 'pictures')}")
    _say("begun")
    read: Callable[[Path, str], Extracted] = module.extract
    _say(_outcome(read, Path(source), charset if kind in _MODULES else kind, Path(target)))


def _outcome(read: Callable[[Path, str], Extracted], source: Path, option: str, target: Path) -> dict[str, Any]:
    try:
        extracted = read(source, option)
    except NotExtracted as refusal:
        return {"code": refusal.code, "detail": refusal.detail}
    except MemoryError:
        return {"code": "file_too_costly"}
    try:
        target.write_bytes(extracted.data)
    except OSError as failure:
        return {"errno": failure.errno}
    return {"pages": extracted.pages, "width": extracted.width, "height": extracted.height}


def _say(value: object) -> None:
    print(json.dumps(value), flush=True)
