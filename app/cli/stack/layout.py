"""The layout of one run of the stack: directories, ports, URLs and secrets, kept through all restarts of its parts."""

import errno
import fcntl
import os
import re
import secrets
import shutil
import socket
import stat
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote, urlsplit

import typer

from app.access.keys import Pepper
from app.cli.exits import CommandError, Exit, cause, usage_errors
from app.cli.machine import LOOPBACK, address_unusable, check_path, check_room
from app.cli.options import DATA_DIR, nats_url_file
from app.cli.render.progress import PortShifted, ProgressReport
from app.cli.stack.supervisor import StackRun, write_private
from app.deliberation.errors import InvalidRequest
from app.deliberation.roles import AgentRunner, currency_of, engines_of, placed, run_by
from app.log.signature import LOG_KEY_NAME, LOG_KEY_VARIABLE, LogSigner
from app.log.stream_settings import StreamSettings

if TYPE_CHECKING:
    from app.settings import StackSettings

_GGUF = b"GGUF"
# The simulator's default arguments: each member writes some 40 tokens a second, as a model does.
MODEL_PACE = "--ttft-ms 300 --per-token-ms 25 --jitter 0.3"
WEBHOOK_SECRET_FILE = "webhook_secret"
DATABASE_URL_FILE = "database_url"
# Those of users.conf, and `monitor`, which may ask for nats-server's health and nothing else.
NATS_USERS = tuple("gateway agents worker webhooks archive planner context streams keys monitor".split())
_PORTS = range(20_000, 32_000)  # below Linux's range for the local ports of outgoing connections

