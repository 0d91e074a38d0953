import io
import socket
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from app.cli import cli
from app.cli.exits import CommandError
from app.cli.render.progress import (
    ChildDied,
    ChildFailed,
    ChildReady,
    ChildStarted,
    Noticed,
    PartGiven,
    PortShifted,
    ProgressEvent,
    StackReady,
    StackStopped,
    StackStopping,
    as_document,
)
from app.cli.stack.layout import PACKAGED_ROLES, StackOptions, make_ray_dir, plan_stack, shown
from app.cli.stack.processes import PortAllocator, log_tail, marked, output_since, write_private
from app.cli.stack.restarts import (
    DELAY_MAX_S,
    FIRST_DELAY_S,
    Broken,
    ChildDependencies,
    Death,
    GiveUp,
    GoOn,
    Past,
    Pulse,
    Restart,
    Sign,
    Silent,
    StartAnew,
    Well,
    check_order,
    on_death,
    on_sign,
)
from app.cli.stack.stack import stack_children
from app.cli.stack.stores import ROOM_BYTES_MIN, complaint_of
from app.cli.stack.up import TITLES, Checklist
from app.log.stream_settings import StreamSettings
from app.settings import Settings

STEADY = Death(ready_for_s=5.0)
BRIEF = Death(ready_for_s=0.5)
NEVER_READY = Death(ready_for_s=None)


def delays_after(*deaths: Death) -> list[float]:
    past, delays = Past(), list[float]()
    for death in deaths:
        decision = on_death(past, death)
        assert isinstance(decision, Restart)
        past = decision.past
        delays.append(decision.delay_s)
    return delays


@pytest.mark.parametrize(
    ("deaths", "delays"),
    [
        ([BRIEF], [0.2]),
        ([BRIEF] * 4, [0.2, 0.4, 0.8, 1.6]),
        ([BRIEF, BRIEF, STEADY, BRIEF], [0.2, 0.4, 0.2, 0.4]),
        ([BRIEF, BRIEF, NEVER_READY, NEVER_READY, NEVER_READY], [0.2, 0.4, 0.8, 1.6, 3.2]),
        ([STEADY, STEADY], [0.2, 0.2]),
        ([BRIEF, Death(0.5, "ray"), BRIEF], [0.2, 0.0, 0.4]),
    ],
)
def test_restarts_back_off_until_a_life_was_steady(deaths: list[Death], delays: list[float]) -> None:
    assert delays_after(*deaths) == pytest.approx(delays)


def test_the_delay_has_an_upper_bound() -> None:
    assert delays_after(*[BRIEF] * 12)[-1] == DELAY_MAX_S


@pytest.mark.parametrize(
    ("deaths", "gives_up"),
    [
        ([NEVER_READY], False),
        ([NEVER_READY, NEVER_READY], True),
        ([Death(None, "ray"), Death(None, "ray"), NEVER_READY], False),
        ([BRIEF, *[NEVER_READY] * 5], False),
    ],
)
def test_only_what_never_became_ready_by_its_own_fault_is_given_up(deaths: list[Death], gives_up: bool) -> None:
    past, decisions = Past(), list[Restart | GiveUp]()
    for death in deaths:
        decisions.append(on_death(past, death))
        past = decisions[-1].past if isinstance(decisions[-1], Restart) else past
    assert isinstance(decisions[-1], GiveUp) is gives_up


def test_a_child_that_fell_with_another_restarts_at_once() -> None:
    assert on_death(Past(delay_s=3.2, ever_ready=True), Death(100.0, "ray")) == Restart(
        0.0, Past(delay_s=3.2, ever_ready=True)
    )
    assert FIRST_DELAY_S > 0


FULL = Broken("no space left on device", curable=False)


def verdict_after(*signs: tuple[float, Sign]) -> tuple[StartAnew | None, list[str]]:
    """The verdict over a child that was last heard at 0, with all that was noticed on the way."""
    pulse, notices = Pulse(0.0), list[str]()
    for now_s, sign in signs:
        match on_sign(pulse, sign, now_s):
            case GoOn(pulse, notice):
                notices += [notice] if notice else []
            case StartAnew() as verdict:
                return verdict, notices
    return None, notices


