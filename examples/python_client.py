"""Submit a task, watch the council, and print the verdict; a broken stream resumes at its cursor.

    python examples/python_client.py "Name three risks of a big rewrite." --url http://127.0.0.1:8080

The environment gives DELIBERATE_URL, and DELIBERATE_API_KEY where the gateway asks for keys. Needs only httpx.
"""

import argparse
import json
import os
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import httpx

TERMINAL = ("deliberation.completed", "deliberation.failed", "deliberation.cancelled", "deliberation.timeout")
ATTEMPTS = 5


def submit(client: httpx.Client, body: dict[str, Any]) -> str:
    """Submit a deliberation and return its path. The key makes retries safe: they return the same deliberation."""
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    for attempt in range(1, ATTEMPTS + 1):
        try:
            response = client.post("/deliberations", json=body, headers=headers)
            if response.status_code not in (429, 503) or attempt == ATTEMPTS:
                response.raise_for_status()
                return response.headers["Location"]
            wait_s = float(response.headers.get("Retry-After", "1"))
        except httpx.TransportError:
            if attempt == ATTEMPTS:
                raise
            wait_s = 1.0
        time.sleep(wait_s)
    raise AssertionError("the last attempt returns or raises")


def blocks(chunks: Iterable[bytes]) -> Iterator[dict[str, str]]:
    """The fields of each block of a server-sent stream; comments have none."""
    rest = b""
    for chunk in chunks:
        *complete, rest = (rest + chunk).split(b"\n\n")
        for block in complete:
            # Not splitlines(): it splits at U+2028, which JSON may contain and this protocol does not treat as a line
            # end.
            lines = [line.partition(": ") for line in block.decode().split("\n") if line and not line.startswith(":")]
            yield {name: value for name, _, value in lines}


def events(client: httpx.Client, path: str) -> Iterator[dict[str, Any]]:
    """Every event from the beginning to the end, once each, across broken connections."""
    cursor, wait_s = None, 1.0
    while True:
        position: dict[str, Any] = {"params": {"after": "0"}} if cursor is None else {}
        headers = {"Accept": "text/event-stream"} | ({} if cursor is None else {"Last-Event-ID": cursor})
        try:
            # The gateway sends a comment every ten seconds, so a longer silence is a broken connection.
            with client.stream("GET", f"{path}/events", headers=headers, timeout=30, **position) as response:
                if response.status_code == 204:
                    return
                if response.status_code != 503:
                    response.raise_for_status()
                    for fields in blocks(response.iter_bytes()):
                        cursor = fields.get("id", cursor)
                        wait_s = float(fields["retry"]) / 1_000 if "retry" in fields else wait_s
                        if "data" in fields:
                            event = json.loads(fields["data"])
                            yield event
                            if event["type"] in TERMINAL:
                                return
        except httpx.TransportError as error:
            print(f"… {type(error).__name__}: resuming after {cursor}", file=sys.stderr)
        time.sleep(wait_s)


def watch(client: httpx.Client, path: str) -> dict[tuple[str, int], str]:
    """Print the progress; returns the rebuilt text of every attempt of every call."""
    texts: dict[tuple[str, int], str] = {}
    for event in events(client, path):
        match event["type"]:
            case "stage.opened":
                print(f"{event['purpose']}: {len(event['calls'])} calls", flush=True)
            case "call.delta":
                attempt = (event["call_id"], event["attempt"])
                # Each piece has an offset, so a repeated piece changes nothing.
                texts[attempt] = texts.get(attempt, "")[: event["offset"]] + event["text"]
            case "call.finished":
                outcome = event["finish_reason"] if event["problem"] is None else event["problem"]["code"]
                print(f"  {event['agent_id']}: {outcome} after {event['duration_ms']} ms", flush=True)
            case kind if kind in TERMINAL:
                print(kind.removeprefix("deliberation."), flush=True)
            case _:
                pass
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="Name three risks of a big rewrite, and what to do about each.")
    parser.add_argument("--url", default=os.environ.get("DELIBERATE_URL", "http://127.0.0.1:8080"))
    parser.add_argument("--agents", type=int, default=3)
    options = parser.parse_args()
    key = os.environ.get("DELIBERATE_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=options.url, headers=headers, timeout=10) as client:
        path = submit(client, {"task": options.task, "num_agents": options.agents})
        print(f"accepted: {options.url}{path}", flush=True)
        watch(client, path)
        found = client.get(path).raise_for_status().json()
    verdict = found["verdict"]
    if verdict is None:
        print(f"{found['status']}: {found['problem'] or found['status_reason']}", file=sys.stderr)
        return 1
    for entry in verdict["ranking"]:
        print(f"{entry['rank']}. {entry['agent_id']}  {entry['score']}")
    print(f"\n{verdict['content']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
