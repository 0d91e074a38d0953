"""`deliberate doctor`: the findings of a gateway anywhere, or of the set-up on this machine."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx
from pydantic import ValidationError
from rich.console import Group, RenderableType
from rich.text import Text

from app.access.loopback import is_loopback
from app.api.findings import KINDS, Finding, Severity, as_finding, finding, ordered
from app.api.installation import Installation
from app.api.schemas import Problem, Ready
from app.cli.client import GatewayClient, GatewayRefused, GatewayUnreachable, parsed
from app.cli.doctor.setup import machine_findings, port_findings, setup_findings, setup_of_environment
from app.cli.exits import CommandError, Exit, output, run, sentence
from app.cli.options import DATA_DIR, ApiKeyOption, JsonOption, StackOption, UrlOption
from app.cli.render.text import counted, plain
from app.cli.target import GatewayTarget, find_target

# A request takes up to a second, and this machine may be slow.
CLOCK_DIFFERS_S = 5.0
# The source of a target that the environment of a part names.
BESIDE_A_PART = "PORT"
_STYLES: dict[Severity, str] = {"error": "red", "warning": "yellow", "info": "cyan"}
_EXITS: dict[Severity, Exit] = {"error": Exit.FAILED, "warning": Exit.WARNED, "info": Exit.SUCCESS}


def doctor(
    url: UrlOption = None, data_dir: StackOption = None, api_key: ApiKeyOption = None, as_json: JsonOption = False
) -> None:
    """Show the faults of a stack or of the set-up here, with their effects and remedies.

    A gateway says it of its whole installation, with a key of the scope admin. Where no gateway answers here, the
    machine and the settings of the environment are checked: NATS_URL, DATABASE_URL, VLLM_URL, ROLES_FILE and all
    others. Each engine is then asked for one short answer.

    Exits with 1 for an error, 6 for warnings alone, and 0 else.
    """

    async def work() -> Exit:
        target, findings = await examine(url, data_dir, api_key)
        named = None if target is None else target.url
        document = {"url": named, "findings": [fault.model_dump() for fault in findings]}
        output(document, lambda: _text(named, findings), as_json=as_json)
        return _EXITS[findings[0].severity] if findings else Exit.SUCCESS

    run(work, as_json=as_json)


async def examine(
    url: str | None, data_dir: Path | None, api_key: str | None
) -> tuple[GatewayTarget | None, tuple[Finding, ...]]:
    """The gateway that was asked, None without one, and the findings; raises CommandError for a wrong command line."""
    target, findings = _target(url, data_dir, api_key)
    answered = False
    here = target is None or is_loopback(urlsplit(target.url).hostname or "")
    if target is not None:
        answered, of_gateway = await _ask(target)
        findings += of_gateway
    # No stack starts in the container of a part, so its data directory and shared memory do not matter.
    of_part = target is not None and target.source == BESIDE_A_PART
    if here and not (answered and of_part):
        findings += machine_findings(data_dir or DATA_DIR)
    if here and not answered:
        setup, invalid = setup_of_environment()
        findings += invalid
        if setup is not None:
            findings += await setup_findings(setup)
            findings += port_findings(setup.port) if target is None else []
    return target, ordered(findings)


def _target(url: str | None, data_dir: Path | None, api_key: str | None) -> tuple[GatewayTarget | None, list[Finding]]:
    try:
        return find_target(url, data_dir, api_key), []
    except CommandError as error:
        if error.code != "no_stack":
            raise
        if os.environ.get("NATS_URL"):
            # The environment of a part, as in its container: the gateway listens beside it.
            return GatewayTarget(f"http://127.0.0.1:{os.environ.get('PORT', '8080')}", api_key, BESIDE_A_PART), []
        return None, [finding("no_gateway", error.detail, sentence(error.remedy))]


async def _ask(target: GatewayTarget) -> tuple[bool, list[Finding]]:
    """Whether a gateway answered, and its findings; those of `/readyz` where the key does not permit more."""
    proxy = _proxy(target.url)
    async with GatewayClient(target.url, target.api_key, source=target.source, options=target.options) as gateway:
        try:
            installation = parsed(Installation, await gateway.read("/status"))
        except (GatewayRefused, GatewayUnreachable) as error:
            if error.code in ("unreachable", "not_a_gateway") or error.code.startswith("http_"):
                code = "unreachable" if error.code == "unreachable" else "not_a_gateway"
                return False, [*proxy, finding(code, error.detail, sentence(error.remedy))]
            refused = [finding(error.code, error.detail, sentence(error.remedy))] if error.code in KINDS else []
            return True, [*proxy, *refused, *ready_findings(await gateway.answer("GET", "/readyz"))]
    return True, [*proxy, *installation.findings, *_beside(installation)]


def ready_findings(response: httpx.Response) -> list[Finding]:
    """The findings of an answer of `/readyz`."""
    try:
        if response.status_code == 200:
            problems = Ready.model_validate_json(response.content).degraded
        else:
            problems = Problem.model_validate_json(response.content).errors
    except ValidationError:
        return []
    return [fault for problem in problems if (fault := as_finding(problem)) is not None]


def _beside(installation: Installation) -> list[Finding]:
    faults = list[Finding]()
    apart_s = (datetime.now(UTC) - installation.at).total_seconds()
    if abs(apart_s) > CLOCK_DIFFERS_S:
        detail = f"This machine's clock is {abs(apart_s):.0f} s {'ahead of' if apart_s > 0 else 'behind'} the gateway's"
        faults.append(finding("clock_differs", detail, "Run an NTP client, such as chrony, on both."))
    own, others = version("deliberation-gateway"), installation.versions.gateway
    if own != others:
        detail = f"This command has version {own}, and the gateway {others}"
        faults.append(finding("versions_differ", detail, f"Install deliberation-gateway=={others} here."))
    return faults


def _proxy(url: str) -> list[Finding]:
    parts = urlsplit(url)
    host, proxies = parts.hostname or "", getproxies()
    if is_loopback(host) or proxy_bypass(host) or not (proxies.get(parts.scheme) or proxies.get("all")):
        return []
    remedy = f"Add {host} to NO_PROXY, where this machine reaches it directly."
    return [finding("proxy_between", f"Requests to {host} go through the proxy of the environment", remedy)]


def _text(url: str | None, findings: Sequence[Finding]) -> RenderableType:
    where = "the set-up here" if url is None else url
    counts = {severity: sum(fault.severity == severity for fault in findings) for severity in _STYLES}
    named = ", ".join(counted(count, severity) for severity, count in counts.items() if count and severity != "info")
    head = plain(f"{where}: {named}" if named else f"{where} is sound")
    head.stylize("bold" if named else "bold green")
    lines: list[RenderableType] = [head]
    for fault in findings:
        lines += [
            Text.assemble((fault.severity, _STYLES[fault.severity]), f" {fault.part}: ", plain(fault.detail)),
            plain(f"  {fault.why}").append(f"\n  → {fault.remedy}", "dim"),
        ]
    return Group(*lines)
