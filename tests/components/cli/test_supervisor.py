import io
import json
import re
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from app.cli.exits import CommandError, Exit
from app.cli.render.progress import (
    TITLES,
    Checklist,
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
from app.cli.stack.children import FREE_BYTES_MIN, stack_children, store_health, write_nats_config
from app.cli.stack.layout import NATS_USERS, Layout, StackOptions, mask_credentials, plan_stack
from app.cli.stack.supervisor import (
    NICENESS,
    Activity,
    Child,
    ChildHealth,
    HealthHistory,
    StackRun,
    Supervisor,
    restart_delay_s,
    write_private,
)
from app.log.connection import server_url
from app.log.stream_settings import StreamSettings
from app.process_settings import PACKAGED_ROLES


@pytest.mark.parametrize(
    ("ready_for_s", "delays_s"),
    [
        ([0.5, 0.5, 5.0, 0.5], [0.2, 0.4, 0.2, 0.4]),
        ([0.5, None, None], [0.2, 0.4, 0.8]),
        ([0.5] * 12, [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, *[10.0] * 6]),
    ],
)
def test_restart_delays_double_up_to_a_bound_until_a_steady_run(
    ready_for_s: list[float | None], delays_s: list[float]
) -> None:
    found = [0.0]
    for each in ready_for_s:
        found.append(restart_delay_s(found[-1], each))
    assert found[1:] == pytest.approx(delays_s)


SILENT = ChildHealth(answers=False)
FULL = ChildHealth(problem="no space left on device")
IDLE = Activity(1.0, waits=False)
Check = tuple[float, ChildHealth, Activity]


def judged(*checks: Check) -> tuple[str, list[str]]:
    history, notices = HealthHistory(0.0), list[str]()
    for now_s, health, activity in checks:
        notice, reason = history.observe(health, now_s, activity)
        notices += [notice] if notice else []
        if reason:
            return reason, notices
    return "", notices


@pytest.mark.parametrize(
    ("checks", "reason"),
    [
        ([(5, SILENT), (10, SILENT), (15, SILENT)], "hung: no answer for 15 s"),
        ([(5, SILENT), (10, SILENT)], ""),
        ([(3, SILENT), (6, SILENT), (9, SILENT)], ""),
        ([(5, SILENT), (10, SILENT), (14, ChildHealth()), (19, SILENT), (24, SILENT)], ""),
        # The machine was suspended: one long silence, then a response.
        ([(3_600, SILENT), (3_605, SILENT), (3_607, ChildHealth())], ""),
        ([(5, SILENT), (10, FULL), (15, SILENT), (20, SILENT)], ""),
    ],
)
def test_replaces_a_child_after_a_long_silence_with_several_misses(
    checks: list[tuple[float, ChildHealth]], reason: str
) -> None:
    assert judged(*((now_s, health, IDLE) for now_s, health in checks))[0] == reason


def test_a_child_that_waits_for_cpu_is_slow_and_one_that_burns_a_minute_of_it_hangs() -> None:
    starved: list[Check] = [(5.0 * n, SILENT, Activity(1.0 + n / 100, waits=True)) for n in range(1, 200)]
    assert judged(*starved) == ("", [])
    assert judged(*starved, (1_000, SILENT, IDLE))[0] == ""
    loops: list[Check] = [(5.0 * n, SILENT, Activity(5.0 * n, waits=True)) for n in range(1, 200)]
    assert judged(*loops)[0] == "hung: no answer for 65 s"


def test_a_problem_is_reported_once_and_restarted_when_that_helps() -> None:
    with_room = ChildHealth(problem="no space left on device", restart_helps=True)
    checks = [(2, FULL, IDLE), (4, FULL, IDLE)]
    assert judged(*checks, (8, with_room, IDLE)) == (
        "broken: no space left on device",
        ["no space left on device"],
    )
    assert judged(*checks, (8, ChildHealth(), IDLE), (9, ChildHealth(), IDLE)) == (
        "",
        ["no space left on device", "serves again after: no space left on device"],
    )


@pytest.mark.parametrize(
    ("body", "free_bytes", "reason"),
    [
        (b'{"data":{"status":"unavailable","error":"write error"}}', FREE_BYTES_MIN, "write error"),
        (b'{"data":{"status":"error","error":"full"}}', 0, "full; it is restarted once the disk has room"),
        (b"[]", FREE_BYTES_MIN, "JetStream is not healthy"),
        (b'{"data":{"status":"unavailable"}}', FREE_BYTES_MIN, "JetStream is not healthy"),
    ],
)
def test_a_restart_helps_a_broken_store_only_with_free_disk_space(body: bytes, free_bytes: int, reason: str) -> None:
    assert store_health(body, free_bytes) == ChildHealth(problem=reason, restart_helps=free_bytes >= FREE_BYTES_MIN)


@pytest.mark.parametrize(
    "needs",
    [{"gateway": ("nats",), "nats": ()}, {"nats": ("nats",)}],
)
def test_rejects_an_order_that_cannot_start(tmp_path: Path, needs: dict[str, tuple[str, ...]]) -> None:
    children = [Child(name=name, command=(), ready_line="", needs=each) for name, each in needs.items()]
    run = StackRun(mark="", logs_dir=tmp_path, state_file=tmp_path / "state")
    for order in (children, [*children[-1:], *children[-1:]]):
        with pytest.raises(ValueError, match="declared"):
            Supervisor(order, run, lambda _: None)


def planned(data_dir: Path, **options: Any) -> Layout:
    return plan_stack(StackOptions(**{"port": 0, "nats_port": 0, "data_dir": data_dir, **options}), lambda _: None)


def children_of(layout: Layout) -> dict[str, Child]:
    return {child.name: child for child in stack_children(layout)}


def test_the_log_and_the_gateway_have_cpu_before_the_others(tmp_path: Path) -> None:
    niceness = {name: child.niceness for name, child in children_of(planned(tmp_path)).items()}
    assert {name for name, value in niceness.items() if value == 0} == {"nats", "gateway"}
    assert {value for name, value in niceness.items() if name not in ("nats", "gateway")} == {NICENESS}


def test_every_combination_of_external_parts_has_a_valid_order(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["nats", "simulator"]),
        ({"nats_url": "nats://elsewhere:4222"}, ["simulator"]),
        ({"engine_urls": ("http://gpu:8000",)}, ["nats"]),
        ({"nats_url": "nats://n", "engine_urls": ("http://e",)}, []),
    ]
    for number, (given, names) in enumerate(cases):
        layout = planned(tmp_path / str(number), **given)
        children = children_of(layout)
        Supervisor(list(children.values()), layout.stack_run, lambda _: None)
        assert list(children) == [*names, "ray", "deployer", "webhooks", "archive", "gateway"]
        assert children.keys() <= set(TITLES)
        assert children["deployer"].fails_with == ("ray",)
        assert children["gateway"].needs == children["deployer"].needs == (("nats",) if "nats" in names else ())