@pytest.mark.parametrize(
    ("signs", "hung"),
    [
        ([(5, Silent()), (10, Silent()), (15, Silent())], "no answer for 15 s"),
        ([(5, Silent()), (10, Silent())], None),
        ([(3, Silent()), (6, Silent()), (9, Silent())], None),
        ([(3, Silent()), (6, Silent()), (9, Silent()), (12, Silent())], "no answer for 12 s"),
        ([(5, Silent()), (10, Silent()), (14, Well()), (19, Silent()), (24, Silent())], None),
        # The whole machine slept: one long silence, and then it answers.
        ([(3_600, Silent()), (3_605, Silent()), (3_607, Well())], None),
        ([(5, Silent()), (10, FULL), (15, Silent()), (20, Silent())], None),
    ],
)
def test_a_child_hangs_after_a_long_silence_in_which_it_was_asked_often(
    signs: list[tuple[float, Sign]], hung: str | None
) -> None:
    verdict, _ = verdict_after(*signs)
    if hung is None:
        assert verdict is None
    else:
        assert verdict == StartAnew(f"hung: {hung}", at_once=True)


def test_what_a_restart_would_not_mend_is_told_once_and_restarted_when_it_would() -> None:
    cured = Broken("no space left on device", curable=True)
    assert verdict_after((2, FULL), (4, FULL), (6, FULL), (8, cured)) == (
        StartAnew("broken: no space left on device", at_once=False),
        ["no space left on device"],
    )
    assert verdict_after((2, FULL), (4, Well()), (6, Well())) == (
        None,
        ["no space left on device", "serves again after: no space left on device"],
    )


@pytest.mark.parametrize(
    ("body", "free_bytes", "told"),
    [
        (b'{"status":"unavailable","error":"JetStream: write error"}', ROOM_BYTES_MIN, "JetStream: write error"),
        (b'{"error":"write error"}', ROOM_BYTES_MIN - 1, "write error; it is restarted once the disk has room"),
        (b"", ROOM_BYTES_MIN, "JetStream is not healthy"),
        (b"[]", ROOM_BYTES_MIN, "JetStream is not healthy"),
        (b"{}", ROOM_BYTES_MIN, "JetStream is not healthy"),
    ],
)
def test_a_store_that_is_broken_is_restarted_only_while_its_disk_has_room(
    body: bytes, free_bytes: int, told: str
) -> None:
    assert complaint_of(body, free_bytes) == Broken(told, curable=free_bytes >= ROOM_BYTES_MIN)


@pytest.mark.parametrize(
    "children",
    [
        [ChildDependencies(name="gateway", needs=("nats",)), ChildDependencies(name="nats")],
        [ChildDependencies(name="nats"), ChildDependencies(name="nats")],
        [ChildDependencies(name="deployer", fails_with=("ray",)), ChildDependencies(name="ray")],
        [ChildDependencies(name="ray", needs=("ray",))],
    ],
)
def test_an_order_that_cannot_be_started_is_refused(children: list[ChildDependencies]) -> None:
    with pytest.raises(ValueError, match=r"declared|need"):
        check_order(children)


def test_the_stack_can_be_started_whatever_is_given(tmp_path: Path) -> None:
    cases = [
        (StackOptions(), ["nats", "simulator", "ray", "deployer", "webhooks", "gateway"]),
        (StackOptions(nats_url="nats://elsewhere:4222"), ["simulator", "ray", "deployer", "webhooks", "gateway"]),
        (StackOptions(engine_urls=("http://gpu:8000",)), ["nats", "ray", "deployer", "webhooks", "gateway"]),
        (StackOptions(nats_url="nats://n", engine_urls=("http://e",)), ["ray", "deployer", "webhooks", "gateway"]),
    ]
    for number, (given, names) in enumerate(cases):
        options = StackOptions(
            port=0,
            nats_port=0,
            data_dir=tmp_path / str(number),
            nats_url=given.nats_url,
            engine_urls=given.engine_urls,
        )
        children = stack_children(plan_stack(options, lambda _: None))
        check_order(children)
        assert [child.name for child in children] == names
        by_name = {child.name: child for child in children}
        assert by_name["deployer"].fails_with == ("ray",)
        assert by_name["gateway"].needs == by_name["deployer"].needs == (() if given.nats_url else ("nats",))


