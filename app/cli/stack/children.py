"""How each child of the stack is started, checked and stopped: its command, environment, ports and dependencies."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import app
from app.cli.stack import health_checks
from app.cli.stack.layout import LOOPBACK, Layout, mask_credentials
from app.cli.stack.nats_server import declare_on_own, jetstream_works, write_config
from app.cli.stack.supervisor import Child
from app.deliberation.roles import DEFAULT_KEY_VARIABLE
from app.log.signature import LOG_KEY_VARIABLE

READY_WITHIN_S = 120.0
_SECRETS = ("KEY_PEPPER", "WEBHOOK_SECRETS", "NATS_URL", "DATABASE_URL", DEFAULT_KEY_VARIABLE)
# A gRPC client's first bytes (RFC 9113, 3.4): the preface and an empty SETTINGS frame. The server must respond.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def stack_children(layout: Layout) -> list[Child]:
    """The children in start order: nats, simulator, ray, deployer, or coordinator without Ray, then what needs nats."""
    log = [] if layout.options.nats_url else [_nats(layout)]
    engine = [] if layout.options.engine_urls else [_simulator(layout)]
    needed = tuple(child.name for child in log)
    dependent = [
        _deployer(layout, needed) if layout.uses_ray else _coordinator(layout, needed),
        *([_workers(layout, needed)] if layout.worker_roles else []),
        _webhooks(layout, needed),
        _archive(layout, needed),
        *([_planning(layout, needed)] if layout.takes_plans else []),
        _gateway(layout, needed),
    ]
    return [*log, *engine, *([_ray(layout)] if layout.uses_ray else []), *dependent]


def _program(name: str) -> str:
    """The path of a program that is installed with this Python, or on the search path."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name) or name


def _python_environment(layout: Layout, nats_user: str | None, **more: str) -> dict[str, str]:
    root = str(Path(app.__file__).parent.parent)
    # Only the children that need a secret get it, explicitly.
    secret = {*_SECRETS, *layout.key_variables}
    kept = (key for key in os.environ if not key.startswith("RAY_") and key not in secret)
    inherited = {key: os.environ[key] for key in kept}
    path = os.pathsep.join(filter(None, [root, inherited.get("PYTHONPATH")]))
    roles = {"ROLES_FILE": str(layout.options.roles_file.resolve())} if layout.options.roles_file else {}
    roles["AGENTS"] = layout.options.agents
    log = {"NATS_URL": layout.nats_url_of(nats_user), LOG_KEY_VARIABLE: str(layout.log_key_file)} if nats_user else {}
    return {**inherited, "PYTHONPATH": path, **log, **roles, **more}


def _nats(layout: Layout) -> Child:
    store = layout.data_dir / "nats"
    port = layout.ports["nats"]
    store.mkdir(mode=0o700, exist_ok=True)
    return Child(
        name="nats",
        command=(_program("nats-server"), "-c", str(write_config(layout, store))),
        is_ready=health_checks.greets(LOOPBACK, port, b"INFO "),
        environment={key: value for key, value in os.environ.items() if key not in {*_SECRETS, *layout.key_variables}},
        prepare=lambda: declare_on_own(layout),
        health_check=jetstream_works(f"nats://monitor:{layout.nats_passwords['monitor']}@{LOOPBACK}:{port}", store),
        # After a kill it reads its whole store before it listens, and all other children wait for it.
        ready_within_s=600.0,
        niceness=0,
        ports={"nats": port},
        detail=f"{layout.nats_url}  JetStream, streams declared",
        hint="check the disk of the data directory and the port",
    )


def _default_key() -> dict[str, str]:
    return {name: key for name in (DEFAULT_KEY_VARIABLE,) if (key := os.environ.get(name))}