def test_no_simulator_starts_where_every_role_names_its_engine(tmp_path: Path) -> None:
    roles = tmp_path / "roles.yaml"
    own, default = "DEV: {persona: p, engines: ['http://a']}", "QA: {persona: p}"
    for declared, simulates in (((own,), False), ((own, default), True)):
        roles.write_text("roles:\n" + "".join(f"  {role}\n" for role in declared))
        layout = planned(tmp_path / f"data{simulates}", roles_file=roles)
        assert (layout.simulates, "simulator" in children_of(layout)) == (simulates, simulates)
        assert bool(layout.engine_urls) == simulates
    roles.write_text(f"roles:\n  {own}\n")
    with pytest.raises(CommandError, match="--simulate has no use") as refused:
        planned(tmp_path / "unused", roles_file=roles, simulate=("--chunk-tokens", "3"))
    assert refused.value.exit_code is Exit.USAGE and refused.value.remedy == "omit --simulate"


def test_a_model_in_a_file_is_served_in_place_of_the_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sk-own-1234")
    file = tmp_path / "small.gguf"
    file.write_bytes(b"GGUF and more")
    layout = planned(tmp_path / "data", model_file=file)
    children = children_of(layout)
    assert list(children) == ["nats", "engine", "ray", "deployer", "webhooks", "archive", "gateway"]
    assert not layout.simulates and children.keys() <= set(TITLES)
    assert children["engine"].command[-4:] == ("--model", str(file), "--port", str(layout.ports["engine"]))
    assert children["engine"].environment["VLLM_API_KEY"] == "sk-own-1234"
    assert children["deployer"].environment["VLLM_URL"] == f"http://127.0.0.1:{layout.ports['engine']}"


