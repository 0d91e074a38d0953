"""The children of the stack: the command, environment, ports, checks and dependencies of each.

Everything listens on loopback. The parts know each other by URL only, so each can restart without the others.
nats-server has no monitoring port, because that would answer any process; the user `monitor` asks for its health over
NATS. Two observations on nats-server 2.15.1 explain the bound and the check of its store. After a write fails for lack
of space, the stream refuses writes until the server restarts, even once there is room. Without a bound the server takes
three quarters of the space that is free at its start; on a full disk it refuses every write and reports health.
"""

import asyncio
import json
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import app
from app.cli.exits import CommandError, Exit
from app.cli.render.progress import PartGiven, ProgressReport
from app.cli.stack import checks
from app.cli.stack.layout import FREE_BYTES_MIN, LOOPBACK, Layout, mask_credentials
from app.cli.stack.supervisor import Child, ChildHealth, write_private
from app.deliberation.errors import JournalUnavailable, StreamsDiffer
from app.deliberation.roles import DEFAULT_KEY_VARIABLE
from app.log.signature import LOG_KEY_VARIABLE
from app.log.stream_settings import KEYS_STREAM

_STREAMS_WITHIN_S = 30.0
_NATS_SLOW_AFTER_S = 2.0
_HEALTH_SUBJECT = "$SYS.REQ.SERVER.PING.HEALTHZ"
_MONITOR = (
    "{user: monitor, password: $MONITOR_PASSWORD, permissions: "
    f'{{publish: ["{_HEALTH_SUBJECT}"], subscribe: ["_INBOX.>"]}}}}'
)
_SECRETS = ("KEY_PEPPER", "WEBHOOK_SECRETS", "NATS_URL", "DATABASE_URL", DEFAULT_KEY_VARIABLE)
# Variables that change how Ray and Python run, such as RAY_ADDRESS and PYTHONWARNINGS.
_FOREIGN = ("RAY_", "PYTHON")
# Added to the time that a child's settings allow its work, before it is killed.
_STOP_MARGIN_S = 5.0
_RAY_OBJECTS_BYTES = 128 * 1024 * 1024
# A gRPC client's first bytes (RFC 9113, 3.4): the preface and an empty SETTINGS frame. The server must respond.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def stack_children(layout: Layout) -> list[Child]:
    """Returns the children in start order: nats, simulator, Ray or the coordinator, then what needs nats."""
    settings, database, engines = layout.settings, {"DATABASE_URL": layout.database_url}, _engine_variables(layout)
    # This machine, unless keys open the gateway to other users.
    own_hosts = "" if layout.options.key_pepper else f"{LOOPBACK},::1,localhost"
    webhook_hosts = {"WEBHOOK_HOSTS": os.environ.get("WEBHOOK_HOSTS", own_hosts)}
    return [
        *([] if layout.options.nats_url else [_nats(layout)]),
        *([] if layout.options.engine_urls else [_simulator(layout)]),
        *([_ray(layout), _deployer(layout)] if layout.uses_ray else [_coordinator(layout, engines)]),
        *([_workers(layout, engines)] if layout.worker_roles else []),
        replace(
            _process(layout, "webhooks", WEBHOOK_SECRETS=layout.webhook_secrets, **webhook_hosts),
            stop_within_s=settings.webhook_timeout_s + _STOP_MARGIN_S,
            detail="`deliberate webhooks secret` is for receivers",
        ),
        replace(
            _process(layout, "archive", **database),
            prepare=None if os.environ.get("DATABASE_URL") else lambda: _migrate(layout.database_url),
            detail=mask_credentials(layout.database_url),
            hint="correct DATABASE_URL or the variable that its log names",
        ),
        *(
            [replace(_process(layout, "planning", **database), detail="takes plans of `planning.plan.approved`")]
            if settings.planning
            else []
        ),
        _gateway(layout, **database, **webhook_hosts),
    ]


def _program(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name) or name


def _inherited(layout: Layout) -> dict[str, str]:
    """Returns the environment without secrets, which a child that needs one gets explicitly, and without _FOREIGN.

    No part uses a proxy of the environment, and Ray's gRPC would ask it for ports of this machine.
    """
    secret = {*_SECRETS, *layout.key_variables}
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN) and key not in secret}
    return {key: value for key, value in kept.items() if not key.lower().endswith("_proxy")}


def _python_environment(layout: Layout, nats_user: str | None, **more: str) -> dict[str, str]:
    # Without a safe path, a module `app` in the user's directory would run in place of the package.
    python = {"PYTHONSAFEPATH": "1", "PYTHONUTF8": "1"}
    path = filter(None, [str(Path(app.__file__).parent.parent), os.environ.get("PYTHONPATH")])
    roles = {"ROLES_FILE": str(layout.options.roles_file.resolve())} if layout.options.roles_file else {}
    log = {"NATS_URL": layout.nats_url_of(nats_user), LOG_KEY_VARIABLE: str(layout.log_key_file)} if nats_user else {}
    python["PYTHONPATH"] = os.pathsep.join(path)
    return {**_inherited(layout), **python, "AGENTS": layout.options.agents, **log, **roles, **more}


