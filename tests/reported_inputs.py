"""Inputs of public reports that were once read wrongly, by their kind; each has its right outcome and its sources."""

import json
from pathlib import Path
from typing import Any

REPORTED: dict[str, dict[str, Any]] = {
    report["name"]: report
    for report in json.loads((Path(__file__).parent / "fixtures" / "reported_inputs.json").read_text(encoding="utf-8"))
}


def reported(kind: str) -> list[str]:
    """The names of the reports of a kind; a kind without any would test nothing."""
    names = [name for name, report in REPORTED.items() if report["kind"] == kind]
    assert names, f"no report is of the kind {kind}"
    return names
