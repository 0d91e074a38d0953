import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator

import pytest

from app.log.stream_settings import PUBLICATION_STREAMS, StreamSettings
from app.log.streams import declared_consumers, declared_streams
from tests.components.cli.council_run import ID, Served, StubGateway, council_of
from tests.conftest import NatsServer


@pytest.fixture
def served() -> Iterator[Served]:
    one = Served()
    one.stub = StubGateway(council_of(), cut_after=5, hold=True)
    yield one
    one.stop()


@pytest.fixture
def at(own_nats_server: NatsServer) -> tuple[str, str]:
    return "--nats-url", own_nats_server.url


async def started(*arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from app.cli import main; main()", *arguments, stdout=PIPE, stderr=PIPE
    )


async def finished(*arguments: str) -> tuple[int | None, str, str]:
    process = await started(*arguments)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_a_signal_ends_the_command_and_not_the_deliberation(served: Served, number: int, exit_code: int) -> None:
    process = await started("ask", "x", "--watch", "--url", served.url)
    assert process.stdout is not None
    assert b"accepted" in await asyncio.wait_for(process.stdout.readline(), 30)
    process.send_signal(number)
    _, errors = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == exit_code
    assert f"deliberate watch {ID} --url {served.url}" in errors.decode()
    assert b"Traceback" not in errors
    assert [method for method, _, _ in served.stub.requests] == ["POST", "GET"], "no request cancels the deliberation"


class TestStreams:
    async def test_plan_lists_missing_streams_and_apply_creates_them(self, at: tuple[str, str]) -> None:
        code, out, _ = await finished("streams", "plan", *at, "--json")
        declared = [stream["name"] for stream in declared_streams(StreamSettings())]
        assert code == 1
        consumers = [f"{stream}/{consumer['name']}" for stream, consumer in declared_consumers(StreamSettings())]
        assert json.loads(out) == {"missing": [*declared, *consumers], "different": []}
        code, out, _ = await finished("streams", "apply", *at, "--json")
        assert (code, json.loads(out)["created"][0]) == (0, "DELIBERATIONS")
        assert await finished("streams", "apply", *at, "--json") == (0, '{"created":[]}\n', "")
        assert await finished("streams", "plan", *at, "--json") == (0, '{"missing":[],"different":[]}\n', "")

    @pytest.mark.parametrize(
        ("variable", "options", "streams"),
        [
            ("", (), set[str]()),
            ("", ("--publish", "announcements"), {"ORCHESTRATOR_EVENTS"}),
            ("responses", (), {"AGENT_RESPONSES"}),
            ("responses", ("--publish", ""), set[str]()),
        ],
    )
    async def test_streams_of_messages_for_others_are_those_that_are_named(
        self,
        at: tuple[str, str],
        monkeypatch: pytest.MonkeyPatch,
        variable: str,
        options: tuple[str, ...],
        streams: set[str],
    ) -> None:
        monkeypatch.setenv("PUBLISH", variable)
        _, out, _ = await finished("streams", "plan", *at, *options, "--json")
        assert set(json.loads(out)["missing"]) & PUBLICATION_STREAMS.keys() == streams

    async def test_apply_rejects_and_names_differences(self, at: tuple[str, str]) -> None:
        assert (await finished("streams", "apply", *at))[0] == 0
        code, out, err = await finished("streams", "apply", *at, "--retention", "3600")
        assert (code, out) == (1, "")
        assert "error streams_differ" in err and "DELIBERATIONS.max_age: declared 3600000000000, found" in err
        code, out, _ = await finished("streams", "plan", *at, "--retention", "3600")
        assert code == 1 and out.startswith("differs: DELIBERATIONS.max_age")

    async def test_an_unreachable_server_exits_with_3(self) -> None:
        code, out, err = await finished("streams", "plan", "--nats-url", "nats://127.0.0.1:1", "--wait", "0.5")
        assert (code, out) == (3, "")
        assert "error journal_unavailable" in err and "--nats-url" in err
        assert "Traceback" not in err


@pytest.fixture
def pepper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_PEPPER", "of this test, and long enough to be one")


@pytest.mark.usefixtures("pepper")
class TestKeys:
    async def test_creates_lists_and_revokes_a_key(self, at: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        assert (await finished("streams", "apply", *at))[0] == 0
        code, out, _ = await finished("keys", "list", *at)
        assert (code, out) == (0, "no keys; `deliberate keys create NAME --tenant TENANT` makes one\n")
        code, out, err = await finished("keys", "create", "ci", "--tenant", "acme", "--scope", "read", *at)
        key, key_id = out.strip(), out.split("_")[1]
        assert (code, len(key), out.count("\n")) == (0, 69, 1), "stdout has only the key"
        assert key_id in err and "tenant acme, read, expires" in err and key not in err
        code, out, _ = await finished("keys", "create", "ops", "--tenant", "acme", "--expires", "never", *at, "--json")
        other = json.loads(out)
        assert (code, other["scopes"], other["expires_at"]) == (0, ["submit", "read"], None)
        code, listed, _ = await finished("keys", "list", *at, "--json")
        items = json.loads(listed)["items"]
        assert [(item["key_id"], item["status"]) for item in items] == [(key_id, "good"), (other["key_id"], "good")]
        assert key not in listed and other["key"] not in listed and "digest" not in listed
        for given in (key_id, key):
            assert await finished("keys", "revoke", given, *at) == (0, f"{key_id} is revoked\n", "")
        code, out, _ = await finished("keys", "list", *at, "--json")
        assert [item["status"] for item in json.loads(out)["items"]] == ["revoked", "good"]
        monkeypatch.setenv("KEY_PEPPER", "another one, which is long enough as well")
        code, out, _ = await finished("keys", "list", *at)
        assert "other pepper" in out and "revoked" in out
        code, out, err = await finished("keys", "revoke", other["key_id"], *at)
        assert (code, out) == (4, "") and "error not_signed" in err and "KEY_PEPPER" in err

    async def test_an_unknown_key_and_a_missing_secret_have_remedies(
        self, at: tuple[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert (await finished("streams", "apply", *at))[0] == 0
        code, out, err = await finished("keys", "revoke", "abcdefghijkl", *at)
        assert (code, out) == (4, "")
        assert "error not_found" in err and "`deliberate keys list`" in err
        for secret in ("", "too short"):
            monkeypatch.setenv("KEY_PEPPER", secret)
            for arguments in (("create", "ci", "--tenant", "acme"), ("revoke", "abcdefghijkl")):
                code, out, err = await finished("keys", *arguments, *at)
                assert (code, out) == (2, "")
                assert "error no_pepper" in err and "openssl rand -hex 32" in err

    async def test_a_log_without_the_keys_stream_is_an_error(self, at: tuple[str, str]) -> None:
        for arguments in (("create", "ci", "--tenant", "acme"), ("list",)):
            code, out, err = await finished("keys", *arguments, *at)
            assert (code, out) == (3, "")
            assert "error journal_unavailable" in err and "Traceback" not in err
