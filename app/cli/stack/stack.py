"""The stack of `deliberate up`: nats-server, simulator, Ray, deployer, webhooks and gateway, and how each is started.

Everything listens on loopback. The parts know each other by URL only, so each can restart without the others.
"""

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import app
from app.cli.render.progress import Noticed, PartGiven, ProgressReport, StackReady
from app.cli.stack import health_checks
from app.cli.stack.layout import (
    LOOPBACK,
    Layout,
    StackOptions,
    make_data_dir,
    make_ray_dir,
    mask_credentials,
    plan_stack,
)
from app.cli.stack.nats_server import declare_on_external, declare_on_own, jetstream_works, write_config
from app.cli.stack.processes import exclusive, marked, sweep
from app.cli.stack.supervisor import Child, StackFailed, Supervisor, supervised
from app.log.seal import LOG_KEY_VARIABLE

READY_WITHIN_S = 120.0
_LEFTOVERS_GRACE_S = 3.0
_SECRETS = ("KEY_PEPPER", "WEBHOOK_SECRETS", "NATS_URL", "DATABASE_URL")
# A gRPC client's first bytes (RFC 9113, 3.4): the preface and an empty SETTINGS frame. The server must respond.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@dataclass(frozen=True, slots=True)
class RunningStack:
    """A stack that is ready to serve: its URLs, where the engines' are the given ones or the simulator's.

    `nats_url` is for the gateway's rights; `layout.nats_url_of` has those of other users.
    """

    url: str
    nats_url: str
    log_key_file: Path
    engine_urls: tuple[str, ...]
    layout: Layout
    supervisor: Supervisor


def stack_children(layout: Layout) -> list[Child]:
    """The children in start order: nats, simulator, ray, deployer, webhooks, archive, gateway."""
    log = [] if layout.options.nats_url else [_nats(layout)]
    engine = [] if layout.options.engine_urls else [_simulator(layout)]
    needed = tuple(child.name for child in log)
    dependent = [
        _deployer(layout, needed),
        _webhooks(layout, needed),
        _archive(layout, needed),
        _gateway(layout, needed),
    ]
    return [*log, *engine, _ray(layout), *dependent]


@asynccontextmanager
async def running_stack(options: StackOptions, report: ProgressReport = lambda _: None) -> AsyncGenerator[RunningStack]:
    """Run the whole stack around the body, which begins when the gateway is ready to serve.

    Raises CommandError when the data directory is in use or unusable, and when the stack cannot start. State stays in
    the data directory: the next stack there continues the same log. Cancelling the body stops the stack in order.
    """
    began_s = time.monotonic()
    make_data_dir(options.data_dir)
    with exclusive(options.data_dir):
        await _end_leftovers(options.data_dir, report)
        layout = plan_stack(options, report)
        _keep_previous_logs(layout)
        if options.nats_url is not None:
            await declare_on_external(layout, report)
        with _temporary_ray_dir(layout, report):
            async with supervised(stack_children(layout), layout.stack_run, report) as supervisor:
                await _until_serving(layout)
                await _report_engines(options.engine_urls, report)
                report(_ready(layout, time.monotonic() - began_s))
                yield RunningStack(
                    layout.url,
                    layout.nats_url_of("gateway"),
                    layout.log_key_file,
                    layout.engine_urls,
                    layout,
                    supervisor,
                )


