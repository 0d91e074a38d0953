import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from unittest.mock import Mock

import aiohttp
import httpx
import pytest
import respx

from app.deliberation.errors import CallCancelled, CallTimeout, DeliberationError, EngineRejected, EngineUnavailable
from app.deliberation.outputs import json_schema
from app.deliberation.roles import EngineSpec
from serve_deployments.engine.client import Engines
from serve_deployments.engine.replies import EngineReply, Meter
from serve_deployments.engine.request_body import request_body
from serve_deployments.engine.state import EngineUnreachable, KeyRefused, RetryLater
from tests.conditions import until
from tests.integration.engine.streamed_replies import CALL, CHAT, SALT, URL, USAGE, WHOLE_STREAM, Pieces, chunk


def refused(status: int, text: str = "", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, headers=named, stream=Pieces([text.encode()]))


@pytest.fixture
def router() -> respx.MockRouter:
    return respx.MockRouter(assert_all_called=False)


@pytest.fixture
def engines(router: respx.MockRouter) -> Engines:
    return Engines([EngineSpec(url=URL)], transport=httpx.MockTransport(router.async_handler))


async def streamed(engines: Engines) -> tuple[EngineReply, list[str]]:
    texts: list[str] = []

    async def take(text: str) -> None:
        texts.append(text)

    engine = engines.engines[0]
    completion = await engines.complete(
        engine, CALL, "m", seed=7, trace="d.s1-dev-001.1", on_text=take, meter=Meter(), salt=SALT
    )
    return completion, texts


async def whole(engines: Engines) -> EngineReply:
    engine = engines.engines[0]
    return await engines.complete(
        engine, CALL, "m", seed=7, trace="d.s1-dev-001.1", on_text=None, meter=Meter(), salt=SALT
    )


def test_the_request_is_built_from_an_allow_list() -> None:
    body = json.loads(request_body(CALL, "m", 9, stream=True, salt=SALT))
    assert body == {
        "model": "m",
        "messages": [{"role": "system", "content": "rules"}, {"role": "user", "content": "task"}],
        "temperature": 0.7,
        "max_tokens": 64,
        "seed": 9,
        "cache_salt": SALT,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": json_schema(CALL.output), "strict": True},
        },
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "stream_interval": 4,
    }
    plain = json.loads(request_body(CALL.model_copy(update={"top_p": 0.5}), "m", 9, stream=False))
    assert plain["top_p"] == 0.5 and not {"stream", "stream_options", "stream_interval", "cache_salt"} & set(plain)


async def test_a_stream_gives_text_in_pieces_and_usage(router: respx.MockRouter, engines: Engines) -> None:
    route = router.post(CHAT).mock(return_value=httpx.Response(200, stream=Pieces(WHOLE_STREAM)))
    completion, texts = await streamed(engines)
    assert (completion.text, completion.finish_reason, texts) == ("Héllo", "stop", ["Hé", "llo"])
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (10, 5, 4)
    headers = route.calls[0].request.headers
    assert headers["X-Call-Id"] == "d.s1-dev-001"
    assert "X-Request-Id" not in headers, "some servers refuse one that is no UUID"
    assert engines.engines[0].in_flight == 0


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
async def test_reads_a_stream_split_at_any_byte(router: respx.MockRouter, engines: Engines, size: int) -> None:
    joined = b": comment\n\n" + b"".join(WHOLE_STREAM)
    pieces = [joined[at : at + size] for at in range(0, len(joined), size)]
    router.post(CHAT).mock(return_value=httpx.Response(200, stream=Pieces(pieces)))
    completion, texts = await streamed(engines)
    assert completion.text == "Héllo" == "".join(texts)


async def test_an_unstreamed_answer(router: respx.MockRouter, engines: Engines) -> None:
    body = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "length"}], "usage": USAGE}
    router.post(CHAT).mock(return_value=refused(200, json.dumps(body)))
    completion = await whole(engines)
    assert (completion.text, completion.finish_reason, completion.usage.completion_tokens) == ("Hi", "length", 5)


BROKEN_STREAMS = {
    "a page": Pieces([b"<html>log in</html>"]),
    "an error in place of a stream": Pieces([b'{"error": {"message": "quota", "code": 429}}']),
    "no stream": Pieces([b"try again"]),
    "without finish": Pieces([chunk("a"), chunk(usage=USAGE), b"data: [DONE]\n\n"]),
    "empty": Pieces([]),
    "connection reset": Pieces([chunk("a")], httpx.ReadError("reset")),
    "nonsense": Pieces([b"data: <html>\n\n"]),
    "a cut event": Pieces([chunk("a"), b'data: {"choices": [\n\n', chunk(finish="stop")]),
    "nonsense in JSON": Pieces([b'data: {"choices": 7}\n\n']),
    "a list": Pieces([b"data: [1]\n\n"]),
    "an error in mid-stream": Pieces([chunk("a"), b'data: {"error": {"message": "boom"}}\n\n']),
}


