"""The layout of one run of the stack: directories, ports and URLs, chosen once and kept through all restarts."""

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml

from app.access.keys import PEPPER_CHARS_MIN, Pepper
from app.cli.exits import CommandError, Exit, cause
from app.cli.options import DATA_DIR, PACKAGED_ROLES, nats_url_file
from app.cli.render.progress import PortShifted, ProgressReport
from app.cli.stack.processes import PortAllocator, write_private
from app.cli.stack.supervisor import StackRun
from app.deliberation.errors import InvalidRequest
from app.deliberation.roles import (
    DEFAULT_KEY_VARIABLE,
    AgentRunner,
    EngineSpec,
    Role,
    api_key,
    currency_of,
    engines_of,
    parse_roles,
    roles_over_nats,
)
from app.log import stream_settings as bounds
from app.log.signature import LOG_KEY_NAME, LOG_KEY_VARIABLE, LogSigner
from app.log.stream_settings import StreamSettings
from app.webhooks.signatures import MASTER_CHARS_MIN

LOOPBACK = "127.0.0.1"
WEBHOOK_SECRET_FILE = "webhook_secret"
DATABASE_URL_FILE = "database_url"
# Those of users.conf, and `monitor`, which may ask for nats-server's health and nothing else.
NATS_USERS = (
    "gateway",
    "agents",
    "worker",
    "webhooks",
    "archive",
    "planning",
    "planner",
    "context",
    "streams",
    "keys",
    "monitor",
)
# Added to the time that a child's settings allow its work, before it is killed.
_STOP_MARGIN_S = 5.0
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_SOCKET_PATH_BYTES_MAX = 107
_SOCKET_IN_RAY_DIR = "/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """The options of a stack. A port that is taken is replaced by the next free one; 0 takes any free port.

    Without `key_pepper` the gateway requires no keys. `nats_test_user` is for tests: a NATS user with every right.
    """

    host: str = LOOPBACK
    port: int = 8080
    nats_port: int = 4222
    data_dir: Path = DATA_DIR
    nats_url: str | None = None
    engine_urls: tuple[str, ...] = ()
    roles_file: Path | None = None
    simulate: tuple[str, ...] = ()
    agents: AgentRunner = "ray"
    key_pepper: str | None = None
    nats_test_user: str | None = None


def mask_credentials(url: str) -> str:
    """A URL with its user information replaced by `***`: it may hold a password or a token."""
    parts = urlsplit(url)
    _, sign, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"***@{host}").geturl() if sign else url


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The directories, ports, URLs and secrets of one run of a stack; `nats_url` has no credentials.

    `key_variables` are the variables with keys of engines, which only the agents get.
    `log` has the `id` of the log once its streams are declared; commands compare it before they write there.
    """

    options: StackOptions
    data_dir: Path
    ray_dir: Path
    webhook_secrets: str = field(repr=False)
    nats_passwords: Mapping[str, str] = field(repr=False)
    log_key_file: Path
    url: str
    nats_url: str
    engine_urls: tuple[str, ...]
    ray_address: str
    roles: tuple[str, ...]
    worker_roles: tuple[str, ...]
    key_variables: tuple[str, ...]
    streams: StreamSettings
    gateway_stops_within_s: float
    webhooks_stop_within_s: float
    worker_stops_within_s: float
    ports: Mapping[str, int]
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    log: dict[str, str] = field(default_factory=dict[str, str])

    def nats_url_of(self, user: str) -> str:
        """The `file:` URL for a NATS user; with an external server it is that server's for every user."""
        return nats_url_file(self.data_dir, user)

    @property
    def uses_ray(self) -> bool:
        """Whether Ray runs: without it all roles have workers, and the coordinator is a plain process."""
        return len(self.worker_roles) < len(self.roles)

    @property
    def takes_plans(self) -> bool:
        """Whether events of the planning service are taken; PLANNING=off of the environment says no."""
        return os.environ.get("PLANNING", "on").lower() not in ("off", "false", "no", "0")

    @property
    def own_database(self) -> bool:
        """Whether the archive is a file of the data directory; DATABASE_URL of the environment names another one."""
        return not os.environ.get("DATABASE_URL")

    @property
    def database_url(self) -> str:
        """The archive's database, maybe with a password."""
        return os.environ.get("DATABASE_URL") or f"sqlite:///{self.data_dir / 'archive.db'}"

    @property
    def ray_token_file(self) -> Path:
        """The file with the token of Ray's ports."""
        return self.data_dir / "ray_token"

    @property
    def stack_run(self) -> StackRun:
        """What the supervisor needs of this layout."""
        facts: dict[str, object] = {
            "url": self.url,
            "nats_url": self.nats_url,
            "log": self.log,
            "nats_url_files": str(self.data_dir / "nats_urls"),
            "engine_urls": self.engine_urls,
            "ray_address": self.ray_address,
            "data_dir": str(self.data_dir),
            "ray_dir": str(self.ray_dir),
            "ray_token_file": str(self.ray_token_file),
            "log_key_file": str(self.log_key_file),
            # Its public identifier; empty where the gateway asks for no keys.
            "key_pepper": Pepper(self.options.key_pepper).id if self.options.key_pepper else "",
            "webhook_secret_file": str(self.data_dir / WEBHOOK_SECRET_FILE),
        }
        state_file = self.data_dir / "stack.json"
        return StackRun(mark=self.mark, logs_dir=self.data_dir / "logs", state_file=state_file, facts=facts)


