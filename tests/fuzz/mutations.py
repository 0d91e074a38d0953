import json
import random
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, cast

from app.api.request_body import BODY_BYTES_MAX
from app.openapi.document import document

FULL: dict[str, Any] = {
    "task": "Compare 'a' and \"b\": é, 🟥, \u2028, \\.",
    "agents": [{"role": "DEV", "count": 2, "model": "m", "temperature": 0.2}, {"role": "QA"}],
    "strategy": "council",
    "parameters": {"aggregation": "borda"},
    "rounds": 2,
    "constraints": {
        "rubric": [{"id": "a", "description": "d", "weight": 2.5}, {"id": "b", "description": "e"}],
        "requirements": ["short", "true"],
        "timeout_seconds": 60,
        "metadata": {"k": "v"},
    },
    "quorum": 2,
    "budget": {"max_tokens": 100_000, "max_calls": 40},
    "sampling": {"temperature": 0.7, "max_tokens": 512, "top_p": 0.9},
    "seed": 7,
    "metadata": {"project": "fuzz", "a.b-c_d": ""},
    "webhook": {"url": "https://hooks.example.com/x", "events": ["deliberation.completed"]},
}
SEEDS: list[dict[str, Any]] = [
    FULL,
    {"task": "x"},
    {"task": "x", "role": "QA", "num_agents": 5, "strategy": "vote"},
    {"task": "x", "strategy": "execute", "parameters": {}},
    {"task": "x", "strategy": "auto", "num_agents": 3, "constraints": {"rubric": "In one sentence."}},
    *(
        each["value"]
        for each in document()["paths"]["/deliberations"]["post"]["requestBody"]["content"]["application/json"][
            "examples"
        ].values()
    ),
]
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 5, 6, 32, 33, 3_601, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**70), 10**300),
    *(0.0, -0.0, 0.5, 1.0, 3.0, 1.5, 2.0000001, 1e-320, 1e300),
    *("", " ", "\n", "\0", "x", "DEV", "council", "0", "null", "%00", "../..", "*", ">", "{{x}}", "${x}", "\x7f"),
    *("a" * 64, "a" * 65, "a" * 600, "x" * 32_769, "é" * 300, "🟥" * 9, "\u2028", "\ufeff", "\u202e", "\ud7ff"),
    *([], [[]], {}, {"": ""}, [None], [1] * 40, {"a": {"b": {"c": []}}}, {str(n): "v" for n in range(40)}),
    *("https://127.0.0.1/x", "https://[::1]/", "http://x", "https://x:99999/", "https://user:pw@x.example/", "ftp://x"),
]
# Texts in place of a value that are invalid JSON or that parsers treat differently.
TEXTS = (
    *("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "01", "1.", ".5", "+1", "0x10", "1_000", "nul"),
    *(r'"\ud800"', r'"\udc00\ud800"', r'"\u0000"', r'"\x"', '"\t"', '"unended', "'x'", "[1,]", '{"a":1,}', "// x"),
    *("9" * 400, "9" * 5_000, "-" + "1" * 40, "[" * 40 + "]" * 40, "[" * 9_000, '{"a":' * 40 + "1" + "}" * 40),
)
_PLACEHOLDER = re.compile(r'"@@(\d+)@@"')


def positions(node: object) -> Iterator[tuple[Any, Any]]:
    items: list[tuple[Any, object]] = []
    if isinstance(node, dict):
        items = list(cast("dict[str, object]", node).items())
    elif isinstance(node, list):
        items = list(enumerate(cast("list[object]", node)))
    for key, value in items:
        yield node, key
        yield from positions(value)


class Mutator:
    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._mutations = (
            self._replaced,
            self._replaced,
            self._invalidated,
            self._removed,
            self._wrapped,
            self._renamed,
        )
        self._mutations += (self._borrowed, self._repeated)

    def body(self) -> bytes:
        value: Any = json.loads(json.dumps(self._draw.choice(SEEDS)))
        for _ in range(self._draw.choice([0, 1, 1, 1, 2, 2, 3, 5])):
            found = list(positions(value))
            if found:
                self._draw.choice(self._mutations)(*self._draw.choice(found))
        if self._draw.random() < 0.02:
            value = self._draw.choice(VALUES)
        text = json.dumps(value, ensure_ascii=self._draw.random() < 0.5)
        body = _PLACEHOLDER.sub(lambda found: TEXTS[int(found[1])], text).encode("utf-8", "surrogatepass")
        return self._broken(body) if self._draw.random() < 0.3 else body

    def _replaced(self, container: Any, key: Any) -> None:
        container[key] = deepcopy(self._draw.choice(VALUES))

    def _invalidated(self, container: Any, key: Any) -> None:
        container[key] = f"@@{self._draw.randrange(len(TEXTS))}@@"

    def _removed(self, container: Any, key: Any) -> None:
        del container[key]

    def _wrapped(self, container: Any, key: Any) -> None:
        container[key] = self._draw.choice([[container[key]], {"value": container[key]}, [container[key], 1]])

    def _renamed(self, container: Any, key: Any) -> None:
        if isinstance(container, dict):
            name = self._draw.choice([f"{key} ", str(key).upper(), f"{key}\0", f"/{key}~", "", "a" * 300, "__proto__"])
            container[name] = container.pop(key)

    def _borrowed(self, container: Any, key: Any) -> None:
        other, name = self._draw.choice(list(positions(self._draw.choice(SEEDS))))
        container[key] = json.loads(json.dumps(other[name]))

    def _repeated(self, container: Any, key: Any) -> None:
        if isinstance(container, list):
            container.extend([container[key]] * self._draw.choice([1, 15, 40]))
        else:
            container[key] = self._draw.choice(["x", "é", "🟥", "\\", '"']) * self._draw.choice(
                [64, 513, 2_001, 32_768]
            )

    def _broken(self, body: bytes) -> bytes:
        draw = self._draw
        at = draw.randrange(len(body) + 1)
        match draw.randrange(9):
            case 0:
                return body[:at]
            case 1:
                return body[:at] + bytes([draw.randrange(256)]) + body[at:]
            case 2:
                return body[:at] + body[at + 1 + draw.randrange(4) :]
            case 3:
                return body[:at] + draw.choice(TEXTS).encode() + body[at:]
            case 4:
                return body[:at] + draw.choice([b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf8\x88", b"\0"]) + body[at:]
            case 5:
                return b"\xef\xbb\xbf" + body
            case 6:
                return body + draw.choice([body, b"{}", b"\n", b"\0", b"]"])
            case 7:
                return b" " * draw.choice([1, 1_000, BODY_BYTES_MAX]) + body
            case _:
                return body.decode("utf-8", "replace").encode(draw.choice(["utf-16", "utf-32", "utf-16-le"]))
