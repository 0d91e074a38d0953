"""No input of a client makes a parser's time grow faster than the input."""

import asyncio
import gc
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import pytest
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request

from app.access.keys import looks_like_key
from app.access.origins import Cors, cors, known_host, same_site
from app.api.cursor import parse_cursor
from app.api.headers import media_of, submission_of, wait_of
from app.api.request_body import parsed_body
from app.api.requests import DeliberationRequest
from app.archive.database.search_query import parse
from app.archive.database.words import split
from app.cli.render.text import json_line, printable, prose
from app.deliberation.answer_schema import rebuilt_schema
from app.deliberation.conversation import conversation_mark, task_of
from app.deliberation.errors import DeliberationError
from app.facades.chat.reader import ChatCompletionRequest, ChatRequestMessage
from app.facades.openai_errors import param
from app.lifecycle.lists import _parsed as parsed_list_cursor  # pyright: ignore[reportPrivateUsage]
from app.routes.deliberations import _query  # pyright: ignore[reportPrivateUsage]
from app.routes.middleware import key_in_url, usable_request_id
from app.sse import SseDecoder
from benchmarks.fixed_loop import loop_once

SIZE = 50_000
REPEATED = 3
# Beside other work a measurement may be off: what is slow is slow each time.
ATTEMPTS = 5
# Of linear work the time doubles with the input; of quadratic work it is fourfold.
GROWTH_MAX = 3.0
# Less is noise.
NOISE_S = 0.004
# A machine under load gives less; the loop of one that is quiet takes 5 ms.
LIMIT_LOOPS = 10
# What parsers meet again and again: blanks, quotes, brackets, separators, escapes, letters of other scripts.
UNITS = (
    *(
        " ",
        "\t",
        '"',
        "-",
        '-"',
        "a",
        "a ",
        "ab*",
        "OR ",
        "[",
        "{",
        "(",
        ":",
        ",",
        ";",
        "=",
        "/",
        "~",
        "\\",
        "%25",
        "&",
    ),
    *(
        "&a=",
        "wait=",
        "wait = ",
        "1",
        "0-",
        "<",
        "é",
        "a\u0301",
        "\u202e",
        "❤\ufe0f\u200d",
        "東",
        "dlb_",
        "*/*,",
        "q=0;",
    ),
    '{"a":',
)
# The characters of an input are bounded before these parsers; a command has its process for itself.
BOUNDS = {"search": 256, "list query": 8_192, "metadata filter": 8_192, "URL": 8_192}
OF_COMMANDS = ("terminal", "JSON for a terminal", "prose", "unfinished prose")


def request(headers: Mapping[str, str] = {}, query: str = "") -> Request:
    given = [(name.encode(), value.encode("utf-8", "replace")) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": given, "query_string": query.encode()}
    return Request(scope)


def preflight(text: str) -> object:
    named = {"origin": "https://a", "access-control-request-method": "GET", "access-control-request-headers": text}
    return Cors(lambda *_: asyncio.sleep(0), ("https://a",), **cors()).preflight_response(Headers(named))


def schema(text: str) -> object:
    return rebuilt_schema({"type": "object", "properties": {text: {"$ref": f"#/{text}", "oneOf": [text]}}})


def chat(text: str) -> object:
    body = {"model": "council", "messages": [{"role": "user", "content": text}] * 2, "stop": text[:64] or "x"}
    made = ChatCompletionRequest.model_validate_json(json.dumps(body))
    turns = [message.turn for message in made.messages]
    return made.truncated(text), conversation_mark(turns), task_of(turns)


def streamed(text: str) -> object:
    return SseDecoder().feed(b"data: " + text.encode() + b"\n\n")


PARSERS: dict[str, Callable[[str], object]] = {
    "search": parse,
    "words": split,
    "cursor": lambda text: parse_cursor(text, "after"),
    "list cursor": parsed_list_cursor,
    "list query": lambda text: _query(request(query=text)),
    "metadata filter": lambda text: _query(request(query=f"metadata.{text}={text}")),
    "Accept": lambda text: asyncio.run(media_of(text)),
    "Prefer": lambda text: wait_of(request({"prefer": text})),
    "Idempotency-Key, traceparent": lambda text: submission_of(request({"idempotency-key": text, "traceparent": text})),
    "X-Request-Id": usable_request_id,
    "credential": looks_like_key,
    "URL": lambda text: key_in_url({"query_string": text.encode(), "path": text}),
    "Host": lambda text: known_host.__wrapped__(text, frozenset()),
    "Origin": lambda text: same_site(Headers({"origin": f"http://{text}", "host": text}), "http", ()),
    "preflight": preflight,
    "body": lambda text: parsed_body(text.encode(), DeliberationRequest),
    "task": lambda text: parsed_body(json.dumps({"task": text}).encode(), DeliberationRequest),
    "unknown field": lambda text: parsed_body(json.dumps({text: 1, "strategy": text}).encode(), DeliberationRequest),
    "schema": schema,
    "chat": chat,
    "pointer": param,
    "terminal": printable,
    "JSON for a terminal": json_line,
    "prose": prose,
    "unfinished prose": lambda text: prose(f'{{"answer": "{text}'),
    "event stream": streamed,
}


@pytest.fixture(autouse=True)
def collector_off() -> Iterator[None]:
    """The collector would come in the longer measurement, and its time grows with the heap of the test process."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def taken_s(parser: Callable[[str], object], text: str) -> float:
    times = list[float]()
    for _ in range(REPEATED):
        began_s = time.thread_time()
        with suppress(DeliberationError, ValidationError, ValueError):
            parser(text)
        times.append(time.thread_time() - began_s)
        if times[-1] < NOISE_S:
            break
    return min(times)


@pytest.mark.parametrize("name", PARSERS)
def test_time_grows_no_faster_than_the_input(name: str) -> None:
    def grows(unit: str) -> bool:
        half, whole = (taken_s(PARSERS[name], unit * (size // len(unit))) for size in (SIZE, 2 * SIZE))
        bounded = taken_s(PARSERS[name], unit * (BOUNDS[name] // len(unit))) if name in BOUNDS else whole
        limit_s = LIMIT_LOOPS * taken_s(lambda _: loop_once(), "")
        return whole > max(NOISE_S, GROWTH_MAX * half) or (bounded > limit_s and name not in OF_COMMANDS)

    assert [unit for unit in UNITS if all(grows(unit) for _ in range(ATTEMPTS))] == []


def many_fields(count: int) -> object:
    return parsed_body(json.dumps({f"field{number}": 1 for number in range(count)}).encode(), DeliberationRequest)


def many_messages(count: int) -> object:
    return task_of([ChatRequestMessage(role="user", content="a").turn for _ in range(count)])


def many_parts(count: int) -> object:
    content = [{"type": "text", "text": "a"}] * count
    return ChatRequestMessage.model_validate_json(json.dumps({"role": "user", "content": content}))


def many_events(count: int) -> object:
    return SseDecoder().feed(b"data: a\n\n" * count)


def many_types(count: int) -> object:
    return rebuilt_schema({"type": "object", "properties": {f"p{number}": {} for number in range(count)}})


@pytest.mark.parametrize("parser", [many_fields, many_messages, many_parts, many_events, many_types])
def test_time_grows_no_faster_than_the_number_of_parts(parser: Callable[[int], object]) -> None:
    def grows() -> bool:
        half, whole = (taken_s(lambda _, count=count: parser(count), "") for count in (4_000, 8_000))
        return whole > max(NOISE_S, GROWTH_MAX * half)

    assert not all(grows() for _ in range(ATTEMPTS))