@pytest.mark.parametrize(
    ("content", "installed", "complaint", "remedy"),
    [
        (None, True, "No such file", "name a file with a model in GGUF"),
        (b"PK\x03\x04", True, "is no model in GGUF", "download the GGUF"),
        (b"GGUF", False, "--model needs llama.cpp", "deliberation-gateway[gguf]"),
    ],
    ids=["no file", "another file", "without llama.cpp"],
)
def test_a_model_that_cannot_be_served_is_refused_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes | None,
    installed: bool,
    complaint: str,
    remedy: str,
) -> None:
    file = tmp_path / "small.gguf"
    if content is not None:
        file.write_bytes(content)
    if not installed:
        monkeypatch.setattr("app.cli.stack.layout.find_spec", lambda _: None)
    with pytest.raises(CommandError, match=complaint) as refused:
        planned(tmp_path / "data", model_file=file)
    assert refused.value.exit_code is Exit.USAGE and remedy in refused.value.remedy


def test_a_model_has_no_use_where_each_role_has_engines(tmp_path: Path) -> None:
    file, roles = tmp_path / "small.gguf", tmp_path / "roles.yaml"
    file.write_bytes(b"GGUF")
    roles.write_text("roles:\n  DEV: {persona: p, engines: ['http://a']}\n")
    with pytest.raises(CommandError, match="--model has no use") as refused:
        planned(tmp_path / "data", roles_file=roles, model_file=file)
    assert refused.value.remedy == "omit --model"


def test_each_child_gets_the_addresses_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    layout = planned(tmp_path, engine_urls=("http://a", "http://b"), roles_file=PACKAGED_ROLES)
    environment = {name: child.environment for name, child in children_of(layout).items()}

    assert environment["deployer"]["RAY_ADDRESS"] == layout.ray_address
    assert environment["deployer"]["VLLM_URL"] == "http://a,http://b"
    users = {name: each["NATS_URL"] for name, each in environment.items() if "NATS_URL" in each}
    own = {name: layout.nats_url_of(name) for name in ("webhooks", "archive", "gateway")}
    assert users == own | dict.fromkeys(("ray", "deployer"), layout.nats_url_of("agents"))
    assert environment["gateway"]["ROLES_FILE"] == environment["deployer"]["ROLES_FILE"] == str(PACKAGED_ROLES)
    assert environment["gateway"]["PORT"] == layout.url.rpartition(":")[2]
    assert "RAY_ADDRESS" not in environment["ray"], "an address makes `ray start --head` join instead of begin"
    assert "RAY_AUTH_TOKEN_PATH" not in environment["gateway"]


def test_headers_for_a_collector_are_in_the_environment_of_parts_on_the_log_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    children = children_of(planned(tmp_path))
    having = {name for name, child in children.items() if "OTEL_EXPORTER_OTLP_HEADERS" in child.environment}
    assert having == set(children) - {"nats", "simulator"}
    assert all("OTEL_EXPORTER_OTLP_ENDPOINT" in child.environment for child in children.values())


