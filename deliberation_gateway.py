"""The command `deliberate`, which finds its own packages before those of the same names in PYTHONPATH."""

import sys
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from app.cli import main

    main()
