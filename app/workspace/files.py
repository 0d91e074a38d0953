"""Paths of files that requests send: each stays inside, and no two are one file on any system."""

import unicodedata
from collections.abc import Iterator, Sequence

from app.control_characters import has_control

PATH_BYTES_MAX = 255
DEPTH_MAX = 16


def path_fault(path: str) -> str:
    """The reason why a path is refused; empty for one that stays inside."""
    parts = path.split("/")
    if {"", ".", ".."} & set(parts) or "\\" in path:
        return "A path is relative, with `/` between names, and without empty names, `.` and `..`"
    if has_control(path) or path != unicodedata.normalize("NFC", path):
        return "A path has no control characters, and is in Unicode's form NFC"
    if any(part.casefold() in (".git", "git~1") or part.endswith(".") or part != part.strip() for part in parts):
        return "No name is `.git`, ends with a dot, or has a space at an end"
    if len(path.encode()) > PATH_BYTES_MAX or len(parts) > DEPTH_MAX:
        return f"A path has at most {PATH_BYTES_MAX} bytes and {DEPTH_MAX} names"
    return ""


def same_paths(paths: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The places of paths that an earlier path takes: a path that differs in case, or a file where a directory is."""
    files, directories = set[str](), set[str]()
    for place, path in enumerate(paths):
        known = path.casefold()
        above = {known[:end] for end, character in enumerate(known) if character == "/"}
        if known in files:
            yield place, "Two files have this path; upper and lower case are the same"
        elif known in directories or above & files:
            yield place, "A file and a directory have this path"
        files.add(known)
        directories |= above
