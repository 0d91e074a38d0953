"""The children of the stack: the command, environment, ports, checks and dependencies of each.

Everything listens on loopback. The parts know each other by URL only, so each can restart without the others.
"""

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from app.cli.exits import CommandError, Exit
from app.cli.machine import FREE_BYTES_MIN, OBJECT_STORE_BYTES
from app.cli.render.progress import PartGiven, ProgressReport
from app.cli.stack import checks
from app.cli.stack.layout import LOOPBACK, Layout, mask_credentials
from app.cli.stack.supervisor import Child, ChildHealth, write_private
from app.deliberation.errors import JournalUnavailable, StreamsDiffer
from app.deliberation.roles import DEFAULT_KEY_VARIABLE
from app.log.signature import LOG_KEY_VARIABLE
from app.log.stream_settings import KEYS_STREAM

_HERE = Path(__file__).parent
_STREAMS_WITHIN_S = 30.0
# Headers for a collector may have its key.
_TRACE_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
_SECRETS = (
    *("KEY_PEPPER", "KEYS_NATS_URL", "WEBHOOK_SECRETS", "NATS_URL", "DATABASE_URL", DEFAULT_KEY_VARIABLE),
    *_TRACE_HEADERS,
)
# Variables that change how Ray and Python run, such as RAY_ADDRESS and PYTHONWARNINGS.
_FOREIGN = ("RAY_", "PYTHON")
# Added to the time that a child's settings allow its work, before it is killed.
_STOP_MARGIN_S = 5.0
# A gRPC client's first bytes (RFC 9113, 3.4): the preface and an empty SETTINGS frame. The server must respond.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def stack_children(layout: Layout) -> list[Child]:
    """Returns the children in start order: nats, the engine, Ray or the coordinator, then what needs nats."""
    settings, database, engines = layout.settings, {"DATABASE_URL": layout.database_url}, layout.engine_variables
    # This machine, unless keys open the gateway to other users.
    own_hosts = "" if layout.options.key_pepper else f"{LOOPBACK},::1,localhost"
    webhook_hosts = {"WEBHOOK_HOSTS": os.environ.get("WEBHOOK_HOSTS", own_hosts)}
    drain_s = settings.worker_drain_s + _STOP_MARGIN_S
    children = [] if layout.options.nats_url else [_nats(layout)]
    if layout.simulates:
        children.append(_simulator(layout))
    if layout.model_file is not None:
        children.append(_model_server(layout, layout.model_file))
    if layout.uses_ray:
        children += [_ray(layout), _deployer(layout)]
    else:
        # Without agents of its own it asks no engine, but reads the roles with the keys of their engines.
        coordinator = _process(layout, "coordinator", "serve_deployments.coordinator", user="agents", **engines)
        detail = f"without Ray, {_list_of(layout.local_roles)}" if layout.local_roles else "without Ray"
        children.append(replace(coordinator, stop_within_s=drain_s, detail=detail))
    if layout.worker_roles:
        roles = [argument for role in layout.worker_roles for argument in ("--role", role)]
        worker = _process(layout, "worker", "serve_deployments.agent", *roles, **engines)
        children.append(replace(worker, stop_within_s=drain_s, detail=_list_of(layout.worker_roles)))
    webhooks = _process(layout, "webhooks", WEBHOOK_SECRETS=layout.webhook_secrets, **webhook_hosts)
    stop_s, detail = settings.webhook_timeout_s + _STOP_MARGIN_S, "`deliberate webhooks secret` is for receivers"
    children.append(replace(webhooks, stop_within_s=stop_s, detail=detail))
    archive = replace(
        _process(layout, "archive", **database),
        prepare=None if os.environ.get("DATABASE_URL") else partial(_migrate, layout.database_url),
        detail=mask_credentials(layout.database_url),
        hint="correct DATABASE_URL or the variable that its log names",
    )
    children.append(archive)
    return [*children, _gateway(layout, **database, **webhook_hosts)]


def _list_of(roles: Sequence[str]) -> str:
    return f"{len(roles)} roles: {', '.join(roles)}"


def find_program(name: str) -> str | None:
    return shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)


def _program(name: str) -> str:
    return find_program(name) or name


def _inherited(layout: Layout) -> dict[str, str]:
    """Returns the environment without secrets, which a child that needs one gets explicitly, and without _FOREIGN.

    No part uses a proxy of the environment, and Ray's gRPC would ask it for ports of this machine.
    """
    secret = {*_SECRETS, *layout.engine_variables}
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN) and key not in secret}
    return {key: value for key, value in kept.items() if not key.lower().endswith("_proxy")}