def _simulator(layout: Layout) -> Child:
    port = layout.ports["simulator"]
    url = layout.engine_urls[0]
    # Behind keys, no local user may read the prompts.
    options = ("--no-controls",) if layout.options.key_pepper else ()
    simulator = (sys.executable, "-m", "serve_deployments.simulator")
    return Child(
        name="simulator",
        command=(*simulator, "--port", str(port), *options, *layout.options.simulate),
        is_ready=health_checks.returns_200(f"{url}/health"),
        health_check=health_checks.responds_to_http(f"{url}/health"),
        # As vLLM does, the simulator requires the key in this variable.
        environment=_python_environment(layout, None, **_default_key()),
        stop_within_s=3.0,
        ports={"simulator": port},
        detail=f"{url}  simulated; --engine-url names a real one",
        hint="`deliberate simulator --help` lists the arguments for --simulate",
    )


def _ray_environment(layout: Layout) -> dict[str, str]:
    return _python_environment(
        layout,
        "agents",
        **_engine_variables(layout),
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN_PATH=str(layout.ray_token_file),
        RAY_SERVE_USE_GRPC_BY_DEFAULT="1",
        RAY_USAGE_STATS_ENABLED="0",
        # Despite its name, this setting keeps all of Ray's daemons on loopback.
        RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
        # The default niceness of 15 would starve replicas beside any other busy process.
        RAY_worker_niceness="0",
        # Otherwise SIGTERM waits up to 30 s for replicas to move to another node, and there is none.
        RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S="0",
        RAY_START_HOOK="serve_deployments.ray_start.without_servers",
        DASHBOARD_METRIC_PORT="-1",
        # Their port answers without a token.
        RAY_enable_metrics_collection="0",
        SPT_NOENV="1",
    )


