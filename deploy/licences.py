"""The licences of what is locked: `python deploy/licences.py build/sbom.json`, after cyclonedx-py.

Writes the licence of every package into the bill of materials, and prints how many have each. Exits with 1 for a
licence that is not allowed, or not known. A package's own metadata is read, so the packages must be installed.
"""

import json
import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

VENDORED = Path(__file__).parents[1] / "app" / "ui" / "vendor" / "vendor.json"
# SPDX ids of licences that let this product be distributed under its own, with a copy of theirs.
ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "PSF-2.0", "Zlib"),
    # MIT's terms, and that no author's name advertises.
    "MIT-CMU",
    # Of files: a changed file of certifi's would have to be published, and nothing else.
    "MPL-2.0",
}
# Licences of packages that are not installed here, or whose metadata are vaguer than their licence files.
NAMED: Mapping[str, str] = {
    "colorama": "BSD-3-Clause",  # installed on Windows alone
    "httpx-aiohttp": "BSD-3-Clause",
    "httpx2-jsfetch": "BSD-3-Clause",  # installed in browsers alone
    "jinja2": "BSD-3-Clause",
    "protobuf": "BSD-3-Clause",
    "pyasn1-modules": "BSD-2-Clause",
    "pywin32": "PSF-2.0",  # installed on Windows alone
    "uvloop": "MIT OR Apache-2.0",
}
# The names that packages without an SPDX expression use.
_SPDX: Mapping[str, str] = {
    "Apache 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "ISC License": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}


def licence_of(name: str, found: PackageMetadata | None) -> str:
    """The licence of a package as an SPDX expression; its own words where they are none, and empty without any."""
    if name in NAMED or found is None:
        return NAMED.get(name, "")
    classified = [each.split(" :: ")[-1] for each in found.get_all("Classifier") or () if each.startswith("License ::")]
    given = found.get("License-Expression") or found.get("License") or " AND ".join(classified)
    first = classified[0] if len(given) > 64 and classified else given.partition("\n")[0]
    return _SPDX.get(first, first)


def allowed(expression: str) -> bool:
    """Whether one side of each `OR` is allowed whole; within brackets all must be."""
    if "(" in expression:
        return set(re.findall(r"[\w.+-]+", expression)) - {"AND", "OR", "WITH"} <= ALLOWED
    return any(set(side.split(" AND ")) <= ALLOWED for side in expression.split(" OR "))


def _installed(name: str) -> PackageMetadata | None:
    try:
        return metadata(name)
    except PackageNotFoundError:
        return None


def _vendored() -> list[dict[str, Any]]:
    """The libraries of the page, one component for each package, with the hashes of its files."""
    packages: dict[str, dict[str, Any]] = {}
    for each in json.loads(VENDORED.read_text()):
        name, version = each["package"], each["version"]
        purl = f"pkg:npm/{name.replace('@', '%40')}@{version}"
        component = {"type": "library", "bom-ref": purl, "purl": purl, "name": name, "version": version}
        packages.setdefault(name, {**component, "licence": each["licence"], "hashes": []})
        packages[name]["hashes"].append({"alg": "SHA-256", "content": each["sha256"]})
    return list(packages.values())


def main(path: Path) -> int:
    bill: dict[str, Any] = json.loads(path.read_text())
    by_licence: dict[str, list[str]] = {}
    vendored = _vendored()
    bill["components"] += vendored
    for component in bill["components"]:
        given = component.pop("licence", None)
        licence = given or licence_of(component["name"], _installed(component["name"]))
        component["licenses"] = [{"license": {"id": licence}} if licence in ALLOWED else {"expression": licence}]
        by_licence.setdefault(licence, []).append(component["name"])
    path.write_text(json.dumps(bill, indent=2, sort_keys=True) + "\n")
    refused = {licence: names for licence, names in by_licence.items() if not allowed(licence)}
    for licence, names in sorted(by_licence.items()):
        print(f"{len(names):4}  {licence or 'unknown'}" + (f"  not allowed: {', '.join(names)}" * (licence in refused)))
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