def _python_environment(layout: Layout, nats_user: str | None, **more: str) -> dict[str, str]:
    # Without -P a module `app` in the user's directory would run in place of the package.
    python = {"PYTHONSAFEPATH": "1", "PYTHONUTF8": "1"}
    path = filter(None, [str(_HERE.parents[2]), os.environ.get("PYTHONPATH")])
    roles = {"ROLES_FILE": str(layout.options.roles_file.resolve())} if layout.options.roles_file else {}
    log = {"NATS_URL": layout.nats_url_of(nats_user), LOG_KEY_VARIABLE: str(layout.log_key_file)} if nats_user else {}
    traces = {name: value for name in _TRACE_HEADERS if nats_user and (value := os.environ.get(name))}
    python["PYTHONPATH"] = os.pathsep.join(path)
    return {**_inherited(layout), **python, "AGENTS": layout.options.agents, **log, **traces, **roles, **more}


def _nats(layout: Layout) -> Child:
    store = layout.data_dir / "nats"
    store.mkdir(mode=0o700, exist_ok=True)
    monitor = f"nats://monitor:{layout.nats_passwords['monitor']}@{LOOPBACK}:{layout.ports['nats']}"

    async def health() -> ChildHealth:
        reply = await checks.nats_reply(monitor, "$SYS.REQ.SERVER.PING.HEALTHZ")
        return ChildHealth(answers=False) if reply is None else store_health(reply, shutil.disk_usage(store).free)

    return Child(
        name="nats",
        niceness=0,
        command=(_program("nats-server"), "-c", str(write_nats_config(layout, store))),
        environment=_inherited(layout),
        prepare=partial(declare_streams, layout),
        health_check=health,
        detail=f"{layout.nats_url}  JetStream, streams declared",
        hint="check the disk of the data directory and the port",
    )


def write_nats_config(layout: Layout, store: Path) -> Path:
    variables = {f"{user.upper()}_PASSWORD": password for user, password in layout.nats_passwords.items()}
    variables |= {"LISTEN": f"{LOOPBACK}:{layout.ports['nats']}", "STORE": str(store)}
    variables["STORE_MAX"] = f"{shutil.disk_usage(store).total // 4096 * 3}K"
    # Its strings have JSON's escapes but \u.
    lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in variables.items()]
    lines += [(_HERE / name).read_text(encoding="utf-8") for name in ("server.conf", "users.conf")]
    config = layout.data_dir / "nats.conf"
    write_private(config, "\n".join(lines))
    return config


def store_health(reply: bytes, free_bytes: int) -> ChildHealth:
    """Returns the health that the server's reply reports.

    After a write fails for lack of space, a stream of nats-server 2.15.1 refuses writes until the server restarts, even
    once there is room.
    """
    try:
        health = json.loads(reply)["data"]
        problem = "" if health["status"] == "ok" else str(health["error"])
    except (ValueError, KeyError, TypeError):
        problem = "JetStream is not healthy"
    if problem and free_bytes < FREE_BYTES_MIN:
        return ChildHealth(problem=f"{problem}; it is restarted once the disk has room")
    return ChildHealth(problem=problem, restart_helps=bool(problem))


async def declare_streams(layout: Layout) -> None:
    """Wait for the server, declare the streams, and note the log's id; raises JournalUnavailable or StreamsDiffer."""
    # Imported here, while the other children are starting.
    from app.log.journal import JetStreamJournal
    from app.log.streams import apply

    journal = JetStreamJournal(layout.nats_url_of("streams"), name="deliberate up")
    try:
        await journal.open()
        deadline_s = time.monotonic() + _STREAMS_WITHIN_S
        while True:
            try:
                await apply(journal, layout.streams)
                layout.log["id"] = (await journal.state_of(KEYS_STREAM)).epoch
                return
            except JournalUnavailable:
                # JetStream is ready later than the server when its store is large or it elects a leader.
                if time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(0.1)
    finally:
        await journal.close()


async def declare_on_given(layout: Layout, report: ProgressReport) -> None:
    part = PartGiven("nats", layout.nats_url, answers=True)
    slow = asyncio.get_running_loop().call_later(2.0, report, replace(part, answers=False))
    try:
        await declare_streams(layout)
    except JournalUnavailable as error:
        remedy = "check that it has JetStream and accepts the credentials; without --nats-url one is started"
        raise CommandError(Exit.UNREACHABLE, error.code, str(error), remedy=remedy) from error
    except StreamsDiffer as error:
        remedy = "`deliberate streams plan` lists each difference; nothing was changed"
        raise CommandError(Exit.FAILED, error.code, str(error), remedy=remedy) from error
    finally:
        slow.cancel()
    report(part)


def _simulator(layout: Layout) -> Child:
    url, port = layout.engine_urls[0], str(layout.ports["engine"])
    # Behind keys, no local user may read the prompts.
    options = (*(("--no-controls",) if layout.options.key_pepper else ()), *layout.options.simulate)
    # As vLLM does, the simulator requires the key in this variable.
    key = {name: value for name in (DEFAULT_KEY_VARIABLE,) if (value := os.environ.get(name))}
    # Its last line is then the fault of its arguments, without a box around it.
    key["TYPER_USE_RICH"] = "0"
    return Child(
        name="simulator",
        command=(sys.executable, "-m", "serve_deployments.simulator", "--port", port, *options),
        health_check=partial(checks.responds_to_http, f"{url}/health"),
        environment=_python_environment(layout, None, **key),
        stop_within_s=3.0,
        detail=f"{url}  simulated; --engine-url names a real one",
        hint="`deliberate simulator --help` lists the arguments for --simulate",
    )


