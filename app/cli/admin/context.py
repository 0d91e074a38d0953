"""`deliberate context use | show | clear`: the gateway that commands speak to when nothing else names one."""

import os
import sys
from typing import Annotated

import typer
from rich.text import Text

from app.cli.client import GatewayClient
from app.cli.exits import EXIT_HELP, Exit, output, run
from app.cli.options import JsonOption, StackOption, UrlOption, checked_url
from app.cli.render.text import plain
from app.cli.stack.supervisor import write_private
from app.cli.target import Context, context_file, find_target

context_cli = typer.Typer()

_STDIN = "-"


def _checked_gateway_url(value: str) -> str:
    return checked_url(value, ("http", "https")).rstrip("/")


UrlArgument = Annotated[
    str, typer.Argument(metavar="URL", callback=_checked_gateway_url, help="Base URL of the gateway.")
]
KeptKeyOption = Annotated[
    str | None,
    typer.Option("--api-key", metavar="KEY", help="Keep this key too; - reads it from stdin. (default: keep none)"),
]


@context_cli.command("use", epilog=EXIT_HELP)
def use_context(url: UrlArgument, api_key: KeptKeyOption = None, as_json: JsonOption = False) -> None:
    """Let commands speak to the gateway at URL, from every directory, until `deliberate context clear`.

    DELIBERATE_API_KEY of the environment is not kept: only a key given here is, in a file that its owner alone reads.
    """

    async def main() -> Exit:
        key = sys.stdin.readline().strip() if api_key == _STDIN else api_key
        # It refuses what cannot be a key.
        async with GatewayClient(url, key):
            pass
        path = context_file()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, Context(url=url, api_key=key or None).model_dump_json())
        kept = " with its key" if key else ""
        line = f"commands speak to {url}{kept}; {path} keeps it"
        return output({"url": url, "file": str(path), "key": bool(key)}, lambda: plain(line), as_json=as_json)

    run(main, as_json=as_json)


@context_cli.command("show", epilog=EXIT_HELP)
def show_context(url: UrlOption = None, data_dir: StackOption = None, as_json: JsonOption = False) -> None:
    """Show which gateway commands speak to here, and what named it."""

    async def main() -> Exit:
        target = find_target(url, data_dir, os.environ.get("DELIBERATE_API_KEY"))
        document = {"url": target.url, "source": target.source, "key": bool(target.api_key)}
        key = ", with a key" if target.api_key else ", without a key"
        return output(document, lambda: plain(f"{target.url} (from {target.source}){key}"), as_json=as_json)

    run(main, as_json=as_json)


@context_cli.command("clear", epilog=EXIT_HELP)
def clear_context(as_json: JsonOption = False) -> None:
    """Forget the context; commands then find the stack that runs in `.deliberate`."""

    async def main() -> Exit:
        path = context_file()
        known = path.exists()
        path.unlink(missing_ok=True)
        text = Text(f"{path} is removed" if known else "there was no context")
        return output({"cleared": known, "file": str(path)}, lambda: text, as_json=as_json)

    run(main, as_json=as_json)