RolesOption = Annotated[
    Path | None, typer.Option("--roles", envvar="ROLES_FILE", help="File with the roles; default: the packaged roles.")
]
AgentsOption = Annotated[
    AgentRunner,
    typer.Option(
        "--agents",
        envvar="AGENTS",
        help="What runs the agents: Ray Serve, workers that pull from NATS, or the coordinator's own process.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """A port that is taken is replaced by the next free one; 0 is any. Without `key_pepper` no keys are required."""

    host: str = LOOPBACK
    port: int = 8080
    nats_port: int = 4222
    data_dir: Path = DATA_DIR
    nats_url: str | None = None
    engine_urls: tuple[str, ...] = ()
    roles_file: Path | None = None
    simulate: tuple[str, ...] = ()
    model_file: Path | None = None
    agents: AgentRunner = "ray"
    key_pepper: str | None = field(default=None, repr=False)


def mask_credentials(url: str) -> str:
    """Returns a URL with its user information, which may hold a password or a token, replaced by `***`."""
    return re.sub(r"://[^/?#]*@", "://***@", url)


def sqlite_url(path: Path) -> str:
    """Returns the URL of a database file. In a URL `?` ends the path, and `%` begins an escape."""
    return f"sqlite:///{str(path).replace('%', '%25').replace('?', '%3F')}"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The directories, ports, URLs and secrets of one run of a stack; `nats_url` has no credentials.

    `simulates`: a role names no engine, and neither does `up`, so the simulator runs. `model_file` is what an engine of
    the stack's own serves in its place. `engine_variables` have the keys of engines, so that only the agents get them.
    `log` has the `id` of the log once its streams are declared; commands compare it before they write there.
    """

    options: StackOptions
    settings: "StackSettings" = field(repr=False)
    mark: str
    data_dir: Path
    ray_dir: Path
    webhook_secrets: str = field(repr=False)
    nats_passwords: Mapping[str, str] = field(repr=False)
    log_key_file: Path
    nats_url: str
    database_url: str = field(repr=False)
    simulates: bool
    model_file: Path | None
    engine_urls: tuple[str, ...]
    ray_address: str
    roles: tuple[str, ...]
    worker_roles: tuple[str, ...]
    local_roles: tuple[str, ...]
    streams: StreamSettings
    engine_variables: Mapping[str, str] = field(repr=False)
    ports: Mapping[str, int]
    log: dict[str, str] = field(default_factory=dict[str, str])

    def nats_url_of(self, user: str) -> str:
        return nats_url_file(self.data_dir, user)

    @property
    def url(self) -> str:
        host = LOOPBACK if self.options.host in ("0.0.0.0", "::") else self.options.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.ports['gateway']}"

    @property
    def uses_ray(self) -> bool:
        """Whether Ray runs: without it the coordinator is a plain process, beside workers or with its own agents."""
        return len(self.worker_roles) + len(self.local_roles) < len(self.roles)

    @property
    def stack_run(self) -> StackRun:
        place = self.data_dir
        facts = {
            "url": self.url,
            "ports": self.ports,
            "log": self.log,
            # The pepper's public identifier; empty where the gateway asks for no keys.
            "key_pepper": Pepper(self.options.key_pepper).id if self.options.key_pepper else "",
            "ray_dir": str(self.ray_dir),
            "nats_url_files": str(place / "nats_urls"),
            "ray_token_file": str(place / "ray_token"),
        }
        return StackRun(mark=self.mark, logs_dir=place / "logs", state_file=place / "stack.json", facts=facts)


def plan_stack(options: StackOptions, report: ProgressReport) -> Layout:
    """Choose ports and make the data directory; raises CommandError for unusable roles, secrets and settings."""
    # Imported here, because pydantic-settings would slow every command.
    from app.process_settings import default_engines, load_roles
    from app.settings import StackSettings, declared_by

    with usage_errors("correct the file or the variable"):
        roles = placed(load_roles(options.roles_file), options.agents)
        lacks_engine = not options.engine_urls and not all(role.engines for role in roles.values())
        model_file = _model_of(options, lacks_engine=lacks_engine)
        engines = [*engines_of(roles), *default_engines(["http://default"])]
        for setting in filter(os.environ.get, ("SPEND_PER_DAY", "SPENDS_PER_DAY")):
            currency_of(roles, setting)
        if database_url := os.environ.get("DATABASE_URL"):
            from app.archive.database.connection import engine_of

            engine_of(database_url)
        # Children get these from here, and the variables of the user's environment may have another meaning.
        names = ("host", "port", "agents", "roles_file")
        chosen = {name: getattr(options, name) for name in names}
        settings = StackSettings(**chosen, nats_url="unused", key_pepper=options.key_pepper)  # pyright: ignore[reportArgumentType] -- validated
        make_data_dir(options.data_dir)
        data_dir = options.data_dir.resolve()
        (data_dir / "logs").mkdir(exist_ok=True)
        log_key = os.environ.get(LOG_KEY_VARIABLE)
        log_key_file = Path(log_key).resolve() if log_key else _kept_secret(data_dir / LOG_KEY_NAME)
        LogSigner.of_file(log_key_file)
    ports, mark = _ports(options, report), secrets.token_hex(8)
    nats_url = mask_credentials(options.nats_url or f"nats://{LOOPBACK}:{ports['nats']}")
    engine_urls = (f"http://{LOOPBACK}:{ports['engine']}",) if lacks_engine else options.engine_urls
    key_variables = {engine.api_key_env for engine in engines if engine.api_key_env}
    _kept_secret(data_dir / "ray_token")
    (data_dir / DATABASE_URL_FILE).unlink(missing_ok=True)
    if database_url:
        # For commands that run without the variable; it may hold a password.
        write_private(data_dir / DATABASE_URL_FILE, database_url)
    return Layout(
        options=options,
        settings=settings,
        mark=mark,
        data_dir=data_dir,
        # Ray's sockets need a short path of plain letters. The name is drawn, so it is unused.
        ray_dir=Path(f"/tmp/deliberate-{mark}"),
        log_key_file=log_key_file,
        webhook_secrets=os.environ.get("WEBHOOK_SECRETS") or _kept_secret(data_dir / WEBHOOK_SECRET_FILE).read_text(),
        nats_passwords=_nats_users(data_dir, options.nats_url or "", nats_url),
        nats_url=nats_url,
        database_url=database_url or sqlite_url(data_dir / "archive.db"),
        simulates=lacks_engine and model_file is None,
        model_file=model_file,
        engine_urls=engine_urls,
        ray_address=f"{LOOPBACK}:{ports['ray']}",
        roles=tuple(roles),
        worker_roles=run_by("nats", roles),
        local_roles=run_by("local", roles),
        streams=declared_by(settings, roles),
        engine_variables={"VLLM_URL": ",".join(engine_urls)} | {name: os.environ[name] for name in key_variables},
        ports=ports,
    )


def _model_of(options: StackOptions, *, lacks_engine: bool) -> Path | None:
    """The absolute path of the model that the stack serves, if any.

    Raises InvalidRequest for a file that is no model in GGUF, without llama.cpp, and for options that have no use.
    """
    simulates = options.simulate not in ((), tuple(MODEL_PACE.split()))
    for option, is_chosen in (("--simulate", simulates), ("--model", options.model_file is not None)):
        if is_chosen and not lacks_engine:
            detail = f"{option} has no use: each role has engines of its own"
            raise InvalidRequest(detail, remedy=f"omit {option}")
    path = options.model_file
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            begins = file.read(len(_GGUF))
    except OSError as error:
        raise InvalidRequest(f"--model {path}: {cause(error)}", remedy="name a file with a model in GGUF") from error
    if begins != _GGUF:
        detail, remedy = f"--model {path} is no model in GGUF", "download the GGUF of a model, such as its Q4_K_M"
        raise InvalidRequest(detail, remedy=remedy)
    if find_spec("xllamacpp") is None:
        detail, remedy = "--model needs llama.cpp", "run `pip install 'deliberation-gateway[gguf]'`"
        raise InvalidRequest(detail, remedy=remedy)
    return path.resolve()


def make_data_dir(path: Path) -> None:
    """Create the data directory, for its owner only, or take over an old one; raises CommandError for an unusable one.

    From here on this process and its children create files for their owner only. Whatever another user has put into
    the directory would be obeyed, as keys or as links; so it is refused.
    """
    os.umask(0o077)
    remedy = "name a directory that you may write to by --data-dir"
    try:
        check_path(os.path.realpath(path))
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_room(path)
        remedy = "remove what others have put there, or name another directory by --data-dir"
        own = path.resolve()
        if own.stat().st_uid == os.geteuid():
            own.chmod(stat.S_IMODE(own.stat().st_mode) & ~0o022)
        for entry in (own, *own.iterdir()):
            info = entry.lstat()
            if stat.S_ISLNK(info.st_mode) or info.st_uid != os.geteuid() or (entry.is_dir() and info.st_mode & 0o022):
                raise OSError(0, f"{entry} is a link, is another user's, or others may write there")
            if entry != own:
                entry.chmod(stat.S_IMODE(info.st_mode) & 0o700)
    except OSError as error:
        detail = f"{path} cannot hold the data: {cause(error)}"
        raise CommandError(Exit.USAGE, "data_dir_unusable", detail, remedy=remedy) from error


@contextmanager
def exclusive(data_dir: Path) -> Generator[None]:
    """Lock a data directory, with this process's id in the lock; raises CommandError if another process holds it."""
    # The kernel releases the lock when the process ends for any reason; children do not inherit it.
    with (data_dir / "lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            detail = f"{data_dir} is in use by process {file.read().strip() or 'unknown'}"
            remedy = "stop that one, or choose another --data-dir"
            raise CommandError(Exit.FAILED, "data_dir_in_use", detail, remedy=remedy) from None
        file.truncate(0)
        print(os.getpid(), file=file, flush=True)
        yield


def _ports(options: StackOptions, report: ProgressReport) -> dict[str, int]:
    wanted = dict.fromkeys(("ray", "raylet", "coordinator", "worker", "webhooks", "archive"), 0)
    wanted = {"gateway": options.port, "nats": 0 if options.nats_url else options.nats_port, "engine": 0} | wanted
    ports: dict[str, int] = {}
    for name, first in wanted.items():
        host = options.host if name == "gateway" else LOOPBACK
        following = range(first, min(first + 100, 65_536)) if first else ()
        drawn = iter(lambda: secrets.choice(_PORTS), 0)
        free = (port for port in chain(following, drawn) if port not in ports.values() and _reserved(host, port))
        ports[name] = next(free)
        if first not in (0, ports[name]):
            report(PortShifted(name, first, ports[name]))
    return ports


def _reserved(host: str, port: int) -> bool:
    """Reserve a free port until this process ends; False if it is taken, privileged, or reserved by another stack.

    Raises CommandError for an address on which no port can be free.
    """
    try:
        # It reuses addresses: a port with connections of an earlier run in TIME_WAIT is free.
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        if sys.platform == "linux":
            # The kernel frees an abstract name with its process. Like ports, names belong to the network namespace.
            with socket.socket(socket.AF_UNIX) as reservation:
                reservation.bind(f"\0deliberate-port-{port}")
                reservation.detach()
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return False
        raise address_unusable(host, error) from error
    return True


def _kept_secret(path: Path) -> Path:
    if not path.exists():
        write_private(path, secrets.token_hex(32))
    return path


def _nats_users(data_dir: Path, nats_url: str, server: str) -> dict[str, str]:
    """Draw a password for each NATS user, and write the user's URL to its file: a given server's URL has no user."""
    # nats-server parses what begins with a digit as a number.
    passwords = {user: f"p{secrets.token_hex(24)}" for user in NATS_USERS}
    directory = data_dir / "nats_urls"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    for user, password in passwords.items():
        if nats_url.startswith("file:"):
            (directory / user).symlink_to(unquote(urlsplit(nats_url).path))
        else:
            write_private(directory / user, nats_url or server.replace("//", f"//{user}:{password}@", 1))
    return passwords
