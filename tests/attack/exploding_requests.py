"""Requests within the limits of size that parsers may explode on."""

import json

from app.api.request_body import BODY_BYTES_MAX

TASK = "A task."

FULL = BODY_BYTES_MAX - 1_000
_DOUBLING: dict[str, object] = {
    f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n - 1}"}] * 2} if n else {"type": "string"} for n in range(8)
}
_CALLING = {"role": "assistant", "calls": [{"id": "c", "name": "f", "arguments": {"a": "x" * 1_000_000}}]}


def tools(properties: dict[str, object], definitions: dict[str, object] | None = None) -> bytes:
    schema = {"type": "object", "properties": properties, "$defs": definitions or {}}
    listed = [{"name": f"t{n}", "parameters": schema} for n in range(128)]
    return json.dumps({"task": TASK, "actions": {"tools": listed}}).encode()[:FULL]


BODIES: dict[str, bytes] = {
    "deep lists": b"[" * FULL,
    "deep objects": b'{"a":' * (FULL // 5),
    "a long integer": b'{"seed":' + b"9" * FULL + b"}",
    "a long fraction": b'{"task":"t","sampling":{"temperature":0.' + b"1" * FULL + b"}}",
    "a huge exponent": b'{"task":"t","sampling":{"temperature":1e-' + b"9" * 5_000 + b"}}",
    "escapes": b'{"task":"' + b"\\u0041" * (FULL // 6) + b'"}',
    "half surrogates": b'{"task":"' + b"\\ud800" * (FULL // 6) + b'"}',
    "many unknown fields": json.dumps({f"f{n}": n for n in range(18_000)}).encode(),
    "many equal fields": b"{" + b",".join([b'"task":"t"'] * 20_000) + b"}",
    "colliding fields": json.dumps({str(n * (2**61 - 1)): 0 for n in range(9_000)}).encode(),
    "many faults in a list": json.dumps({"task": TASK, "agents": [{"x": 1}] * 30_000}).encode(),
    "many requirements": json.dumps({"task": TASK, "constraints": {"requirements": [0] * 60_000}}).encode(),
    "many criteria": json.dumps({"task": TASK, "constraints": {"rubric": [{"id": "a"}] * 20_000}}).encode(),
    "white space": b" " * FULL + b"x",
    "a blank task": json.dumps({"task": "\u2003" * 32_768, "num_agents": 99}).encode(),
    "a long URL": json.dumps({"task": TASK, "webhook": {"url": "https://" + "a." * 100_000}}).encode(),
    "a URL of labels": json.dumps({"task": TASK, "webhook": {"url": "https://" + "a-" * 1_000 + "!"}}).encode(),
    "many tools": json.dumps({"task": TASK, "actions": {"tools": [{"name": f"t{n}"} for n in range(15_000)]}}).encode(),
    "tools that double": tools({"x": {"$ref": "#/$defs/a7"}}, _DOUBLING),
    "wide tools": tools({f"p{n}": {"type": "string", "description": "d"} for n in range(400)}),
    "a deep tool": tools({"x": json.loads('{"items":' * 20 + "{}" + "}" * 20)}),
    "many turns": json.dumps({"conversation": [{"role": "user", "text": "a"}] * 50_000}).encode(),
    "long arguments": json.dumps({"conversation": [_CALLING]}).encode(),
    "many messages": json.dumps({"model": "single", "messages": [{"role": "x"}] * 15_000}).encode(),
}
LONG = 7_500
PATHS: dict[str, str] = {
    "a key in the query, almost": "/deliberations?x=" + "dlb_aaaaaaaaaaaa_" * (LONG // 17),
    "many parameters": "/deliberations?" + "a&" * (LONG // 2),
    "many escapes": "/deliberations?x=" + "%2525" * (LONG // 5),
    "many dots": "/" + "../" * (LONG // 3),
    "many slashes": "/" * LONG,
    "a long id": "/deliberations/" + "a" * LONG,
    "a long cursor": "/deliberations?cursor=" + "1:" * (LONG // 2),
    "a long date": "/deliberations?created_after=2026-01-01T00:00:00." + "0" * LONG + "Z",
    "many types": "/events?types=" + "a," * (LONG // 2),
    "a long cursor of events": "/deliberations/a/events?after=" + "a-" * (LONG // 2),
}
HEADERS: dict[str, tuple[str, str]] = {
    "spaces in Prefer": ("Prefer", "wait" + " " * 30_000 + "x"),
    "many preferences": ("Prefer", "wait=1x," * 4_000),
    "many media types": ("Accept", "text/html;q=0.1," * 2_000),
    "a long Accept": ("Accept", "*/" * 15_000),
    "a long key": ("Idempotency-Key", "a" * 30_000),
    "a long request id": ("X-Request-Id", "a" * 30_000 + "\x7f"),
    "a long traceparent": ("traceparent", "00-" * 10_000),
    "many cookies": ("Cookie", "deliberate;" * 2_500),
    "a long Authorization": ("Authorization", "Bearer " + "dlb_" * 7_000),
    "many tags": ("If-None-Match", '"a",' * 7_000),
    "a long cursor": ("Last-Event-ID", "a-" * 15_000),
    "a long range": ("Range", "bytes=" + "0-0," * 7_000),
    "a long Host": ("Host", "a." * 4_000),
}

JSON = {"Content-Type": "application/json"}
