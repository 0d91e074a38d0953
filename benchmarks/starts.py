"""`python -m benchmarks.starts [--beside REVISION]`: how long `deliberate up` takes until it is ready, in seconds.

Each round starts a stack with an empty data directory, asks two roles for one answer each, and stops the stack.
`first use` is what the role that is not started before takes longer than the other one.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

UP = ["-c", "from app.cli import main; main()", "up", "--json", "--port", "0", "--simulate", "--duration-ms 0"]


def answered_in_s(client: httpx.Client, role: str) -> float:
    """The seconds from a question to a role until its answer; raises AssertionError without one."""
    began_s = time.monotonic()
    body = {"task": "Name a colour.", "role": role, "num_agents": 1, "strategy": "single"}
    answer = client.post("/deliberations", json=body, headers={"Prefer": "wait=60"}).json()
    assert answer["status"] == "completed", answer
    return time.monotonic() - began_s


def round_() -> dict[str, float]:
    """One start in the tree that is imported; raises EOFError when the stack ends before it is ready."""
    with tempfile.TemporaryDirectory() as directory:
        environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
        command = [sys.executable, *UP, "--data-dir", directory]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    event = json.loads(line)
                    if event.get("event") == "ready":
                        with httpx.Client(base_url=event["url"], timeout=70) as client:
                            usual_s, first_s = (answered_in_s(client, role) for role in ("DEV", "QA"))
                        return {"ready": float(event["seconds"]), "first use": first_s - usual_s}
            finally:
                process.send_signal(signal.SIGINT)
                process.communicate()
    raise EOFError("the stack ended before it was ready")


if __name__ == "__main__":
    if "--round" in sys.argv:
        print(json.dumps(round_()))
    else:
        from benchmarks.beside import compare

        compare(__file__, __doc__, rounds=4)
