"""The layout of one run of the stack: directories, ports, URLs and secrets, kept through all restarts of its parts."""

import errno
import fcntl
import os
import resource
import secrets
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from app.access.keys import Pepper
from app.cli.exits import CommandError, Exit, cause, usage_errors
from app.cli.options import DATA_DIR, nats_url_file
from app.cli.render.progress import PortShifted, ProgressReport
from app.cli.stack.supervisor import StackRun, write_private
from app.deliberation.roles import AgentRunner, currency_of, engines_of, roles_over_nats
from app.log.signature import LOG_KEY_NAME, LOG_KEY_VARIABLE, LogSigner
from app.log.stream_settings import StreamSettings

if TYPE_CHECKING:
    from app.settings import StackSettings

LOOPBACK = "127.0.0.1"
WEBHOOK_SECRET_FILE = "webhook_secret"
DATABASE_URL_FILE = "database_url"
# Those of users.conf, and `monitor`, which may ask for nats-server's health and nothing else.
NATS_USERS = tuple("gateway agents worker webhooks archive planning planner context streams keys monitor".split())
_PORTS = range(20_000, 32_000)  # below Linux's range for the local ports of outgoing connections
_PORTS_TRIED = 100
FREE_BYTES_MIN = 16 * 1024 * 1024
# SQLite opens no file whose path is longer than 512 bytes, and names its log after the file.
_PATH_BYTES_MAX = 480
# Of nats-server, which holds some files of each stream; Ray and the gateway raise theirs further.
_OPEN_FILES_MIN = 1_024


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
    key_pepper: str | None = field(default=None, repr=False)
    nats_test_user: str | None = None


def mask_credentials(url: str) -> str:
    """Returns a URL with its user information, which may hold a password or a token, replaced by `***`."""
    parts = urlsplit(url)
    _, sign, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"***@{host}").geturl() if sign else url


def sqlite_url(path: Path) -> str:
    """Returns the URL of a database file. In a URL `?` ends the path, and `%` begins an escape."""
    return f"sqlite:///{str(path).replace('%', '%25').replace('?', '%3F')}"


def ray_dir_of(mark: str) -> Path:
    """Returns Ray's directory: its sockets need a short path of plain letters. The name is drawn, so it is unused."""
    return Path(f"/tmp/deliberate-{mark}")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The directories, ports, URLs and secrets of one run of a stack; `nats_url` has no credentials.

    `key_variables` are the variables with keys of engines, which only the agents get.
    `log` has the `id` of the log once its streams are declared; commands compare it before they write there.
    """

    options: StackOptions
    settings: "StackSettings" = field(repr=False)
    data_dir: Path
    webhook_secrets: str = field(repr=False)
    nats_passwords: Mapping[str, str] = field(repr=False)
    log_key_file: Path
    nats_url: str
    roles: tuple[str, ...]
    worker_roles: tuple[str, ...]
    key_variables: tuple[str, ...]
    ports: Mapping[str, int]
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    log: dict[str, str] = field(default_factory=dict[str, str])

    def nats_url_of(self, user: str) -> str:
        """Returns the `file:` URL for a NATS user; with an external server it is that server's for every user."""
        return nats_url_file(self.data_dir, user)

    @property
    def url(self) -> str:
        host = LOOPBACK if self.options.host in ("0.0.0.0", "::") else self.options.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.ports['gateway']}"

    @property
    def engine_urls(self) -> tuple[str, ...]:
        return self.options.engine_urls or (f"http://{LOOPBACK}:{self.ports['simulator']}",)

    @property
    def ray_dir(self) -> Path:
        return ray_dir_of(self.mark)

    @property
    def ray_address(self) -> str:
        return f"{LOOPBACK}:{self.ports['ray']}"

    @property
    def uses_ray(self) -> bool:
        """Whether Ray runs: without it all roles have workers, and the coordinator is a plain process."""
        return len(self.worker_roles) < len(self.roles)

    @property
    def streams(self) -> StreamSettings:
        read = self.settings
        return StreamSettings(read.retention_s, read.stream_replicas, read.ack_wait_s, self.worker_roles)

    @property
    def database_url(self) -> str:
        return os.environ.get("DATABASE_URL") or sqlite_url(self.data_dir / "archive.db")

    @property
    def stack_run(self) -> StackRun:
        facts = {
            "url": self.url,
            "ports": self.ports,
            "log": self.log,
            # The pepper's public identifier; empty where the gateway asks for no keys.
            "key_pepper": Pepper(self.options.key_pepper).id if self.options.key_pepper else "",
            "ray_dir": str(self.ray_dir),
            "nats_url_files": str(self.data_dir / "nats_urls"),
            "ray_token_file": str(self.data_dir / "ray_token"),
        }
        return StackRun(
            mark=self.mark, logs_dir=self.data_dir / "logs", state_file=self.data_dir / "stack.json", facts=facts
        )