@pytest.mark.parametrize("stream", BROKEN_STREAMS.values(), ids=BROKEN_STREAMS.keys())
async def test_a_broken_stream_is_unavailable(router: respx.MockRouter, engines: Engines, stream: Pieces) -> None:
    router.post(CHAT).mock(return_value=httpx.Response(200, stream=stream))
    with pytest.raises(EngineUnavailable) as caught:
        await streamed(engines)
    assert caught.value.retryable
    assert stream.closed and engines.engines[0].in_flight == 0


AFTER_THE_END = {
    "no [DONE]": Pieces(WHOLE_STREAM[:-1]),
    "a reset": Pieces(WHOLE_STREAM[:-1], httpx.ReadError("reset")),
    "an error": Pieces([*WHOLE_STREAM[:-1], b'data: {"error": {"message": "boom"}}\n\n']),
    "nonsense": Pieces([*WHOLE_STREAM[:-1], b"data: {\n\n"]),
}


@pytest.mark.parametrize("stream", AFTER_THE_END.values(), ids=AFTER_THE_END.keys())
async def test_what_breaks_after_the_finish_reason_takes_nothing_away(
    router: respx.MockRouter, engines: Engines, stream: Pieces
) -> None:
    router.post(CHAT).mock(return_value=httpx.Response(200, stream=stream))
    reply, _ = await streamed(engines)
    assert (reply.text, reply.usage.completion_tokens) == ("Héllo", 5)
    assert stream.closed and engines.engines[0].healthy


# With the seconds of Retry-After where the request is repeated.
STATUSES: list[tuple[httpx.Response, type[DeliberationError], float | None]] = [
    (refused(400, "bad"), EngineRejected, None),
    (refused(401), KeyRefused, None),
    (refused(403), KeyRefused, None),
    (refused(404, '{"error": {"message": "no such model"}}'), EngineRejected, None),
    (refused(408), EngineUnavailable, 0),
    (refused(422), EngineRejected, None),
    (refused(429), RetryLater, 0),
    (refused(429, Retry_After="2"), RetryLater, 2),
    (refused(429, Retry_After="999"), RetryLater, 999),
    (refused(429, Retry_After="Fri, 20 Nov 2026 13:00:00 GMT"), RetryLater, 0),
    (refused(500), EngineUnavailable, 0),
    (refused(503, Retry_After="1"), RetryLater, 1),
    (refused(302, Location="http://elsewhere"), EngineRejected, None),
]


@pytest.mark.parametrize(("response", "error", "after_s"), STATUSES)
async def test_refusals(
    router: respx.MockRouter,
    engines: Engines,
    response: httpx.Response,
    error: type[DeliberationError],
    after_s: float | None,
) -> None:
    router.post(CHAT).mock(return_value=response)
    with pytest.raises(error) as caught:
        await whole(engines)
    assert type(caught.value) is error
    assert caught.value.retryable == (after_s is not None)
    assert getattr(caught.value, "after_s", 0) == (after_s or 0)


async def test_a_refused_request_that_probes_an_engine_closes_its_circuit(
    router: respx.MockRouter, engines: Engines
) -> None:
    (engine,) = engines.engines
    while engine.healthy:
        engine.circuit.failed(time.monotonic() - 1, unreachable=False)
    router.post(CHAT).mock(return_value=refused(400))
    with engines.requesting(engine), pytest.raises(EngineRejected):
        await whole(engines)
    assert engine.healthy and engine.admits(time.monotonic()), "further calls go on"


TRANSPORT_ERRORS: list[tuple[Exception, type[DeliberationError]]] = [
    (httpx.ConnectError("refused"), EngineUnavailable),
    (httpx.RemoteProtocolError("half a header"), EngineUnavailable),
    (httpx.ConnectTimeout("slow"), EngineUnavailable),
    (httpx.ReadTimeout("silent"), CallTimeout),
    (httpx.PoolTimeout("full"), EngineUnavailable),
    (aiohttp.ClientResponseError(Mock(), ()), EngineUnavailable),
]


@pytest.mark.parametrize(("raised", "error"), TRANSPORT_ERRORS)
async def test_broken_connections(
    router: respx.MockRouter, engines: Engines, raised: Exception, error: type[DeliberationError]
) -> None:
    router.post(CHAT).mock(side_effect=raised)
    with pytest.raises(error) as caught:
        await whole(engines)
    assert caught.value.retryable and caught.value.__cause__ is raised


CHOICE = b'"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]'
NONSENSE = [b"", b"<html>", b"{}", b'{"choices": []}', b"null", b'{"choices": [{"message": {}}]}']
UNREADABLE_USAGE = [b'{"usage": %s, %s}' % (usage, CHOICE) for usage in (b"null", b"[]", b'"x"', b"{}")]


@pytest.mark.parametrize("content", NONSENSE)
async def test_a_nonsense_answer_is_unavailable(router: respx.MockRouter, engines: Engines, content: bytes) -> None:
    router.post(CHAT).mock(return_value=refused(200, content.decode()))
    with pytest.raises(EngineUnavailable, match=r"answered (nonsense|a page)"):
        await whole(engines)


