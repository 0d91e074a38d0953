"""A stack that a shell starts, and what it is asked."""

import json
import os
import signal
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.conftest import DELIBERATE, TASK


@contextmanager
def running(script: str, here: Path, variables: Mapping[str, str], around: Sequence[str] = ()) -> Generator[list[Any]]:
    """A stack that the shell starts, with the events until it is ready; it stops in order."""
    command = [*around, "sh", "-c", f"{script.format(up=f'exec {DELIBERATE} up --json')}"]
    process = subprocess.Popen(command, cwd=here, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    events = list[Any]()
    try:
        for line in process.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "ready":
                break
        yield events
    finally:
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and json.loads(rest.splitlines()[-1])["left"] == [], rest


def names(events: Sequence[Any], event: str) -> list[str]:
    return [told["name"] for told in events if told["event"] == event]


def asked(url: str, around: Sequence[str] = ()) -> Any:
    command = [*around, str(DELIBERATE), "ask", TASK, "--url", url, "--strategy", "single", "--agents", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