def _model_server(layout: Layout, model_file: Path) -> Child:
    url = layout.engine_urls[0]
    key = {name: value for name in (DEFAULT_KEY_VARIABLE,) if (value := os.environ.get(name))}
    return Child(
        name="engine",
        command=(
            *(sys.executable, "-m", "serve_deployments.gguf"),
            *("--model", str(model_file), "--port", str(layout.ports["engine"])),
        ),
        health_check=partial(checks.responds_to_http, f"{url}/health"),
        environment=_python_environment(layout, None, **key),
        stop_within_s=3.0,
        detail=f"{url}  {model_file.name} in llama.cpp",
        hint="is the model too large for this machine's memory?",
    )


def _ray_environment(layout: Layout) -> dict[str, str]:
    lines = (_HERE / "ray.env").read_text(encoding="utf-8").splitlines()
    fixed = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    # Where /dev/shm is small, Ray keeps its objects in TMPDIR, and the user's may be no directory.
    places = {"RAY_AUTH_TOKEN_PATH": str(layout.data_dir / "ray_token"), "TMPDIR": str(layout.ray_dir)}
    return _python_environment(layout, "agents", **layout.engine_variables, **fixed, **places)


def _ray(layout: Layout) -> Child:
    ports = layout.ports["ray"], layout.ports["raylet"]
    options = (
        f"--port={ports[0]} --node-manager-port={ports[1]} --node-ip-address={LOOPBACK} --temp-dir={layout.ray_dir} "
        f"--object-store-memory={OBJECT_STORE_BYTES} --num-cpus=64 --num-gpus=0 --dashboard-agent-listen-port=0 "
        "--include-log-monitor=false --no-monitor --log-color=false"
    )
    return Child(
        name="ray",
        command=(_program("ray"), "start", "--head", "--block", *options.split()),
        ready_line=r".*Ray runtime started\.",
        # Ray's two daemons detect each other's hang only after minutes, and `ray start --block` never does.
        health_check=partial(checks.responds_to_bytes, LOOPBACK, ports, _HTTP2_PREFACE),
        environment=_ray_environment(layout),
        detail=layout.ray_address,
        hint=f"Ray's own logs are in {layout.stack_run.logs_dir}/ray",
    )


def _deployer(layout: Layout) -> Child:
    return Child(
        name="deployer",
        command=(sys.executable, "-m", "serve_deployments.application"),
        ready_line="ready",
        environment={**_ray_environment(layout), "RAY_ADDRESS": layout.ray_address},
        needs=() if layout.options.nats_url else ("nats",),
        # It starts together with Ray and waits for it.
        fails_with=("ray",),
        stop_within_s=15.0,
        detail=_list_of(layout.roles),
        hint=f"the replicas' logs are in {layout.stack_run.logs_dir}/ray/serve",
    )


def _process(layout: Layout, name: str, *module: str, user: str | None = None, **variables: str) -> Child:
    """Returns a process without routes, `python -m app.NAME` or `module`: it works on the log, and answers /healthz."""
    port = layout.ports[name]
    listen = {f"{name.upper()}_HOST": LOOPBACK, f"{name.upper()}_PORT": str(port)}
    return Child(
        name=name,
        command=(sys.executable, "-m", *(module or (f"app.{name}",))),
        health_check=partial(checks.responds_to_http, f"http://{LOOPBACK}:{port}/healthz"),
        environment=_python_environment(layout, user or name, **listen, **variables),
        needs=() if layout.options.nats_url else ("nats",),
        hint="correct the variable that its log names",
    )


async def _migrate(database_url: str) -> None:
    from app.archive.database.migrate import migrate

    await migrate(database_url)


def _gateway(layout: Layout, **variables: str) -> Child:
    settings, options = layout.settings, layout.options
    variables |= {"HOST": options.host, "PORT": str(layout.ports["gateway"]), "PLANNING": str(settings.planning)}
    variables["WEBHOOKS"] = os.environ.get("WEBHOOKS", "true")
    if options.key_pepper is not None:
        variables["KEY_PEPPER"] = options.key_pepper
        variables["KEYS_NATS_URL"] = os.environ.get("KEYS_NATS_URL", layout.nats_url_of("keys"))
    return replace(
        _process(layout, "gateway", "app.main", **variables),
        niceness=0,
        health_check=partial(checks.responds_to_http, f"{layout.url}/healthz"),
        stop_within_s=settings.drain_delay_s + settings.drain_timeout_s + _STOP_MARGIN_S,
        detail=f"{layout.url}  the dashboard; documentation at /docs",
        hint="another process may have taken the port; choose another by --port",
    )