def test_each_part_is_told_where_the_others_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    options = StackOptions(
        port=0, nats_port=0, data_dir=tmp_path, engine_urls=("http://a", "http://b"), roles_file=PACKAGED_ROLES
    )
    layout = plan_stack(options, lambda _: None)
    environment = {child.name: child.environment for child in stack_children(layout)}

    assert environment["deployer"]["RAY_ADDRESS"] == layout.ray_address
    assert environment["deployer"]["VLLM_URL"] == "http://a,http://b"
    assert environment["gateway"]["NATS_URL"] == environment["deployer"]["NATS_URL"] == layout.nats_url
    assert environment["gateway"]["ROLES_FILE"] == environment["deployer"]["ROLES_FILE"] == str(PACKAGED_ROLES)
    assert environment["gateway"]["PORT"] == layout.url.rpartition(":")[2]
    assert "RAY_ADDRESS" not in environment["ray"], "an address makes `ray start --head` join instead of begin"
    assert "RAY_AUTH_TOKEN" not in environment["gateway"]


def test_rays_token_is_private_and_kept(tmp_path: Path) -> None:
    options = StackOptions(port=0, nats_port=0, data_dir=tmp_path)
    tokens = {plan_stack(options, lambda _: None).ray_token for _ in range(2)}
    assert len(tokens) == 1
    assert (tmp_path / "ray_token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("depth", [0, 40])
def test_rays_sockets_have_paths_that_the_kernel_takes(tmp_path: Path, depth: int) -> None:
    options = StackOptions(port=0, nats_port=0, data_dir=tmp_path / "/".join(["directory"] * depth))
    ray_dir = plan_stack(options, lambda _: None).ray_dir
    socket_path = f"{ray_dir}/session_2026-11-20_13-27-15_037509_4194304/sockets/plasma_store"
    assert len(socket_path.encode()) <= 107


def test_rays_directory_is_emptied_and_private_and_never_a_strangers(tmp_path: Path) -> None:
    ray_dir = tmp_path / "ray"
    ray_dir.mkdir()
    (ray_dir / "session_latest").touch()
    make_ray_dir(ray_dir)
    assert ray_dir.stat().st_mode & 0o777 == 0o700
    assert list(ray_dir.iterdir()) == []

    laid_out = tmp_path / "link"
    laid_out.symlink_to(ray_dir)
    with pytest.raises(CommandError, match="belongs to somebody else"):
        make_ray_dir(laid_out)


@pytest.mark.parametrize("content", ["roles: {}\n", "roles: [\n", "nothing", "roles:\n  DEV: {persona: 3}\n"])
def test_roles_that_cannot_be_used_are_told_before_anything_starts(tmp_path: Path, content: str) -> None:
    roles = tmp_path / "roles.yaml"
    roles.write_text(content)
    with pytest.raises(CommandError, match=r"roles\.yaml"):
        plan_stack(StackOptions(roles_file=roles, data_dir=tmp_path / "data"), lambda _: None)
    assert not (tmp_path / "data").exists()


def test_a_taken_port_is_shifted_and_told(tmp_path: Path) -> None:
    events = list[ProgressEvent]()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        layout = plan_stack(StackOptions(port=taken, nats_port=0, data_dir=tmp_path), events.append)
    assert events == [PortShifted("gateway", taken, layout.ports["gateway"])]
    assert layout.url != f"http://127.0.0.1:{taken}"


def test_a_free_port_is_given_once() -> None:
    ports = PortAllocator("127.0.0.1")
    first = ports.take()
    assert ports.take(first) != first


@pytest.mark.parametrize(
    ("variable", "given"),
    [
        *(("DELIBERATION_CLEANUP", given) for given in ("soon", "-5", "1e6", "²", "60")),
        ("STREAM_REPLICAS", "6"),
        ("ACK_WAIT", "2"),
    ],
)
def test_a_setting_of_the_streams_that_is_no_number_in_bounds_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, given: str
) -> None:
    monkeypatch.setenv(variable, given)
    with pytest.raises(CommandError, match=variable) as told:
        plan_stack(StackOptions(port=0, nats_port=0, data_dir=tmp_path), lambda _: None)
    assert told.value.remedy and variable in told.value.remedy


