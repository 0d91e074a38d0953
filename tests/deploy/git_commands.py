"""Git in a checkout, with a name of its own."""

import subprocess
from pathlib import Path

SETTINGS = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", *SETTINGS, *arguments], cwd=root, check=True, capture_output=True)