def test_keys_of_engines_are_in_the_environment_of_agents_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"HOSTED_KEY": "sk-hosted-1234", "VLLM_API_KEY": "sk-default-1234"}
    for variable, key in keys.items():
        monkeypatch.setenv(variable, key)
    roles = tmp_path / "roles.yaml"
    roles.write_text(
        "engines:\n  hosted: {url: 'https://a', api_key_env: HOSTED_KEY}\n"
        "roles:\n  DEV: {persona: p, engines: [hosted]}\n  QA: {persona: p}\n"
    )
    layout = planned(tmp_path / "data", roles_file=roles)
    holders = {child.name: {name for name in keys if name in child.environment} for child in stack_children(layout)}
    agents = {"ray": set(keys), "deployer": set(keys), "simulator": {"VLLM_API_KEY"}}
    assert holders == {name: agents.get(name, set()) for name in holders}
    shown = repr(layout) + json.dumps(dict(layout.stack_run.facts))
    shown += repr([(child.command, child.detail, child.hint) for child in stack_children(layout)])
    assert not [key for key in keys.values() if key in shown]


@pytest.mark.parametrize(
    ("declared", "complaint"),
    [
        ("api_key_env: UNSET_KEY", "engines.hosted.api_key_env: variable UNSET_KEY is not set or empty; set it where"),
        ("api_key_file: /nowhere/key", "engines.hosted.api_key_file: /nowhere/key cannot be read (No such file"),
        ("api_key_file: /dev/null", "engines.hosted.api_key_file: /dev/null is empty; write the key into it"),
        ("headers: {Authorization: x}", "engines.hosted.headers: Authorization is sent from api_key_env"),
    ],
)
def test_a_wrong_engine_is_told_in_one_line_before_anything_starts(
    tmp_path: Path, declared: str, complaint: str
) -> None:
    roles = tmp_path / "roles.yaml"
    roles.write_text(
        f"engines:\n  hosted: {{url: 'https://a', {declared}}}\nroles:\n  DEV: {{persona: p, engines: [hosted]}}\n"
    )
    with pytest.raises(CommandError) as caught:
        planned(tmp_path / "data", roles_file=roles)
    assert f"{roles}: {complaint}" in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_the_stack_has_the_nats_users_of_the_deployment() -> None:
    deployed = Path(__file__).parents[3] / "deploy/kustomize/components/nats-users/users.conf"
    assert (PACKAGED_ROLES.parent / "cli/stack/users.conf").read_bytes() == deployed.read_bytes()
    assert set(re.findall(r"user: (\w+)", deployed.read_text())) | {"monitor"} == set(NATS_USERS)


def test_each_start_draws_private_passwords_that_no_child_gets_as_argument_or_variable(tmp_path: Path) -> None:
    layouts = [planned(tmp_path) for _ in range(2)]
    drawn = [password for layout in layouts for password in layout.nats_passwords.values()]
    assert len(set(drawn)) == 2 * len(NATS_USERS) and all(password[0].isalpha() for password in drawn)
    told = repr(layouts[1]) + json.dumps(dict(layouts[1].stack_run.facts))
    for child in stack_children(layouts[1]):
        told += repr((child.command, dict(child.environment), child.detail, child.hint))
    assert not [secret for secret in (*drawn, (tmp_path / "ray_token").read_text()) if secret in told]
    assert (tmp_path / "nats_urls").stat().st_mode & 0o077 == 0
    for user, password in layouts[1].nats_passwords.items():
        file = tmp_path / "nats_urls" / user
        assert file.stat().st_mode & 0o077 == 0
        assert file.read_text() == f"nats://{user}:{password}@127.0.0.1:{layouts[1].ports['nats']}"
        assert server_url(layouts[1].nats_url_of(user)) == file.read_text()
    assert (tmp_path / "nats.conf").stat().st_mode & 0o077 == 0


