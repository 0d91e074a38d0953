import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.shell_stacks import asked, names, running

# Beside it every other test would wait for the CPU.
pytestmark = pytest.mark.long


def test_a_machine_with_three_busy_loops_per_core_gets_ready_and_restarts_nothing(tmp_path: Path) -> None:
    loops = [
        subprocess.Popen((sys.executable, "-S", "-c", "while True: pass"), start_new_session=True)
        for _ in range(3 * (os.cpu_count() or 1))
    ]
    try:
        with running("{up} --port 0 --data-dir d", tmp_path, {}) as events:
            assert names(events, "child_died") == []
            assert sorted(names(events, "child_ready")) == sorted(names(events, "child_started"))
            for loop in loops:
                loop.kill()
            assert asked(events[-1]["url"])["status"] == "completed"
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
