import asyncio
import errno
import socket
import ssl
from collections.abc import Callable

import aiohttp
import httpx
import pytest
import uvloop

from app.deliberation.roles import EngineSpec
from serve_deployments.engine.client import Engines
from serve_deployments.engine.reachability import cause_of, check_connection
from serve_deployments.engine.state import EngineState
from tests.conditions import until


def wrapped(error: Exception) -> httpx.ConnectTimeout:
    outer = httpx.ConnectTimeout("Cannot connect to host user:secret@engine")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (
            ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"),
            "refused",
            "connection refused",
        ),
        (wrapped(ConnectionRefusedError(errno.ECONNREFUSED, "x")), "refused", "connection refused"),
        (OSError(errno.EHOSTUNREACH, "x"), "unconnected", "no route to host"),
        (
            wrapped(socket.gaierror(socket.EAI_NONAME, "Name or service not known")),
            "unresolved",
            "its host name is not resolved: Name or service not known",
        ),
        (TimeoutError(), "unconnected", "no connection in time"),
        (wrapped(aiohttp.ConnectionTimeoutError("secret")), "unconnected", "no connection in time"),
        (ssl.SSLCertVerificationError(1, "self-signed certificate"), "tls", "TLS failed: self-signed certificate"),
        (httpx.ConnectError("user:secret@engine"), "unconnected", "ConnectError"),
    ],
)
def test_a_cause_is_told_in_a_few_words_without_credentials(error: Exception, cause: str, words: str) -> None:
    assert cause_of(error) == (cause, words)


def test_an_outage_lasts_from_the_first_failed_connection_to_the_next_response() -> None:
    engine = EngineState(EngineSpec(url="http://user:secret@engine:8000"))
    assert engine.outage is None and engine.address == "http://engine:8000"
    engine.not_connected(ConnectionRefusedError(errno.ECONNREFUSED, "x"))
    first = engine.outage
    engine.not_connected(TimeoutError())
    assert first is not None and engine.outage is first, "the first failure counts"
    engine.connected()
    assert engine.outage is None


def test_outages_count_only_when_no_engine_is_left() -> None:
    engines = Engines(
        [EngineSpec(url="http://a"), EngineSpec(url="http://b")],
        transport=httpx.MockTransport(lambda _: httpx.Response(200)),
    )
    for number, engine in enumerate(engines.engines, start=1):
        assert engines.outages() == ()
        engine.not_connected(TimeoutError())
        assert len(engines.outages()) == (2 if number == 2 else 0)


async def test_a_probe_that_is_answered_with_an_error_ends_the_outage_and_leaves_the_circuit_open() -> None:
    engines = Engines([EngineSpec(url="http://a")], transport=httpx.MockTransport(lambda _: httpx.Response(500)))
    (engine,) = engines.engines
    engine.not_connected(TimeoutError())
    await engines.probe()
    assert engine.outage is None and not engine.healthy


async def serve(port: int) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = b'{"data":[{"id":"m-1"}]}'
        if await reader.readline():
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", port)


async def test_idle_engines_are_checked_and_a_return_closes_the_circuit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_deployments.engine.client.CHECK_INTERVAL_S", 0.02)
    server = await serve(0)
    port = server.sockets[0].getsockname()[1]
    engines = Engines([EngineSpec(url=f"http://127.0.0.1:{port}")])
    (engine,) = engines.engines
    await engines.probe()
    assert engine.healthy and engine.models == ("m-1",)
    watching = asyncio.create_task(engines.watch())
    server.close()
    await server.wait_closed()
    await until(lambda: engine.outage is not None)
    assert engine.outage is not None and engine.outage.words == "connection refused" and not engine.healthy
    server = await serve(port)
    await until(lambda: engine.outage is None and engine.healthy)
    watching.cancel()
    server.close()
    await engines.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_connections_are_checked_on_the_loops_of_workers_and_of_replicas(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def check() -> None:
        hosts = ("127.0.0.1", "localhost")
        async with await serve(0) as server:
            port = server.sockets[0].getsockname()[1]
            for host in hosts:
                await check_connection(f"http://{host}:{port}", 5)
        for host in hosts:
            with pytest.raises(OSError) as refused:
                await check_connection(f"http://{host}:{port}", 5)
            assert cause_of(refused.value) == ("refused", "connection refused")
        with pytest.raises(socket.gaierror):
            await check_connection("http://engine.invalid:8000", 5)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(check())


async def test_no_proxy_of_the_environment_stands_between_agents_and_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with await serve(0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await check_connection(url, 5)
        engines = Engines([EngineSpec(url=url)])
        await engines.probe()
        assert engines.engines[0].models == ("m-1",)
        await engines.close()