def _engine_variables(layout: Layout) -> dict[str, str]:
    return {"VLLM_URL": ",".join(layout.engine_urls)} | {key: os.environ[key] for key in layout.key_variables}


def _nats(layout: Layout) -> Child:
    store, port = layout.data_dir / "nats", layout.ports["nats"]
    store.mkdir(mode=0o700, exist_ok=True)
    monitor = f"nats://monitor:{layout.nats_passwords['monitor']}@{LOOPBACK}:{port}"

    async def health() -> ChildHealth:
        reply = await checks.nats_reply(monitor, _HEALTH_SUBJECT)
        return ChildHealth(answers=False) if reply is None else store_health(reply, shutil.disk_usage(store).free)

    return Child(
        name="nats",
        niceness=0,
        command=(_program("nats-server"), "-c", str(write_nats_config(layout, store))),
        environment=_inherited(layout),
        prepare=lambda: declare_streams(layout),
        health_check=health,
        detail=f"{layout.nats_url}  JetStream, streams declared",
        hint="check the disk of the data directory and the port",
    )


def write_nats_config(layout: Layout, store: Path) -> Path:
    users = Path(__file__).with_name("users.conf").read_text(encoding="utf-8")
    if (test_user := layout.options.nats_test_user) is not None:
        test = f"{{user: {test_user}, password: ${test_user.upper()}_PASSWORD}}"
        users = users.replace("users: [", f"users: [\n    {test}", 1)
    bytes_max = shutil.disk_usage(store).total // 4 * 3
    lines = [
        *(f'{user.upper()}_PASSWORD: "{password}"' for user, password in layout.nats_passwords.items()),
        f"listen: {LOOPBACK}:{layout.ports['nats']}",
        "max_payload: 4MB",
        # Its strings have JSON's escapes but \u.
        f"jetstream {{ store_dir: {json.dumps(str(store), ensure_ascii=False)}, max_file_store: {bytes_max} }}",
        f"accounts {{ $SYS {{ users: [{_MONITOR}] }} }}",
        users,
    ]
    config = layout.data_dir / "nats.conf"
    write_private(config, "\n".join(lines))
    return config


def store_health(reply: bytes, free_bytes: int) -> ChildHealth:
    """Returns the health that the server's reply reports; a restart helps while the disk has free space."""
    try:
        found = json.loads(reply)["data"]
        problem = "" if found["status"] == "ok" else str(found["error"])
    except (ValueError, KeyError, TypeError):
        problem = "JetStream is not healthy"
    if problem and free_bytes < FREE_BYTES_MIN:
        return ChildHealth(problem=f"{problem}; it is restarted once the disk has room")
    return ChildHealth(problem=problem, restart_helps=bool(problem))


async def declare_streams(layout: Layout) -> None:
    """Declare the streams, idempotently, and note the log's id; raises JournalUnavailable or StreamsDiffer.

    The wait for the server has no bound.
    """
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
    given = PartGiven("nats", layout.nats_url, answers=True)
    slow = asyncio.get_running_loop().call_later(_NATS_SLOW_AFTER_S, report, replace(given, answers=False))
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
    report(given)


def _simulator(layout: Layout) -> Child:
    url, port = layout.engine_urls[0], layout.ports["simulator"]
    # Behind keys, no local user may read the prompts.
    options = ("--no-controls",) if layout.options.key_pepper else ()
    # As vLLM does, the simulator requires the key in this variable.
    key = {name: value for name in (DEFAULT_KEY_VARIABLE,) if (value := os.environ.get(name))}
    module = (sys.executable, "-m", "serve_deployments.simulator")
    return Child(
        name="simulator",
        command=(*module, "--port", str(port), *options, *layout.options.simulate),
        health_check=checks.responds_to_http(f"{url}/health"),
        environment=_python_environment(layout, None, **key),
        stop_within_s=3.0,
        detail=f"{url}  simulated; --engine-url names a real one",
        hint="`deliberate simulator --help` lists the arguments for --simulate",
    )