def test_every_user_of_a_given_server_reads_its_url_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("nats://me:secret@log:4222\n")
    for number, given in enumerate(("nats://me:secret@log:4222", (tmp_path / "url").as_uri())):
        data_dir = tmp_path / str(number)
        layout = planned(data_dir, nats_url=given)
        assert {server_url(layout.nats_url_of(user)) for user in NATS_USERS} == {"nats://me:secret@log:4222"}
        told = repr([(child.command, dict(child.environment)) for child in stack_children(layout)])
        assert "secret@" not in told + repr(layout.stack_run) + layout.nats_url


def test_a_taken_port_is_replaced_and_reported(tmp_path: Path) -> None:
    events = list[ProgressEvent]()
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = holder.getsockname()[1]
        first, second = (
            plan_stack(StackOptions(port=taken, nats_port=0, data_dir=tmp_path / name), events.append) for name in "ab"
        )
    # A stack that starts has not bound its port yet.
    assert taken < first.ports["gateway"] < second.ports["gateway"] <= taken + 100
    assert events == [PortShifted("gateway", taken, each.ports["gateway"]) for each in (first, second)]


@pytest.mark.parametrize(
    ("variable", "given"),
    [
        ("DELIBERATION_CLEANUP", "60"),
        ("STREAM_REPLICAS", "6"),
        ("ACK_WAIT", "2"),
        ("WORKER_DRAIN", "soon"),
        ("PUBLISH", "everything"),
    ],
)
def test_rejects_stream_settings_outside_their_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, given: str
) -> None:
    monkeypatch.setenv(variable, given)
    with pytest.raises(CommandError) as refused:
        planned(tmp_path)
    assert [fault.field for fault in refused.value.fields] == [variable]
    assert refused.value.remedy and variable in refused.value.remedy


def test_the_stack_has_the_settings_that_its_parts_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"DELIBERATION_CLEANUP": "7200", "STREAM_REPLICAS": "3", "ACK_WAIT": "20", "WORKER_DRAIN": "60"}
    given["PUBLISH"] = "announcements,texts"
    for variable, value in (given | {"DRAIN_DELAY": "7", "DRAIN_TIMEOUT": "30", "PLANNING": "off"}).items():
        monkeypatch.setenv(variable, value)
    layout = planned(tmp_path, agents="nats")
    children = children_of(layout)
    assert layout.streams == StreamSettings(7_200, 3, 20.0, layout.roles, ("announcements", "texts"))
    assert (children["worker"].stop_within_s, children["gateway"].stop_within_s) == (65, 42)
    assert children["gateway"].environment["PLANNING"] == "False"


def test_nats_reads_the_path_of_any_data_directory(tmp_path: Path) -> None:
    layout = planned(tmp_path / 'ü "b\\u')
    (store := layout.data_dir / "nats").mkdir()
    found = write_nats_config(layout, store)
    nats = children_of(layout)["nats"]
    checked = subprocess.run([nats.command[0], "-t", "-c", found], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:"), ("::1", "http://[::1]:"), ("127.0.0.1", "http://127.0.0.1:")],
)
def test_the_url_is_reachable_from_this_machine(tmp_path: Path, host: str, url: str) -> None:
    assert planned(tmp_path, host=host).url.startswith(url)


def test_write_private_replaces_a_file_atomically(tmp_path: Path) -> None:
    path = tmp_path / "stack.json"
    for text in ("one", "two"):
        write_private(path, text)
    assert path.read_text() == "two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["stack.json"]


READY = StackReady("http://127.0.0.1:8080", "nats://n", ("http://e",), "127.0.0.1:6", ("DEV",), True, "/data", 8.4)
READY_IN_TURN = [ChildReady(name, "", 0.3, 1) for name in ("nats", "ray", "deployer")]
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
def test_every_event_is_printed_as_text_and_as_json(event: ProgressEvent, name: str, line: str, terminal: bool) -> None:
    assert as_document(event)["event"] == name
    written = io.StringIO()
    checklist = Checklist(Console(file=written, force_terminal=terminal, color_system=None, soft_wrap=True))
    checklist(event)
    if checklist.status is not None:
        checklist.status.stop()
    assert line in written.getvalue()
    assert "\x1b[31m" not in written.getvalue()


