"""`deliberate webhooks secret`: prints the secret with which a tenant's receivers verify signatures.

The master secret is read from WEBHOOK_SECRETS or the stack's data directory, and never from an option, because the list
of processes shows options.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from app.cli.exits import EXIT_HELP, CommandError, Exit, print_json, run
from app.cli.options import DATA_DIR, JsonOption, StackOption, checked_tenant
from app.cli.render.lines import print_to_stderr
from app.cli.stack.layout import WEBHOOK_SECRET_FILE
from app.cli.target import find_local
from app.log.signature import SECRET_CHARS_MIN
from app.webhooks.signatures import tenant_secret

webhooks_cli = typer.Typer()


def masters(data_dir: Path | None) -> list[str]:
    """Returns the sender's secrets, newest first: those of WEBHOOK_SECRETS, else of a stack; raises CommandError."""
    listed = os.environ.get("WEBHOOK_SECRETS", "")
    kept = (data_dir or DATA_DIR) / WEBHOOK_SECRET_FILE
    if not listed:
        stack = data_dir or find_local(None, "set WEBHOOK_SECRETS to the sender's value").data_dir
        kept = stack / WEBHOOK_SECRET_FILE
        listed = kept.read_text(encoding="utf-8-sig") if kept.is_file() else ""
    secrets = [secret for secret in map(str.strip, listed.split(",")) if secret]
    if not secrets or any(len(secret) < SECRET_CHARS_MIN for secret in secrets):
        detail = f"there is no secret of {SECRET_CHARS_MIN} characters or more in WEBHOOK_SECRETS or {kept}"
        remedy = "set WEBHOOK_SECRETS to the sender's value, or give the stack's --data-dir"
        raise CommandError(Exit.USAGE, "no_secret", detail, remedy=remedy)
    return secrets


@webhooks_cli.command("secret", epilog=EXIT_HELP)
def secret(
    tenant: Annotated[str, typer.Option(callback=checked_tenant, help="Tenant of the receivers.")] = "default",
    data_dir: StackOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the secret for a tenant's receivers; during a rotation all of them, newest first.

    Without keys there is no tenant but `default`. WEBHOOK_SECRETS, where it is set, is the sender's; else the stack's
    data directory has it.
    """

    async def main() -> Exit:
        tenant_secrets = [tenant_secret(master, tenant) for master in masters(data_dir)]
        if as_json:
            print_json({"tenant": tenant, "secrets": tenant_secrets})
        else:
            several = "the secrets, newest first," if len(tenant_secrets) > 1 else "the secret"
            print_to_stderr(f"{several} of the tenant {tenant}; --tenant names another")
            print(*tenant_secrets, sep="\n")
        return Exit.SUCCESS

    run(main, as_json=as_json)