def plan_stack(options: StackOptions, report: ProgressReport) -> Layout:
    """Choose ports and make the data directory; raises CommandError for unusable roles, secrets and settings."""
    # Imported here, because pydantic-settings would slow every command.
    from app.process_settings import default_engines, load_roles
    from app.settings import StackSettings

    with usage_errors("correct the file or the variable"):
        roles = load_roles(options.roles_file)
        engines = [*engines_of(roles), *default_engines(["http://default"])]
        for setting in filter(os.environ.get, ("SPEND_PER_DAY", "SPENDS_PER_DAY")):
            currency_of(roles, setting)
        if database_url := os.environ.get("DATABASE_URL"):
            from app.archive.database.connection import engine_of

            engine_of(database_url)
        # Variables that children get from here may have another meaning in the user's environment.
        given = {"host": options.host, "port": options.port, "agents": options.agents, "roles_file": options.roles_file}
        settings = StackSettings(**given, nats_url="unused", key_pepper=options.key_pepper)  # pyright: ignore[reportArgumentType] -- validated
        make_data_dir(options.data_dir)
        data_dir = options.data_dir.resolve()
        (data_dir / "logs").mkdir(exist_ok=True)
        log_key_file = _log_key_file(data_dir)
    ports = _ports(options, report)
    nats_url = mask_credentials(options.nats_url or f"nats://{LOOPBACK}:{ports['nats']}")
    _kept_secret(data_dir / "ray_token")
    (data_dir / DATABASE_URL_FILE).unlink(missing_ok=True)
    if database_url := os.environ.get("DATABASE_URL"):
        # For commands that run without the variable; it may hold a password.
        write_private(data_dir / DATABASE_URL_FILE, database_url)
    return Layout(
        options=options,
        settings=settings,
        data_dir=data_dir,
        log_key_file=log_key_file,
        webhook_secrets=os.environ.get("WEBHOOK_SECRETS") or _kept_secret(data_dir / WEBHOOK_SECRET_FILE),
        nats_passwords=_nats_users(data_dir, options, nats_url),
        nats_url=nats_url,
        roles=tuple(roles),
        worker_roles=roles_over_nats(roles, options.agents),
        key_variables=tuple({engine.api_key_env for engine in engines if engine.api_key_env}),
        ports=ports,
    )


def make_data_dir(path: Path) -> None:
    """Create the data directory, for its owner only, or take over an old one; raises CommandError for an unusable one.

    From here on this process and its children create files for their owner only. Whatever another user has put into
    the directory would be obeyed, as keys or as links; so it is refused.
    """
    os.umask(0o077)
    remedy = "name a directory that you may write to by --data-dir"
    try:
        _check_path(os.path.realpath(path))
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_room(path)
        remedy = "remove what others have put there, or name another directory by --data-dir"
        own = path.resolve()
        if own.stat().st_uid == os.geteuid():
            own.chmod(stat.S_IMODE(own.stat().st_mode) & ~0o022)
        for each in (own, *own.iterdir()):
            found = each.lstat()
            if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid() or (each.is_dir() and found.st_mode & 0o022):
                raise OSError(0, f"{each} is a link, is another user's, or others may write there")
            if each != own:
                each.chmod(stat.S_IMODE(found.st_mode) & 0o700)
    except OSError as error:
        detail = f"{path} cannot hold the data: {cause(error)}"
        raise CommandError(Exit.USAGE, "data_dir_unusable", detail, remedy=remedy) from error