def test_the_streams_are_declared_as_the_gateway_will_look_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, given in {"DELIBERATION_CLEANUP": "7200", "STREAM_REPLICAS": "3", "ACK_WAIT": "20"}.items():
        monkeypatch.setenv(variable, given)
    layout, settings = plan_stack(StackOptions(port=0, nats_port=0, data_dir=tmp_path), lambda _: None), Settings()
    assert layout.streams == StreamSettings(settings.retention_s, settings.stream_replicas, settings.ack_wait_s)
    assert layout.streams == StreamSettings(7_200, 3, 20.0)


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:"), ("::1", "http://[::1]:"), ("127.0.0.1", "http://127.0.0.1:")],
)
def test_the_url_is_one_that_this_machine_reaches(tmp_path: Path, host: str, url: str) -> None:
    layout = plan_stack(StackOptions(host=host, port=0, nats_port=0, data_dir=tmp_path), lambda _: None)
    assert layout.url.startswith(url)


def test_a_logs_tail_is_of_the_present_life_only(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    log.write_text("old\n")
    with log.open("a") as file:
        file.write("first\n" + "line\n" * 20 + "last\n")
    assert log_tail(log, from_byte=4, lines=2) == ("line", "last")
    assert output_since(log, 4).startswith("first")
    assert log_tail(tmp_path / "none") == ()


def test_a_file_is_replaced_at_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "stack.json"
    for text in ("one", "two"):
        write_private(path, text)
    assert path.read_text() == "two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["stack.json"]


def test_nothing_carries_a_mark_that_was_never_given() -> None:
    assert marked("0" * 32) == []


READY = StackReady("http://127.0.0.1:8080", "nats://n", ("http://e",), "127.0.0.1:6", ("DEV",), True, "/data", 8.4)
EVENTS: list[tuple[ProgressEvent, str, str]] = [
    (ChildStarted("nats", 7, 1), "child_started", ""),
    (ChildReady("nats", "nats://n", 0.31, 1), "child_ready", "✔ NATS             nats://n  (0.3 s)"),
    (ChildReady("ray", "", 6.0, 2), "child_ready", "(6.0 s again)"),
    (ChildDied("ray", "was killed by SIGKILL", 0.2, ("tail",)), "child_died", "starting it again in 0.2 s"),
    (ChildDied("deployer", "ended because ray did", 0.0, ()), "child_died", "starting it again after that one"),
    (ChildFailed("gateway", "ended with status 2", "", "g.log", ("why",)), "child_failed", "│ why"),
    (PortShifted("gateway", 8080, 8081), "port_shifted", "port 8080 is taken, using 8081"),
    (PartGiven("nats", "nats://n:4222", True), "part_given", "✔ NATS             nats://n:4222  given"),
    (PartGiven("engine", "http://gpu", False), "part_given", "http://gpu  given, but it does not answer now"),
    (Noticed("an [odd] \x1b[31mthing"), "noticed", "an [odd] "),
    (READY, "ready", "curl -sS http://127.0.0.1:8080/deliberations"),
    (READY, "ready", "no keys, loopback only"),
    (StackStopping("ray"), "stopping", ""),
    (StackStopped(1.0, ("77 ray::IDLE",)), "stopped", "77 ray::IDLE"),
]


@pytest.mark.parametrize(("event", "name", "line"), EVENTS)
@pytest.mark.parametrize("terminal", [False, True])
def test_every_event_is_told_in_words_and_as_json(event: ProgressEvent, name: str, line: str, terminal: bool) -> None:
    assert as_document(event)["event"] == name
    written = io.StringIO()
    checklist = Checklist(Console(file=written, force_terminal=terminal, color_system=None, soft_wrap=True))
    checklist(event)
    if checklist.status is not None:
        checklist.status.stop()
    assert line in written.getvalue()
    assert "\x1b[31m" not in written.getvalue()


@pytest.mark.parametrize(
    ("keys", "host", "told"),
    [
        (True, "192.0.2.7", "Keys are asked for, open to whoever reaches this host"),
        (True, "127.0.0.1", "Keys are asked for, loopback only"),
        (False, "127.0.0.1", "Development mode: no keys, loopback only"),
    ],
)
def test_it_is_told_who_may_ask(keys: bool, host: str, told: str) -> None:
    written = io.StringIO()
    event = StackReady(f"http://{host}:8080", "nats://n", (), "127.0.0.1:6", ("DEV",), True, "/data", 8.4, keys)
    Checklist(Console(file=written, soft_wrap=True))(event)
    assert told in written.getvalue()
    assert ("deliberate keys create" in written.getvalue()) == keys == ("Bearer" in written.getvalue())


def test_the_secret_behind_the_keys_reaches_the_gateway_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KEY_PEPPER", "of somebody else's environment, long enough")
    for pepper in ("of this stack, and long enough as well", None):
        options = StackOptions(port=0, nats_port=0, data_dir=tmp_path, key_pepper=pepper)
        children = stack_children(plan_stack(options, lambda _: None))
        given = {child.name: child.environment.get("KEY_PEPPER") for child in children}
        others = ("nats", "simulator", "ray", "deployer", "webhooks")
        assert given == {**dict.fromkeys(others), "gateway": pepper}


def test_the_secret_that_signs_webhooks_is_kept_and_reaches_their_sender_alone(tmp_path: Path) -> None:
    options = StackOptions(port=0, nats_port=0, data_dir=tmp_path)
    layouts = [plan_stack(options, lambda _: None) for _ in range(2)]
    assert layouts[0].webhook_secrets == layouts[1].webhook_secrets and len(layouts[0].webhook_secrets) == 64
    given = {child.name: child.environment.get("WEBHOOK_SECRETS") for child in stack_children(layouts[0])}
    assert [name for name, secret in given.items() if secret is not None] == ["webhooks"]
    assert (tmp_path / "webhook_secret").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("pepper", "hosts"), [(None, "127.0.0.1,::1,localhost"), ("p" * 40, "")])