@contextmanager
def _temporary_ray_dir(layout: Layout, report: ProgressReport) -> Generator[None]:
    """Make Ray's directory and remove it afterwards; `logs/ray` links into it, and ends as a copy of Ray's logs."""
    make_ray_dir(layout.ray_dir)
    kept = layout.stack_run.logs_dir / "ray"
    logs = layout.ray_dir / "session_latest" / "logs"
    _remove(kept)
    kept.symlink_to(logs)
    try:
        yield
    finally:
        _remove(kept)
        try:
            if logs.is_dir():
                shutil.copytree(logs, kept, symlinks=True)
        except OSError:
            # A full disk fails many copies; one notice is enough.
            report(Noticed(f"not all of Ray's logs could be kept in {kept}"))
        shutil.rmtree(layout.ray_dir, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def _ready(layout: Layout, seconds: float) -> StackReady:
    return StackReady(
        url=layout.url,
        nats_url=layout.nats_url,
        engine_urls=tuple(mask_credentials(url) for url in layout.engine_urls),
        ray_address=layout.ray_address,
        roles=layout.roles,
        simulated=not layout.options.engine_urls,
        data_dir=str(layout.data_dir),
        seconds=seconds,
        keys=layout.options.key_pepper is not None,
    )


async def _until_serving(layout: Layout) -> None:
    status: int | None = None
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            while (status := await health_checks.status_of(f"{layout.url}/readyz")) != 200:  # noqa: ASYNC110 -- another process
                await asyncio.sleep(0.05)
    except TimeoutError:
        reason = f"/readyz still answered {status} after {READY_WITHIN_S:g} s"
        raise StackFailed("gateway", reason, hint=f"see {layout.stack_run.logs_dir}") from None


async def _report_engines(urls: tuple[str, ...], report: ProgressReport) -> None:
    # Last, and only for information: an engine may take minutes to load, and may restart at any time.
    found = await asyncio.gather(*(health_checks.status_of(f"{url}/v1/models") for url in urls))
    for url, status in zip(urls, found, strict=True):
        report(PartGiven("engine", mask_credentials(url), answers=status is not None))


async def _end_leftovers(data_dir: Path, report: ProgressReport) -> None:
    """End the processes that a killed supervisor left running; its state file has the mark."""
    try:
        mark = str(json.loads((data_dir / "stack.json").read_text(encoding="utf-8"))["mark"])
    except (FileNotFoundError, ValueError, KeyError):
        return
    if left := marked(mark):
        report(Noticed(f"an earlier run was cut short: ending {len(left)} processes of it"))
        await sweep(mark, grace_s=_LEFTOVERS_GRACE_S)


def _keep_previous_logs(layout: Layout) -> None:
    for log in layout.stack_run.logs_dir.glob("*.log"):
        log.replace(log.with_suffix(".previous"))


def _program(name: str) -> str:
    """The path of a program that is installed with this Python, or on the search path."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name) or name


def _python_environment(layout: Layout, nats_user: str | None, **more: str) -> dict[str, str]:
    root = str(Path(app.__file__).parent.parent)
    # Only the children that need a secret get it, explicitly.
    kept = (key for key in os.environ if not key.startswith("RAY_") and key not in _SECRETS)
    inherited = {key: os.environ[key] for key in kept}
    path = os.pathsep.join(filter(None, [root, inherited.get("PYTHONPATH")]))
    roles = {"ROLES_FILE": str(layout.options.roles_file.resolve())} if layout.options.roles_file else {}
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
        environment={key: value for key, value in os.environ.items() if key not in _SECRETS},
        prepare=lambda: declare_on_own(layout),
        health_check=jetstream_works(f"nats://monitor:{layout.nats_passwords['monitor']}@{LOOPBACK}:{port}", store),
        # After a kill it reads its whole store before it listens, and all other children wait for it.
        ready_within_s=600.0,
        low_priority=False,
        ports={"nats": port},
        detail=f"{layout.nats_url}  JetStream, streams declared",
        hint="check the disk of the data directory and the port",
    )


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
        environment=_python_environment(layout, None),
        stop_within_s=3.0,
        ports={"simulator": port},
        detail=f"{url}  simulated: no weights; --engine-url names a real engine",
        hint="`deliberate simulator --help` lists the arguments for --simulate",
    )


def _ray_environment(layout: Layout) -> dict[str, str]:
    return _python_environment(
        layout,
        "agents",
        VLLM_URL=",".join(layout.engine_urls),
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
        RAY_START_HOOK="serve_deployments.ray_start.without_client_server",
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
        "include-dashboard": "false",
        # Nothing listens on it, but a second Ray on this host fails when the default port is taken.
        "dashboard-port": layout.ports["ray_dashboard"],
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


def _worker(layout: Layout, name: str, needs: tuple[str, ...], **variables: str) -> Child:
    """A process without routes, `python -m app.NAME`: it works on the log and has a port for /healthz."""
    port = layout.ports[name]
    url = f"http://{LOOPBACK}:{port}/healthz"
    listen = {f"{name.upper()}_HOST": LOOPBACK, f"{name.upper()}_PORT": str(port)}
    return Child(
        name=name,
        command=(sys.executable, "-m", f"app.{name}"),
        is_ready=health_checks.returns_200(url),
        health_check=health_checks.responds_to_http(url),
        environment=_python_environment(layout, name, **listen, **variables),
        needs=needs,
        ports={name: port},
    )


def _webhook_hosts(layout: Layout) -> dict[str, str]:
    """The private hosts that webhooks may reach: this machine, unless keys open the gateway to other users."""
    own = "" if layout.options.key_pepper else f"{LOOPBACK},::1,localhost"
    return {"WEBHOOK_HOSTS": os.environ.get("WEBHOOK_HOSTS", own)}


def _webhooks(layout: Layout, needs: tuple[str, ...]) -> Child:
    worker = _worker(layout, "webhooks", needs, WEBHOOK_SECRETS=layout.webhook_secrets, **_webhook_hosts(layout))
    return replace(
        worker,
        stop_within_s=layout.webhooks_stop_within_s,
        detail="`deliberate webhooks secret` prints the secret for receivers",
        hint="check the WEBHOOK_… variables in the environment",
    )


async def _migrate(url: str) -> None:
    # Imported here, while other children start.
    from app.archive.database.migrate import migrate

    await migrate(url)


def _archive(layout: Layout, needs: tuple[str, ...]) -> Child:
    return replace(
        _worker(layout, "archive", needs, DATABASE_URL=layout.database_url),
        prepare=(lambda: _migrate(layout.database_url)) if layout.own_database else None,
        stop_within_s=5.0,
        detail=mask_credentials(layout.database_url),
        hint="check DATABASE_URL in the environment",
    )


def _gateway(layout: Layout, needs: tuple[str, ...]) -> Child:
    listen = {"HOST": layout.options.host, "PORT": str(layout.ports["gateway"])}
    listen["DATABASE_URL"] = layout.database_url
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