def test_without_a_terminal_a_line_says_that_the_slowest_parts_are_waited_for() -> None:
    written = io.StringIO()
    checklist = Checklist(Console(file=written, soft_wrap=True))
    for event in (*(ChildStarted(name, 7, 1) for name in ("nats", "ray", "deployer")), *READY_IN_TURN):
        checklist(event)
    waited = [line.strip() for line in written.getvalue().splitlines() if "Waiting" in line]
    assert waited == ["… Waiting for      Ray, Ray Serve", "… Waiting for      Ray Serve"]


@pytest.mark.parametrize(
    ("keys", "host", "exposure"),
    [
        (True, "192.0.2.7", "Keys are required, open to all that reach this host"),
        (True, "0.0.0.0", "Keys are required, open to all that reach this host"),
        (True, "::", "Keys are required, open to all that reach this host"),
        (True, "127.0.0.1", "Keys are required, loopback only"),
        (False, "127.0.0.1", "Development mode: no keys, loopback only"),
    ],
)
def test_the_ready_line_states_the_exposure(keys: bool, host: str, exposure: str) -> None:
    written = io.StringIO()
    event = replace(READY, keys=keys, host=host, data_dir=".deliberate")
    Checklist(Console(file=written, soft_wrap=True))(event)
    assert exposure in written.getvalue()
    assert ("deliberate keys create" in written.getvalue()) == keys == ("Bearer" in written.getvalue())
    assert max(map(len, written.getvalue().splitlines())) <= 80, written.getvalue()
    # A shell reads the lines of the last hint as one command.
    hint = written.getvalue().partition("Or:")[2].partition(exposure)[0]
    shell = f"curl() {{ printf '%s\\0' \"$@\"; }}\n{hint}"
    sent = subprocess.run(["sh", "-c", shell], capture_output=True, check=True, text=True).stdout.split("\0")
    assert json.loads(sent[-2])["task"] and sent[:2] == ["-sS", "http://127.0.0.1:8080/deliberations"]


def test_only_the_gateway_gets_the_key_pepper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KEY_PEPPER", "of a foreign environment, long enough")
    for pepper in ("of this stack, and long enough as well", None):
        children = children_of(planned(tmp_path, key_pepper=pepper))
        given = {name: child.environment.get("KEY_PEPPER") for name, child in children.items()}
        assert given == {**dict.fromkeys(children), "gateway": pepper}
        writers = {name for name, child in children.items() if "KEYS_NATS_URL" in child.environment}
        assert writers == ({"gateway"} if pepper else set()), "without keys nothing writes them"
        told = "--no-controls" in children["simulator"].command
        assert told == (pepper is not None), "it shows prompts to every client"


def test_only_the_webhook_sender_gets_the_persistent_signing_secret(tmp_path: Path) -> None:
    layouts = [planned(tmp_path) for _ in range(2)]
    assert layouts[0].webhook_secrets == layouts[1].webhook_secrets and len(layouts[0].webhook_secrets) == 64
    given = {child.name: child.environment.get("WEBHOOK_SECRETS") for child in stack_children(layouts[0])}
    assert [name for name, secret in given.items() if secret is not None] == ["webhooks"]
    assert (tmp_path / "webhook_secret").stat().st_mode & 0o077 == 0