def _ray_environment(layout: Layout) -> dict[str, str]:
    return _python_environment(
        layout,
        "agents",
        **_engine_variables(layout),
        # Where /dev/shm is small, Ray keeps its objects there, whatever the user's variable names.
        TMPDIR=str(layout.ray_dir),
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN_PATH=str(layout.data_dir / "ray_token"),
        # A handle call takes 1.6 ms (p50) in place of 3.4. Serve's whole throughput bundle would gain 10 to 20 % more,
        # but ignores `cancel()` of a stream, and answers 10 s after a replica's death in place of 2.8 s.
        RAY_SERVE_USE_GRPC_BY_DEFAULT="1",
        RAY_USAGE_STATS_ENABLED="0",
        # Despite its name, this setting keeps all of Ray's daemons on loopback.
        RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
        # The default niceness of 15 would starve replicas beside any other busy process.
        RAY_worker_niceness="0",
        # On a busy machine Ray would end itself after 30 to 100 s of its start. The supervisor ends what hangs.
        RAY_raylet_start_wait_time_s="600",
        RAY_gcs_server_port_wait_time_s="600",
        RAY_worker_register_timeout_seconds="600",
        RAY_agent_register_timeout_ms="600000",
        # Otherwise SIGTERM waits up to 30 s for replicas to move to another node, and there is none.
        RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S="0",
        RAY_START_HOOK="serve_deployments.ray_start.without_servers",
        DASHBOARD_METRIC_PORT="-1",
        # Their port answers without a token.
        RAY_enable_metrics_collection="0",
        SPT_NOENV="1",
    )


def _ray(layout: Layout) -> Child:
    ports = layout.ports["ray"], layout.ports["raylet"]
    options = (
        f"--port={ports[0]} --node-manager-port={ports[1]} --node-ip-address={LOOPBACK} "
        f"--temp-dir={layout.ray_dir} --object-store-memory={_RAY_OBJECTS_BYTES} --num-cpus=64 --num-gpus=0 "
        "--dashboard-agent-listen-port=0 --include-log-monitor=false --no-monitor --disable-usage-stats "
        "--log-color=false"
    )
    return Child(
        name="ray",
        command=(_program("ray"), "start", "--head", "--block", *options.split()),
        ready_line=r".*Ray runtime started\.",
        # Ray's two daemons detect each other's hang only after minutes, and `ray start --block` never does.
        health_check=checks.responds_to_bytes(LOOPBACK, ports, _HTTP2_PREFACE),
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
        needs=_needs(layout),
        # It starts together with Ray and waits for it.
        fails_with=("ray",),
        stop_within_s=15.0,
        detail=f"{len(layout.roles)} roles: {', '.join(layout.roles)}",
        hint=f"the replicas' logs are in {layout.stack_run.logs_dir}/ray/serve",
    )


def _needs(layout: Layout) -> tuple[str, ...]:
    return () if layout.options.nats_url else ("nats",)


def _process(layout: Layout, name: str, *module: str, user: str | None = None, **variables: str) -> Child:
    """Returns a process without routes, `python -m app.NAME` or `module`: it works on the log, and answers /healthz."""
    port = layout.ports[name]
    listen = {f"{name.upper()}_HOST": LOOPBACK, f"{name.upper()}_PORT": str(port)}
    return Child(
        name=name,
        command=(sys.executable, "-m", *(module or (f"app.{name}",))),
        health_check=checks.responds_to_http(f"http://{LOOPBACK}:{port}/healthz"),
        environment=_python_environment(layout, user or name, **listen, **variables),
        needs=_needs(layout),
        stop_within_s=5.0,
        hint="correct the variable that its log names",
    )


def _coordinator(layout: Layout, engines: dict[str, str]) -> Child:
    # Although it asks no engine, it reads the roles with the keys of their engines.
    process = _process(layout, "coordinator", "serve_deployments.coordinator", user="agents", **engines)
    return replace(process, stop_within_s=10.0, detail="without Ray")


def _workers(layout: Layout, engines: dict[str, str]) -> Child:
    roles = [argument for role in layout.worker_roles for argument in ("--role", role)]
    return replace(
        _process(layout, "worker", "serve_deployments.agent", *roles, **engines),
        stop_within_s=layout.settings.worker_drain_s + _STOP_MARGIN_S,
        detail=f"{len(layout.worker_roles)} roles: {', '.join(layout.worker_roles)}",
    )


async def _migrate(database_url: str) -> None:
    # Imported here, while other children start.
    from app.archive.database.migrate import migrate

    await migrate(database_url)


def _gateway(layout: Layout, **shared: str) -> Child:
    settings, options = layout.settings, layout.options
    variables = {
        "HOST": options.host,
        "PORT": str(layout.ports["gateway"]),
        "PLANNING": str(settings.planning),
        "WEBHOOKS": os.environ.get("WEBHOOKS", "true"),
        **({"KEY_PEPPER": options.key_pepper} if options.key_pepper is not None else {}),
    }
    return Child(
        name="gateway",
        command=(sys.executable, "-m", "app.main"),
        health_check=checks.responds_to_http(f"{layout.url}/healthz"),
        environment=_python_environment(layout, "gateway", **shared, **variables),
        needs=_needs(layout),
        stop_within_s=settings.drain_delay_s + settings.drain_timeout_s + _STOP_MARGIN_S,
        detail=f"{layout.url}  the dashboard; documentation at /docs",
        hint="another process may have taken the port; choose another by --port",
    )