def _check_path(path: str) -> None:
    """Raises OSError for a path that a part could not read in its configuration."""
    # A locale of another encoding reads other letters from the same bytes.
    if os.fsencode(path) != path.encode(errors="replace"):
        raise OSError(0, "its path is not UTF-8, or this locale is not")
    if not path.isprintable():
        raise OSError(0, "its path has characters that cannot be printed")
    if len(path.encode()) > _PATH_BYTES_MAX:
        raise OSError(0, f"its path is longer than {_PATH_BYTES_MAX} bytes, which SQLite does not open")


def check_room(path: Path) -> None:
    """Raises OSError for a directory that is not writable, or has less room than FREE_BYTES_MIN."""
    with tempfile.TemporaryFile(dir=path):
        pass
    if (free_bytes := shutil.disk_usage(path).free) < FREE_BYTES_MIN:
        raise OSError(0, f"{free_bytes >> 20} MiB are free there, and {FREE_BYTES_MIN >> 20} are needed")


@contextmanager
def exclusive(data_dir: Path) -> Generator[None]:
    """Hold the lock of a data directory, with this process's id in it; raises CommandError if another one holds it.

    The kernel releases the lock when the process ends for any reason; children do not inherit it.
    """
    with (data_dir / "lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            detail = f"{data_dir} is in use by process {file.read().strip() or 'unknown'}"
            remedy = "stop that one, or choose another --data-dir"
            raise CommandError(Exit.FAILED, "data_dir_in_use", detail, remedy=remedy) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def check_machine() -> None:
    """Raise the limit of open files for all children; raises CommandError where that or loopback is not to be had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < _OPEN_FILES_MIN:
        detail = f"{hard} files may be open in a process here, and {_OPEN_FILES_MIN} are needed"
        raise CommandError(
            Exit.USAGE, "open_files_few", detail, remedy="raise the hard limit, as `ulimit -Hn` shows it"
        )
    if 0 <= soft < _OPEN_FILES_MIN:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES_MIN, hard))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Looks up the route, and sends nothing.
            probe.connect((LOOPBACK, 9))
    except OSError as error:
        raise _address_unusable(LOOPBACK, error) from error


def _address_unusable(host: str, error: OSError) -> CommandError:
    remedy = "bring up the loopback interface" if host == LOOPBACK else "name an address of this machine by --host"
    return CommandError(Exit.USAGE, "address_unusable", f"{host} cannot be used: {cause(error)}", remedy=remedy)


def _ports(options: StackOptions, report: ProgressReport) -> dict[str, int]:
    wanted = dict.fromkeys(("ray", "raylet", "coordinator", "worker", "webhooks", "archive", "planning"), 0)
    wanted = {"gateway": options.port, "nats": 0 if options.nats_url else options.nats_port, "simulator": 0} | wanted
    ports: dict[str, int] = {}
    for name, first in wanted.items():
        host = options.host if name == "gateway" else LOOPBACK
        following = range(first, min(first + _PORTS_TRIED, 65_536)) if first else ()
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
        raise _address_unusable(host, error) from error
    return True


def _kept_secret(path: Path) -> str:
    if not path.exists():
        write_private(path, secrets.token_hex(32))
    return path.read_text(encoding="utf-8").strip()


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
    given, kept = os.environ.get(LOG_KEY_VARIABLE), data_dir / LOG_KEY_NAME
    if not given:
        _kept_secret(kept)
    path = Path(given).resolve() if given else kept
    LogSigner.of_file(path)
    return path