def test_webhooks_reach_this_machine_where_nobody_else_may_ask_for_them(
    tmp_path: Path, pepper: str | None, hosts: str
) -> None:
    options = StackOptions(port=0, nats_port=0, data_dir=tmp_path, key_pepper=pepper)
    by_name = {child.name: child.environment for child in stack_children(plan_stack(options, lambda _: None))}
    assert by_name["gateway"]["WEBHOOK_HOSTS"] == by_name["webhooks"]["WEBHOOK_HOSTS"] == hosts
    assert by_name["gateway"]["WEBHOOKS"] == "true"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--engine-url", "gpu:8000"], "no URL"),
        (["--engine-url", "http://gpu:x"], "no URL"),
        (["--engine-url", "http://gpu 8000"], "no URL"),
        (["--engine-url", "nats://gpu"], "no URL"),
        (["--engine-url", "http://gpu", "--engine-url", "http://"], "no URL"),
        (["--nats-url", "http://log:4222"], "no URL"),
        (["--nats-url", ""], "no URL"),
        (["--simulate", "'--seed"], "No closing quotation"),
        (["--port", "65536"], "--port"),
        (["--host", "0.0.0.0"], "set KEY_PEPPER"),
        (["--roles", "/no/such/file.yaml"], "No such file"),
    ],
)
def test_options_that_make_no_sense_are_a_usage_error(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    outcome = CliRunner().invoke(cli, ["up", "--data-dir", str(tmp_path / "data"), *arguments])
    assert outcome.exit_code == 2
    assert complaint in outcome.output
    assert not (tmp_path / "data" / "logs").exists()


@pytest.mark.parametrize(
    ("url", "as_shown"),
    [
        ("nats://me:secret@log:4222", "nats://***@log:4222"),
        ("nats://token@log:4222", "nats://***@log:4222"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
    ],
)
def test_credentials_in_urls_are_not_shown(url: str, as_shown: str) -> None:
    assert shown(url) == as_shown


def test_every_child_of_the_stack_has_a_title_for_the_terminal(tmp_path: Path) -> None:
    layout = plan_stack(StackOptions(port=0, nats_port=0, data_dir=tmp_path), lambda _: None)
    assert {child.name for child in stack_children(layout)} <= set(TITLES)