def plan_stack(options: StackOptions, report: ProgressReport) -> Layout:
    """Choose ports and make the data directory; raises CommandError for unusable roles, secrets and settings."""
    roles, key_variables = _roles(options.roles_file or PACKAGED_ROLES)
    worker_roles = roles_over_nats(roles, options.agents)
    _check_secret("KEY_PEPPER", options.key_pepper, PEPPER_CHARS_MIN)
    for secret in filter(None, os.environ.get("WEBHOOK_SECRETS", "").split(",")):
        _check_secret("WEBHOOK_SECRETS", secret.strip(), MASTER_CHARS_MIN)
    make_data_dir(options.data_dir)
    data_dir = options.data_dir.resolve()
    (data_dir / "logs").mkdir(exist_ok=True)
    log_key_file = _log_key_file(data_dir)
    ports = {"gateway": _port(PortAllocator(options.host), "gateway", options.port, report)}
    loopback = PortAllocator(LOOPBACK)
    if options.nats_url is None:
        ports["nats"] = _port(loopback, "nats", options.nats_port, report)
    if not options.engine_urls:
        ports["simulator"] = loopback.take()
    for name in ("ray", "raylet", "coordinator", "worker", "webhooks", "archive", "planning"):
        ports[name] = loopback.take()
    url_host = LOOPBACK if options.host in ("0.0.0.0", "::") else options.host
    nats_url = mask_credentials(options.nats_url or f"nats://{LOOPBACK}:{ports['nats']}")
    _kept_secret(data_dir / "ray_token")
    _keep_database_url(data_dir / DATABASE_URL_FILE)
    retention_s = _number("DELIBERATION_CLEANUP", bounds.DAY_S, bounds.RETENTION_S_MIN, bounds.RETENTION_S_MAX)
    replicas = _number("STREAM_REPLICAS", 1, 1, bounds.REPLICAS_MAX)
    ack_wait_s = _number("ACK_WAIT", bounds.ACK_WAIT_S_MIN, bounds.ACK_WAIT_S_MIN, bounds.ACK_WAIT_S_MAX)
    drain_s = _number("DRAIN_DELAY", 0, 0, 600) + _number("DRAIN_TIMEOUT", 10, 0, 600)
    return Layout(
        options=options,
        data_dir=data_dir,
        ray_dir=_ray_dir(data_dir),
        log_key_file=log_key_file,
        webhook_secrets=os.environ.get("WEBHOOK_SECRETS") or _kept_secret(data_dir / WEBHOOK_SECRET_FILE),
        url=f"http://{f'[{url_host}]' if ':' in url_host else url_host}:{ports['gateway']}",
        nats_passwords=_nats_users(data_dir, options, nats_url),
        nats_url=nats_url,
        engine_urls=options.engine_urls or (f"http://{LOOPBACK}:{ports['simulator']}",),
        ray_address=f"{LOOPBACK}:{ports['ray']}",
        roles=tuple(roles),
        worker_roles=worker_roles,
        key_variables=key_variables,
        streams=StreamSettings(int(retention_s), int(replicas), ack_wait_s, worker_roles),
        gateway_stops_within_s=drain_s + _STOP_MARGIN_S,
        webhooks_stop_within_s=_number("WEBHOOK_TIMEOUT", 15, 0, 60) + _STOP_MARGIN_S,
        worker_stops_within_s=_number("WORKER_DRAIN", 5, 0, 3_600) + _STOP_MARGIN_S,
        ports=ports,
    )


