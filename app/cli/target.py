"""The stack that a command line names; docs/command-line.md states the rule for stacks.

1. `--url`, or the stack that runs in `--data-dir`.
2. DELIBERATE_URL.
3. The context that `deliberate context use URL` keeps.
4. The stack that runs in `.deliberate` here.
"""

import inspect
import json
import os
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self
from urllib.parse import urlsplit

import typer
from pydantic import BaseModel, ConfigDict, ValidationError

from app.access.loopback import is_loopback
from app.cli.exits import CommandError, Exit, run
from app.cli.options import (
    DATA_DIR,
    URL_VARIABLE,
    ApiKeyOption,
    JsonOption,
    StackOption,
    UrlOption,
    checked_url,
    directory_option,
    nats_url_file,
)

if TYPE_CHECKING:
    from app.cli.client import GatewayClient

_NAME_ONE = f"name a gateway by --url, {URL_VARIABLE} or `deliberate context use URL`"


class Context(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str
    api_key: str | None = None


def context_file() -> Path:
    """The file of the context, whether or not it exists; raises CommandError for a user without a home directory."""
    home = os.environ.get("XDG_CONFIG_HOME")
    try:
        directory = Path(home) if home and Path(home).is_absolute() else Path.home() / ".config"
    except RuntimeError as exc:
        remedy = "set HOME or XDG_CONFIG_HOME"
        raise CommandError(Exit.USAGE, "no_home", "this user has no home directory", remedy=remedy) from exc
    return directory / "deliberate" / "context.json"


def read_context() -> Context | None:
    """The context; None without one. Raises CommandError when its file cannot be read."""
    try:
        path = context_file()
    except CommandError:
        return None
    try:
        return Context.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as exc:
        detail = f"{path} holds no context: {exc.strerror if isinstance(exc, OSError) else 'it is not valid'}"
        remedy = "`deliberate context use URL` writes it anew, `deliberate context clear` removes it"
        raise CommandError(Exit.USAGE, "invalid_context", detail, remedy=remedy) from exc


@dataclass(frozen=True, slots=True)
class LocalStack:
    """A running stack of this machine, as the `stack.json` of its data directory describes it.

    `log_id` identifies its log; None until its streams are declared. `key_pepper` identifies the pepper of its keys: it
    is empty where the gateway asks for no keys, and None where the file does not say.
    """

    data_dir: Path
    url: str
    log_id: str | None
    key_pepper: str | None = None

    @classmethod
    def running_in(cls, data_dir: Path) -> Self | None:
        try:
            state = json.loads((data_dir / "stack.json").read_bytes())
            stack = cls(data_dir, str(state["url"]), state.get("log", {}).get("id"), state.get("key_pepper"))
            pid = int(state["supervisor_pid"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        try:
            os.kill(pid, 0)
        except PermissionError:
            return stack
        except (OSError, OverflowError):
            return None
        return stack

    def nats_url(self, user: str) -> str:
        return nats_url_file(self.data_dir, user)


@dataclass(frozen=True, slots=True)
class GatewayTarget:
    url: str
    api_key: str | None = field(repr=False)
    source: str
    options: str = ""


def _running(data_dir: Path, otherwise: str) -> LocalStack:
    stack = LocalStack.running_in(data_dir)
    if stack is None:
        place = "in .deliberate here" if data_dir == DATA_DIR else f"in {data_dir}"
        remedy = f"start one with `deliberate up{directory_option(data_dir)}`, or {otherwise}"
        raise CommandError(Exit.UNREACHABLE, "no_stack", f"no stack runs {place}", remedy=remedy)
    return stack


def _named(api_key: str | None) -> GatewayTarget | None:
    if url := os.environ.get(URL_VARIABLE):
        return GatewayTarget(url, api_key, URL_VARIABLE)
    if (context := read_context()) is not None:
        return GatewayTarget(context.url, api_key or context.api_key, "the context")
    return None


def find_target(url: str | None, data_dir: Path | None, api_key: str | None) -> GatewayTarget:
    """The gateway of a command, by the rule above; raises CommandError when nothing names one and no stack runs."""
    if url is not None and data_dir is not None:
        raise typer.BadParameter("give --url or --data-dir, not both: each names a stack")
    if url is not None:
        return GatewayTarget(url, api_key, "--url", f" --url {shlex.quote(url)}")
    if data_dir is None and (named := _named(api_key)) is not None:
        return named
    stack = _running(data_dir or DATA_DIR, _NAME_ONE)
    return GatewayTarget(stack.url, api_key, f"the stack in {stack.data_dir}", directory_option(stack.data_dir))


def options_for(data_dir: Path) -> str:
    """The options, with a leading space, that make commands here find the stack in a directory; often none."""
    try:
        named = bool(os.environ.get(URL_VARIABLE)) or read_context() is not None
    except CommandError:
        named = True
    return f" --data-dir {shlex.quote(str(data_dir))}" if named else directory_option(data_dir)


def gateway_client(url: str | None, data_dir: Path | None, api_key: str | None) -> "GatewayClient":
    """A connection to the gateway of `find_target`; raises CommandError also for an invalid URL or key."""
    # Imported here: the client takes longer than the help of a command, which needs none.
    from app.cli.client import GatewayClient

    target = find_target(url, data_dir, api_key)
    return GatewayClient(target.url, target.api_key, source=target.source, options=target.options)


def on_gateway(
    main: Callable[..., Awaitable[Exit]], check: Callable[..., object] | None = None
) -> Callable[..., NoReturn]:
    """Makes a command of a coroutine function: its own options, and those that name a gateway and ask for JSON.

    The function gets the connection as its first argument, and `as_json` by name. `check` gets the options before.
    """

    def command(
        url: UrlOption = None,
        data_dir: StackOption = None,
        api_key: ApiKeyOption = None,
        as_json: JsonOption = False,
        **own: Any,  # noqa: ANN401 -- as the function takes them
    ) -> NoReturn:
        async def connected() -> Exit:
            if check is not None:
                check(as_json=as_json, **own)
            async with gateway_client(url, data_dir, api_key) as gateway:
                return await main(gateway, as_json=as_json, **own)

        run(connected, as_json=as_json)

    own, shared = (inspect.signature(function).parameters.values() for function in (main, command))
    parameters = [parameter for parameter in own if parameter.name not in ("gateway", "as_json")]
    parameters += [parameter for parameter in shared if parameter.name != "own"]
    taken = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    # Typer reads the signature, and the hints beside it.
    command.__doc__, command.__name__ = main.__doc__, main.__name__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in taken}
    setattr(command, "__signature__", inspect.Signature(taken))  # noqa: B010 -- no attribute of a function's type
    return command


def find_local(data_dir: Path | None, otherwise: str) -> LocalStack:
    """The stack of this machine that a command works on beside its gateway, as on its log.

    Raises CommandError when none runs, and when DELIBERATE_URL or the context names another gateway than its;
    `otherwise` says what a user can name instead.
    """
    stack = _running(data_dir or DATA_DIR, otherwise)
    if data_dir is None:
        _check_here(stack, otherwise)
    return stack


def find_data_dir(data_dir: Path | None, otherwise: str) -> Path:
    """The data directory that a command works on, whether or not its stack runs.

    Raises CommandError when DELIBERATE_URL or the context names another gateway than that of the stack here.
    """
    if data_dir is None:
        _check_here(LocalStack.running_in(DATA_DIR), otherwise)
    return data_dir or DATA_DIR


def _check_here(stack: LocalStack | None, otherwise: str) -> None:
    named = _named(None)
    if named is None or (stack is not None and _same_gateway(named.url, stack.url)):
        return
    here = f"the stack in {DATA_DIR} ({stack.url})" if stack is not None else f"in {DATA_DIR} here, where no stack runs"
    detail = f"{named.source} names {named.url}, which is not {here}"
    remedy = f"{otherwise}, or say --data-dir {DATA_DIR}"
    raise CommandError(Exit.USAGE, "another_stack", detail, remedy=remedy)


def _same_gateway(one: str, other: str) -> bool:
    try:
        first, second = (urlsplit(checked_url(url, ("http", "https"))) for url in (one, other))
    except typer.BadParameter:
        return False
    if (first.scheme, first.port) != (second.scheme, second.port):
        return False
    hosts = (first.hostname or "", second.hostname or "")
    return hosts[0] == hosts[1] or all(map(is_loopback, hosts))