def test_each_part_of_the_log_gets_the_name_of_one_persistent_log_key_and_none_its_content(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LOG_KEY_FILE", raising=False)
    data, kept = tmp_path / "data", tmp_path / "data" / "log_key"
    children = stack_children(planned(data))
    key = kept.read_text()
    planned(data)
    assert kept.read_text() == key and len(key) == 64 and kept.stat().st_mode & 0o077 == 0
    for child in children:
        assert child.environment.get("LOG_KEY_FILE") == (None if child.name in ("nats", "simulator") else str(kept))
        assert key not in repr(child.command) + repr(child.environment)
    monkeypatch.setenv("LOG_KEY_FILE", str(tmp_path / "given"))
    with pytest.raises(CommandError, match="LOG_KEY_FILE"):
        planned(data)
    (tmp_path / "given").write_text("a key of the operator, long enough to be one")
    assert planned(data).log_key_file == tmp_path / "given"


@pytest.mark.parametrize(("pepper", "hosts"), [(None, "127.0.0.1,::1,localhost"), ("p" * 40, "")])
def test_webhooks_may_reach_loopback_only_without_keys(tmp_path: Path, pepper: str | None, hosts: str) -> None:
    children = children_of(planned(tmp_path, key_pepper=pepper))
    gateway = children["gateway"].environment
    assert gateway["WEBHOOK_HOSTS"] == children["webhooks"].environment["WEBHOOK_HOSTS"] == hosts
    assert gateway["WEBHOOKS"] == "true"


@pytest.mark.parametrize(
    ("url", "as_shown"),
    [
        ("nats://me:secret@log:4222", "nats://***@log:4222"),
        ("nats://token@log:4222", "nats://***@log:4222"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
    ],
)
def test_credentials_in_urls_are_masked(url: str, as_shown: str) -> None:
    assert mask_credentials(url) == as_shown


def test_without_ray_no_child_of_ray_starts_and_only_agents_get_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "a-key-of-the-test")
    layout = planned(tmp_path, agents="nats")
    children = children_of(layout)
    assert {"coordinator", "worker"} <= children.keys() and children.keys().isdisjoint({"ray", "deployer"})
    assert layout.streams.worker_roles == layout.roles
    with_key = {name for name, child in children.items() if "VLLM_API_KEY" in child.environment}
    assert with_key == {"simulator", "coordinator", "worker"}
    assert children["coordinator"].environment["NATS_URL"] == layout.nats_url_of("agents")
    assert children["worker"].environment["NATS_URL"] == layout.nats_url_of("worker")


def test_the_coordinator_gets_what_its_own_agents_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "a-key-of-the-test")
    monkeypatch.setenv("WORKER_DRAIN", "60")
    layout = planned(tmp_path, agents="local")
    children = children_of(layout)
    assert children.keys().isdisjoint({"ray", "deployer", "worker"}) and not layout.streams.worker_roles
    with_key = {name for name, child in children.items() if "VLLM_API_KEY" in child.environment}
    assert with_key == {"simulator", "coordinator"}
    coordinator = children["coordinator"]
    assert coordinator.environment["NATS_URL"] == layout.nats_url_of("agents")
    assert (coordinator.environment["AGENTS"], coordinator.stop_within_s) == ("local", 65)


def test_one_stack_refuses_roles_in_ray_beside_roles_in_the_coordinators_process(tmp_path: Path) -> None:
    (tmp_path / "roles.yaml").write_text("roles: {DEV: {persona: x}, QA: {persona: x, agents: local}}")
    with pytest.raises(CommandError) as refused:
        planned(tmp_path / "data", roles_file=tmp_path / "roles.yaml")
    assert refused.value.exit_code == Exit.USAGE and "role DEV runs in Ray Serve" in str(refused.value)


def test_a_role_may_choose_workers_for_itself(tmp_path: Path) -> None:
    (tmp_path / "roles.yaml").write_text("roles: {DEV: {persona: x}, QA: {persona: x, agents: nats}}")
    layout = planned(tmp_path / "data", roles_file=tmp_path / "roles.yaml")
    children = children_of(layout)
    assert {"ray", "deployer", "worker"} <= children.keys() and "coordinator" not in children
    assert layout.worker_roles == ("QA",) and children["worker"].command[-2:] == ("--role", "QA")