def make_data_dir(path: Path) -> None:
    """Create the data directory, for its owner only; raises CommandError where nothing can be stored."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        detail = f"{path} cannot hold the data: {cause(error)}"
        remedy = "name a directory that you may write to by --data-dir"
        raise CommandError(Exit.USAGE, "data_dir_unusable", detail, remedy=remedy) from error


def _check_secret(variable: str, secret: str | None, chars_min: int) -> None:
    if secret is not None and len(secret) < chars_min:
        detail = f"{variable} has {len(secret)} characters, and needs {chars_min} or more"
        remedy = f"set {variable} to what `openssl rand -hex 32` writes"
        raise CommandError(Exit.USAGE, "invalid_setting", detail, remedy=remedy)


def _roles(path: Path) -> tuple[Mapping[str, Role], tuple[str, ...]]:
    """The roles by name, and the variables with keys of their engines; raises CommandError for unusable ones.

    It reads every key once, so that `up` reports a missing one before it starts anything.
    """
    try:
        roles = parse_roles(yaml.safe_load(path.read_text(encoding="utf-8")), str(path))
        for setting in filter(os.environ.get, ("SPEND_PER_DAY", "SPENDS_PER_DAY")):
            currency_of(roles, setting)
        engines = list(engines_of(roles))
        if os.environ.get(DEFAULT_KEY_VARIABLE):
            engines.append(EngineSpec(url="http://default", api_key_env=DEFAULT_KEY_VARIABLE))
        for engine in engines:
            api_key(engine, os.environ, lambda key_file: Path(key_file).read_text(encoding="utf-8"), str(path))
        return roles, tuple({engine.api_key_env for engine in engines if engine.api_key_env})
    except (OSError, UnicodeDecodeError) as error:
        remedy = "name a YAML file of roles by --roles, or leave it out"
        raise CommandError(Exit.USAGE, "invalid_roles", f"{path}: {cause(error)}", remedy=remedy) from error
    except yaml.YAMLError as error:
        raise CommandError(Exit.USAGE, "invalid_roles", f"{path}: {error}", remedy="correct the file") from error
    except InvalidRequest as error:
        place = "its value in the environment" if error.field == DEFAULT_KEY_VARIABLE else "the file, or what it names"
        raise CommandError(Exit.USAGE, "invalid_roles", str(error), remedy=f"correct {place}") from error


def _number(name: str, default: float, least: float, most: float) -> float:
    """A number of the environment that children read too; raises CommandError when it is not within its bounds.

    The gateway's settings could read it as well, but importing them would take longer than the rest of this module.
    """
    given = os.environ.get(name)
    if given is None:
        return default
    if not _NUMBER.fullmatch(given) or not least <= float(given) <= most:
        detail = f"{name} is a number from {least:g} to {most:g}, not {given!r}"
        raise CommandError(Exit.USAGE, "invalid_setting", detail, remedy=f"correct {name} in the environment")
    return float(given)


def _port(ports: PortAllocator, name: str, wanted: int, report: ProgressReport) -> int:
    port = ports.take(wanted)
    if wanted and port != wanted:
        report(PortShifted(name, wanted, port))
    return port


def _kept_secret(path: Path) -> str:
    if not path.exists():
        write_private(path, secrets.token_hex(32))
    return path.read_text(encoding="utf-8").strip()


def _keep_database_url(path: Path) -> None:
    """Keep DATABASE_URL for commands that run without the variable; it may hold a password."""
    if given := os.environ.get("DATABASE_URL"):
        write_private(path, given)
    else:
        path.unlink(missing_ok=True)


def _nats_users(data_dir: Path, options: StackOptions, server: str) -> dict[str, str]:
    """Draw a password for each NATS user, and write the user's URL to its file.

    With an external server, the files hold that server's URL, or point to the file that holds it.
    """
    users = (*NATS_USERS, options.nats_test_user) if options.nats_test_user else NATS_USERS
    # nats-server parses what begins with a digit as a number.
    passwords = {user: f"p{secrets.token_hex(24)}" for user in users}
    directory = data_dir / "nats_urls"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    for user, password in passwords.items():
        if options.nats_url is None:
            write_private(directory / user, server.replace("//", f"//{user}:{password}@", 1))
        elif options.nats_url.startswith("file:"):
            (directory / user).symlink_to(unquote(urlsplit(options.nats_url).path))
        else:
            write_private(directory / user, options.nats_url)
    return passwords


def _log_key_file(data_dir: Path) -> Path:
    """The file of LOG_KEY_FILE, else one in the data directory, made at the first start; raises CommandError."""
    given, kept = os.environ.get(LOG_KEY_VARIABLE), data_dir / LOG_KEY_NAME
    if not given:
        _kept_secret(kept)
    path = Path(given).resolve() if given else kept
    try:
        LogSigner.of_file(path)
    except InvalidRequest as error:
        raise CommandError(Exit.USAGE, "invalid_setting", str(error), remedy="correct the file") from error
    return path


def _ray_dir(data_dir: Path) -> Path:
    """Ray's directory: in the data directory, or elsewhere if its sockets' paths were too long for the kernel."""
    name = f"deliberate-{os.getuid()}-{sha256(os.fsencode(data_dir)).hexdigest()[:8]}"
    candidates = [data_dir / "ray", Path(tempfile.gettempdir()) / name]
    short = (path for path in candidates if len(os.fsencode(f"{path}{_SOCKET_IN_RAY_DIR}")) <= _SOCKET_PATH_BYTES_MAX)
    return next(short, Path("/tmp") / name)


def make_ray_dir(path: Path) -> None:
    """Create Ray's directory, empty and for its owner only; raises CommandError when another user owns it."""
    if path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid():
        shutil.rmtree(path)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError as error:
        detail = f"{path} belongs to another user, and Ray's sockets must not be there"
        raise CommandError(Exit.FAILED, "directory_in_use", detail, remedy="choose another --data-dir") from error