def _ray(layout: Layout) -> Child:
    options = {
        "port": layout.ports["ray"],
        "node-manager-port": layout.ports["raylet"],
        "node-ip-address": LOOPBACK,
        "temp-dir": layout.ray_dir,
        "include-log-monitor": "false",
        "dashboard-agent-listen-port": 0,
        "object-store-memory": 128 * 1024 * 1024,
        "num-cpus": 64,
        "num-gpus": 0,
        "log-color": "false",
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    ports = (layout.ports["ray"], layout.ports["raylet"])
    daemons = [health_checks.responds_to_bytes(LOOPBACK, port, _HTTP2_PREFACE) for port in ports]
    return Child(
        name="ray",
        command=(_program("ray"), "start", "--head", "--block", "--no-monitor", "--disable-usage-stats", *flags),
        is_ready=health_checks.prints(r".*Ray runtime started\."),
        # Ray's two daemons detect each other's hang only after minutes, and `ray start --block` never does.
        health_check=health_checks.all_healthy(*daemons),
        environment=_ray_environment(layout),
        ready_within_s=READY_WITHIN_S,
        ports={"ray": layout.ports["ray"]},
        detail=layout.ray_address,
        hint=f"Ray's own logs are in {layout.stack_run.logs_dir}/ray",
    )


def _deployer(layout: Layout, needs: tuple[str, ...]) -> Child:
    return Child(
        name="deployer",
        command=(sys.executable, "-m", "serve_deployments.application"),
        is_ready=health_checks.prints("ready"),
        environment={**_ray_environment(layout), "RAY_ADDRESS": layout.ray_address},
        needs=needs,
        fails_with=("ray",),
        # It starts together with Ray and waits for it.
        ready_within_s=2 * READY_WITHIN_S,
        stop_within_s=15.0,
        detail=f"{len(layout.roles)} roles: {', '.join(layout.roles)}",
        hint=f"the replicas' logs are in {layout.stack_run.logs_dir}/ray/serve",
    )


def _process(
    layout: Layout, name: str, needs: tuple[str, ...], *module: str, user: str | None = None, **variables: str
) -> Child:
    """A process without routes, `python -m app.NAME` or `module`: it works on the log and has a port for /healthz."""
    port = layout.ports[name]
    url = f"http://{LOOPBACK}:{port}/healthz"
    listen = {f"{name.upper()}_HOST": LOOPBACK, f"{name.upper()}_PORT": str(port)}
    return Child(
        name=name,
        command=(sys.executable, "-m", *(module or (f"app.{name}",))),
        is_ready=health_checks.returns_200(url),
        health_check=health_checks.responds_to_http(url),
        environment=_python_environment(layout, user or name, **listen, **variables),
        needs=needs,
        ports={name: port},
    )


def _engine_variables(layout: Layout) -> dict[str, str]:
    """The variables of what makes calls: the default engines, and the keys."""
    return {"VLLM_URL": ",".join(layout.engine_urls)} | {key: os.environ[key] for key in layout.key_variables}


def _coordinator(layout: Layout, needs: tuple[str, ...]) -> Child:
    module = "serve_deployments.coordinator"
    # It reads the roles with the keys of their engines, although it asks none.
    variables = _engine_variables(layout)
    return replace(
        _process(layout, "coordinator", needs, module, user="agents", **variables),
        detail="without Ray",
        hint="correct the variable that its log names",
    )


def _workers(layout: Layout, needs: tuple[str, ...]) -> Child:
    roles = [argument for role in layout.worker_roles for argument in ("--role", role)]
    return replace(
        _process(layout, "worker", needs, "serve_deployments.agent", *roles, **_engine_variables(layout)),
        stop_within_s=layout.worker_stops_within_s,
        detail=f"{len(layout.worker_roles)} roles: {', '.join(layout.worker_roles)}",
        hint="correct the variable that its log names",
    )


def _webhook_hosts(layout: Layout) -> dict[str, str]:
    """The private hosts that webhooks may reach: this machine, unless keys open the gateway to other users."""
    own = "" if layout.options.key_pepper else f"{LOOPBACK},::1,localhost"
    return {"WEBHOOK_HOSTS": os.environ.get("WEBHOOK_HOSTS", own)}


def _webhooks(layout: Layout, needs: tuple[str, ...]) -> Child:
    worker = _process(layout, "webhooks", needs, WEBHOOK_SECRETS=layout.webhook_secrets, **_webhook_hosts(layout))
    return replace(
        worker,
        stop_within_s=layout.webhooks_stop_within_s,
        detail="`deliberate webhooks secret` is for receivers",
        hint="check the WEBHOOK_… variables in the environment",
    )


async def _migrate(url: str) -> None:
    # Imported here, while other children start.
    from app.archive.database.migrate import migrate

    await migrate(url)


def _archive(layout: Layout, needs: tuple[str, ...]) -> Child:
    return replace(
        _process(layout, "archive", needs, DATABASE_URL=layout.database_url),
        prepare=(lambda: _migrate(layout.database_url)) if layout.own_database else None,
        stop_within_s=5.0,
        detail=mask_credentials(layout.database_url),
        hint="correct DATABASE_URL or the variable that its log names",
    )


def _planning(layout: Layout, needs: tuple[str, ...]) -> Child:
    return replace(
        _process(layout, "planning", needs, DATABASE_URL=layout.database_url),
        stop_within_s=5.0,
        detail="takes plans of `planning.plan.approved`",
        hint="check the PLANNING_…, PLAN_ROLES_… and SPEND… variables in the environment",
    )


def _gateway(layout: Layout, needs: tuple[str, ...]) -> Child:
    listen = {"HOST": layout.options.host, "PORT": str(layout.ports["gateway"])}
    listen["DATABASE_URL"] = layout.database_url
    listen["PLANNING"] = "true" if layout.takes_plans else "false"
    listen |= {"WEBHOOKS": os.environ.get("WEBHOOKS", "true"), **_webhook_hosts(layout)}
    if layout.options.key_pepper is not None:
        listen["KEY_PEPPER"] = layout.options.key_pepper
    return Child(
        name="gateway",
        command=(sys.executable, "-m", "app.main"),
        is_ready=health_checks.returns_200(f"{layout.url}/healthz"),
        health_check=health_checks.responds_to_http(f"{layout.url}/healthz"),
        environment=_python_environment(layout, "gateway", **listen),
        needs=needs,
        stop_within_s=layout.gateway_stops_within_s,
        ports={"gateway": layout.ports["gateway"]},
        detail=f"{layout.url}  the dashboard; documentation at /docs",
        hint="another process may have taken the port; choose another by --port",
    )
