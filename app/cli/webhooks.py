"""`deliberate webhooks secret`: what a tenant's receivers check signatures with.

The secret behind it is read from WEBHOOK_SECRETS or from the stack's data directory, never from an option: options
stand in the list of processes.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from app.cli.exits import EXIT_HELP, CommandError, Exit, print_json, run
from app.cli.options import JsonOption
from app.cli.stack.layout import WEBHOOK_SECRET_FILE
from app.deliberation.errors import InvalidToken
from app.deliberation.specification import checked_token
from app.webhooks.signatures import MASTER_CHARS_MIN, tenant_secret

webhooks_cli = typer.Typer(no_args_is_help=True, help="What receivers of webhooks need.", epilog=EXIT_HELP)


def _checked_tenant(value: str) -> str:
    try:
        return checked_token(value, "tenant")
    except InvalidToken as exc:
        raise typer.BadParameter("a tenant consists of a-z, 0-9, _ and -, at most 64 of them") from exc


def masters(data_dir: Path) -> list[str]:
    """The sender's secrets, the newest first; raises CommandError where there are none that are long enough."""
    given = os.environ.get("WEBHOOK_SECRETS", "")
    kept = data_dir / WEBHOOK_SECRET_FILE
    if not given and kept.is_file():
        given = kept.read_text(encoding="utf-8")
    secrets = [secret for secret in map(str.strip, given.split(",")) if secret]
    if not secrets or any(len(secret) < MASTER_CHARS_MIN for secret in secrets):
        detail = f"there is no secret of {MASTER_CHARS_MIN} characters or more in WEBHOOK_SECRETS or {kept}"
        remedy = "set WEBHOOK_SECRETS to what the sender has, or name the stack's --data-dir"
        raise CommandError(Exit.USAGE, "no_secret", detail, remedy=remedy)
    return secrets


@webhooks_cli.command("secret", epilog=EXIT_HELP)
def secret(
    tenant: Annotated[str, typer.Option(callback=_checked_tenant, help="Whose webhooks.")] = "default",
    data_dir: Annotated[Path, typer.Option(help="Of the stack, if WEBHOOK_SECRETS is not set.")] = Path(".deliberate"),
    as_json: JsonOption = False,
) -> None:
    """Tell the secret that a tenant's receivers check with. While secrets are changed: all, the newest first."""

    async def work() -> Exit:
        told = [tenant_secret(master, tenant) for master in masters(data_dir)]
        if as_json:
            print_json({"tenant": tenant, "secrets": told})
        else:
            print(*told, sep="\n")
        return Exit.SUCCESS

    run(work, as_json=as_json)


@webhooks_cli.callback()
def webhooks() -> None:
    """What receivers of webhooks need."""
