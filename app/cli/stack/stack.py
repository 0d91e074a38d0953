"""The stack of `deliberate up`: nats-server, engine, agents and gateway, started together and stopped in order.

Everything listens on loopback. The parts know each other by URL only, so each can restart without the others.
"""

import asyncio
import json
import shutil
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from app.cli.render.progress import Noticed, PartGiven, ProgressReport, StackReady
from app.cli.stack import health_checks
from app.cli.stack.children import READY_WITHIN_S, stack_children
from app.cli.stack.layout import (
    Layout,
    StackOptions,
    make_data_dir,
    make_ray_dir,
    mask_credentials,
    plan_stack,
)
from app.cli.stack.nats_server import declare_on_external
from app.cli.stack.processes import exclusive, marked, sweep
from app.cli.stack.supervisor import StackFailed, Supervisor, supervised

_LEFTOVERS_GRACE_S = 3.0


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
        with _temporary_ray_dir(layout, report) if layout.uses_ray else nullcontext():
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
        host=layout.options.host,
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
