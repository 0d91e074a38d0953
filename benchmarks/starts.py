"""`python -m benchmarks.starts [--beside REVISION]`: how long `deliberate up` takes until it is ready, in seconds.

Each round starts a stack with an empty data directory, and stops it.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

UP = ["-c", "from app.cli import main; main()", "up", "--json", "--port", "0"]


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
                        return {"seconds": float(event["seconds"])}
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