@pytest.mark.parametrize("content", UNREADABLE_USAGE)
async def test_tokens_are_estimated_where_the_engine_reports_none(
    router: respx.MockRouter, engines: Engines, content: bytes
) -> None:
    router.post(CHAT).mock(return_value=refused(200, content.decode()))
    meter = Meter()
    reply = await engines.complete(
        engines.engines[0], CALL, "m", seed=7, trace="d.c.1", on_text=None, meter=meter, salt=SALT
    )
    assert meter.estimated and reply.usage == meter.usage
    assert meter.usage.prompt_tokens >= len("rulestask") // 3 and meter.usage.completion_tokens >= 1


async def test_cancelling_closes_the_connection(router: respx.MockRouter, engines: Engines) -> None:
    class Endless(Pieces):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield chunk("a")
            received.set()
            await asyncio.Event().wait()

    received = asyncio.Event()
    stream = Endless([])
    router.post(CHAT).mock(return_value=httpx.Response(200, stream=stream))
    task = asyncio.create_task(streamed(engines))
    async with asyncio.timeout(5):
        await received.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stream.closed and engines.engines[0].in_flight == 0


async def test_a_request_refused_before_writing_is_not_sent_and_leaves_the_circuit_closed() -> None:
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read())
        writer.close()

    async def before_sending() -> None:
        raise CallCancelled("another replica has recorded its outcome meanwhile")

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        engines = Engines([EngineSpec(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")])
        (engine,) = engines.engines
        with pytest.raises(CallCancelled):
            await engines.complete(
                engine,
                CALL,
                "m",
                seed=7,
                trace="d.s1-dev-001.1",
                on_text=None,
                meter=Meter(),
                salt=SALT,
                before_sending=before_sending,
            )
        await until(lambda: received == [b""])
        assert engine.healthy and engine.in_flight == 0
        await engines.close()


async def test_a_probe_reads_models_and_marks_unreachable_engines(router: respx.MockRouter) -> None:
    engines = Engines(
        [EngineSpec(url=URL), EngineSpec(url="http://other")],
        transport=httpx.MockTransport(router.async_handler),
    )
    router.get(f"{URL}/v1/models").mock(
        return_value=httpx.Response(200, json={"data": [{"id": "m1", "owned_by": "vllm"}, {"id": "m2"}]})
    )
    router.get(f"{URL}/version").mock(return_value=httpx.Response(404))
    router.get("http://other/v1/models").mock(side_effect=httpx.ConnectError("refused"))
    await engines.probe()
    first, second = engines.engines
    assert (first.models, first.healthy, first.extended) == (("m1", "m2"), True, True)
    assert not second.healthy
    assert await engines.model_of(first, None) == "m1"
    assert await engines.model_of(first, "named") == "named"
    with pytest.raises(EngineUnavailable, match="names no model"):
        await engines.model_of(second, None)


def test_a_healthy_engine_that_has_not_failed_is_chosen() -> None:
    engines = Engines(
        [EngineSpec(url=f"http://{name}") for name in "abc"],
        transport=httpx.MockTransport(lambda _: httpx.Response(200)),
    )
    first = engines.choose("d", [])
    assert first is not None
    others = [engine for engine in engines.engines if engine is not first]
    second = engines.choose("d", [first])
    assert second in others
    first.circuit.failed(time.monotonic(), unreachable=True)
    assert not first.healthy
    assert engines.choose("d", []) is second, "no other deliberation moves"
    assert engines.choose("d", engines.engines) is second, "one that failed the call is better than none"
    for engine in others:
        engine.circuit.failed(time.monotonic(), unreachable=True)
    assert engines.choose("d", []) is None


async def test_a_closed_port_is_unreachable_and_is_probed_again_later() -> None:
    """Over the real transport, which reports a refused connection as a time-out."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engines = Engines([EngineSpec(url=f"http://127.0.0.1:{port}"), EngineSpec(url="http://127.0.0.1:1")])
    first, second = engines.engines
    with pytest.raises(EngineUnavailable) as caught:
        await engines.complete(first, CALL, "m", seed=7, trace="d.s1-dev-001.1", on_text=None, meter=Meter(), salt=SALT)
    assert caught.value.retryable
    assert not first.healthy and engines.choose("d", []) is second
    assert await engines.wait_for_engine("d", [second], 0) is second
    with pytest.raises(EngineUnavailable, match="cannot be reached"):
        await engines.complete(
            second, CALL, "m", seed=7, trace="d.s1-dev-001.1", on_text=None, meter=Meter(), salt=SALT
        )
    async with asyncio.timeout(5):
        assert await engines.wait_for_engine("d", [second], 0) is first, "it is probed again later"
    await engines.close()


async def test_a_connection_broken_after_writing_is_not_unreachable() -> None:
    """Over the real transport, which reports it as a connection that was not made in time."""

    async def take_and_go(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.close()

    async with await asyncio.start_server(take_and_go, "127.0.0.1", 0) as server:
        engines = Engines([EngineSpec(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")])
        with pytest.raises(EngineUnavailable, match="broke off") as caught:
            await whole(engines)
        assert not isinstance(caught.value, EngineUnreachable)
        await engines.close()
