import os
import sys
from pathlib import Path

from ray import serve

from serve_deployments.application import build
from serve_deployments.arguments import ApplicationArgs


def main(nats_url: str, engine_url: str, roles_file: str) -> None:
    arguments = ApplicationArgs(nats_url=nats_url, engine_urls=(engine_url,), roles_file=Path(roles_file))
    serve.run(build(arguments), name="local", _local_testing_mode=True)
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
