"""A tool server over standard input and output that lies in one way: `python -m tests.attack.evil_tool_server LIE`.

With the lie `every` it has a tool for each lie, which tells that one.
"""

import json
import os
import re
import sys
import time
from typing import Any

PATTERN = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}, "required": ["a"]}
NESTED = {
    "type": "object",
    **{"$ref": "#/$defs/l0"},
    "$defs": {
        **{f"l{n}": {"anyOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 6} for n in range(25)},
        "l25": {"type": "string"},
    },
}
LEFT_S = 30.0
TEXT = {"type": "text", "text": "the result"}

OUTPUT_SCHEMAS: dict[str, Any] = {
    "pattern": PATTERN,
    "nested": NESTED,
    "itself": {"type": "object", "$ref": "#"},
    "nowhere": {"type": "object", "$ref": "http://127.0.0.1:9/schema"},
    "no schema": {"type": "object", "properties": {"a": {"type": 5}}},
    "fits": {"type": "object", "properties": {"a": {"type": "string"}}},
    "fits not": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
INPUT_SCHEMAS: dict[str, Any] = {
    "allOf": {"type": "object", "allOf": 5},
    "anyOf": {"type": "object", "anyOf": {"a": 1}},
    "oneOf": {"type": "object", "oneOf": "text"},
    "$ref": {"type": "object", "$ref": "#/a/b/c"},
    "properties": {"type": "object", "properties": 5},
}
RESULTS: dict[str, Any] = {
    "parts": {"content": [{"type": "text", "text": ""}] * 60_000},
    "structure": {"content": [], "structuredContent": {"a": [[]] * 100_000}},
    "links": {"content": [{"type": "resource_link", "uri": "x" * 300, "name": "n" * 300}] * 64},
    "no content": {"content": 5},
    "a part": {"content": [{"type": "text", "text": 5}]},
    "an unknown part": {"content": [{"type": "other", "x": 1}]},
    "nothing": {},
    "a list": [],
}
# By the name of its tool.
LIES = {
    re.sub("[^A-Za-z]", "_", lie): lie for lie in (*OUTPUT_SCHEMAS, *INPUT_SCHEMAS, *RESULTS, "asks", "tells", "deep")
}


def tool(lie: str, name: str = "look_up") -> dict[str, Any]:
    described: dict[str, Any] = {"name": name, "inputSchema": INPUT_SCHEMAS.get(lie, {"type": "object"})}
    described["annotations"] = {"readOnlyHint": True}
    return described | ({"outputSchema": OUTPUT_SCHEMAS[lie]} if lie in OUTPUT_SCHEMAS else {})


def result(lie: str) -> Any:
    if lie in OUTPUT_SCHEMAS:
        return {"content": [TEXT], "structuredContent": {"a": "a" * 40 + "!"}}
    return RESULTS.get(lie, {"content": [TEXT]})


def main() -> None:
    lie = sys.argv[1]

    def say(message: dict[str, Any]) -> None:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    if lie == "leaves" and os.fork() == 0:
        # A process of another session, which keeps the server's output open.
        os.setsid()
        time.sleep(LEFT_S)
        os._exit(0)

    for line in sys.stdin:
        asked = json.loads(line)
        number, method = asked.get("id"), asked.get("method")
        if method == "initialize":
            server = {"name": "evil", "version": "1"}
            version = asked["params"]["protocolVersion"]
            say(
                {
                    "id": number,
                    "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server},
                }
            )
        elif method == "tools/list":
            tools = [tool(told, name) for name, told in LIES.items()] if lie == "every" else [tool(lie)]
            if lie == "names":
                tools += [{"name": "n" * 300, "inputSchema": {"type": "object"}}, *[tool(lie)] * 2]
            say({"id": number, "result": {"tools": tools}})
            if lie == "deaf":
                time.sleep(LEFT_S)
        elif method == "tools/call":
            told = LIES[asked["params"]["name"]] if lie == "every" else lie
            if told == "asks":
                body: dict[str, Any] = {"messages": [], "maxTokens": 1}
                for question in range(20_000):
                    say({"id": f"q{question}", "method": "sampling/createMessage", "params": body})
            if told == "tells":
                for _ in range(20_000):
                    say({"method": "notifications/message", "params": {"level": "info", "data": "x"}})
            if told == "values":
                for _ in range(100):
                    say({"method": "notifications/message", "params": {"level": "info", "data": [{"a": 1}] * 9_900}})
            while told == "lines":
                os.write(1, b"x\n" * 32_768)
            while told == "errors":
                os.write(2, b"x" * 65_536)
            if told == "leaves":
                sys.exit()
            if told == "deep":
                print(f'{{"jsonrpc":"2.0","id":{number},"result":{"[" * 100_000}{"]" * 100_000}}}', flush=True)
            say({"id": number, "result": result(told)})
        elif number is not None and method is not None:
            say({"id": number, "error": {"code": -32601, "message": "no such method"}})


if __name__ == "__main__":
    main()
