"""`deliberate keys create | list | revoke`: keys are facts in the log, so write access to the log is needed.

These keys are the operator's: of any tenant, with any scope, and they end with no other key.
The pepper is read from KEY_PEPPER only, because the list of processes shows options.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Self, cast

import typer
from pydantic import ValidationError
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from app.access.key_writer import KeyWriter
from app.access.keys import (
    KEYS_PATTERN,
    SCOPES,
    HeldKey,
    KeyBook,
    Pepper,
    Scope,
    checked_name,
    decode_key,
    key_id_of,
    key_subject,
)
from app.api.suggestions import did_you_mean
from app.cli.admin.streams import LogTarget, NatsOption, WaitOption, connected, find_log
from app.cli.exits import EXIT_HELP, CommandError, Exit, output, print_json, run
from app.cli.options import JsonOption, StackOption, checked_tenant
from app.cli.render.lines import print_to_stderr
from app.cli.render.text import plain, printable
from app.cli.target import LocalStack
from app.log.journal import JetStreamJournal
from app.log.signature import SECRET_CHARS_MIN

keys_cli = typer.Typer()

_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


def pepper_of_environment() -> Pepper:
    secret = os.environ.get("KEY_PEPPER", "")
    if len(secret) < SECRET_CHARS_MIN:
        detail = f"KEY_PEPPER is {'too short' if secret else 'not set'}; it needs {SECRET_CHARS_MIN} characters or more"
        remedy = "set it to the gateway's value; `openssl rand -hex 32` writes a new one"
        raise CommandError(Exit.USAGE, "no_pepper", detail, remedy=remedy)
    return Pepper(secret)


def lifetime(text: str) -> timedelta | None:
    """Parses `90d`, `12h` or `30m`; None for `never`. Raises typer.BadParameter."""
    match = re.fullmatch(r"([1-9][0-9]{0,4})([mhd])", text)
    if match is None and text != "never":
        raise typer.BadParameter(f"--expires takes 90d, 12h, 30m or never, not {text!r}")
    return None if match is None else int(match[1]) * _UNITS[match[2]]


def _checked_name(value: str) -> str:
    try:
        return checked_name(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _checked_scopes(values: list[str]) -> list[str]:
    if (unknown := next((value for value in values if value not in SCOPES), None)) is not None:
        meant = did_you_mean(unknown, SCOPES)
        raise typer.BadParameter(f"there is no scope {unknown!r}. {meant}The scopes are {', '.join(SCOPES)}")
    return values


NameArgument = Annotated[str, typer.Argument(metavar="NAME", callback=_checked_name, help="Purpose of the key.")]
TenantOption = Annotated[str, typer.Option(callback=checked_tenant, help="Tenant that the key belongs to.")]
ScopeOption = Annotated[
    list[str],
    typer.Option("--scope", metavar="SCOPE", callback=_checked_scopes, help="submit, read or admin; repeatable."),
]
ExpiresOption = Annotated[str, typer.Option(metavar="SPAN", help="Lifetime: 30m, 12h, 90d, or never.")]
KeyArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the key; `deliberate keys list` shows it.")]


def _log(nats_url: str | None, data_dir: Path | None) -> LogTarget:
    # A key in another stack's log opens nothing here, and something there.
    return find_log(nats_url, data_dir, user="keys", of_stack=True)


def _check_pepper(stack: LocalStack | None, pepper: Pepper) -> None:
    if stack is not None and stack.key_pepper and stack.key_pepper != pepper.id:
        detail = f"KEY_PEPPER is not that of the stack in {stack.data_dir}, which would refuse the key"
        remedy = "set it to the value with which `deliberate up` was started"
        raise CommandError(Exit.USAGE, "another_pepper", detail, remedy=remedy)


@dataclass(frozen=True, slots=True)
class KeyListing:
    """The keys in the log; those in `unsigned` are of no use, because their facts do not verify."""

    book: KeyBook
    unsigned: frozenset[str]

    @classmethod
    async def read(cls, journal: JetStreamJournal, pepper: Pepper | None) -> Self:
        """All keys. Without a pepper a signature is required, not verified; undecodable records are skipped."""
        book, others = KeyBook(), KeyBook()
        async for record in journal.read(KEYS_PATTERN, 0):
            with suppress(ValidationError):
                fact = decode_key(record.data)
                good = pepper.verified(record) is not None if pepper else key_subject(fact) == record.subject
                (book if good and fact.signature else others).apply(fact)
        unsigned = others.keys.keys() - book.keys.keys()
        book.keys |= {key_id: others.keys[key_id] for key_id in unsigned}
        # These keys open nothing anyway, so that an unverified revocation may be shown.
        book.revoked |= {key_id: others.revoked[key_id] for key_id in unsigned & others.revoked.keys()}
        return cls(book, frozenset(unsigned))

    def status(self, key: HeldKey, pepper_id: str | None, now: datetime) -> str:
        """`good`, or why the key is not valid now. A `pepper_id` of None is not compared."""
        if self.book.is_revoked(key):
            return "revoked"
        if pepper_id not in (None, key.fact.pepper):
            return "other pepper"
        if key.fact.key_id in self.unsigned:
            return "not signed"
        return self.book.state(key, now)

    def document(self, key: HeldKey, pepper_id: str | None, now: datetime) -> dict[str, Any]:
        fields = {"key_id", "name", "tenant", "scopes", "maker", "created_at", "expires_at"}
        revoked_at = self.book.revoked.get(key.fact.key_id)
        revoked = None if revoked_at is None else revoked_at.isoformat()
        fact = key.fact.model_dump(mode="json", include=fields)
        return {**fact, "revoked_at": revoked, "status": self.status(key, pepper_id, now)}


@keys_cli.command("create", epilog=EXIT_HELP)
def create_key(
    name: NameArgument,
    tenant: TenantOption,
    scope: ScopeOption = ["submit", "read"],  # noqa: B006 -- typer's default, never changed
    expires: ExpiresOption = "90d",
    nats_url: NatsOption = None,
    data_dir: StackOption = None,
    as_json: JsonOption = False,
    wait_s: WaitOption = 10.0,
) -> None:
    """Create a key. Stdout has only the key, which cannot be shown again."""
    span, scopes, pepper = lifetime(expires), cast("list[Scope]", scope), pepper_of_environment()

    async def main(journal: JetStreamJournal) -> Exit:
        now = datetime.now(UTC)
        fact, key, _ = await KeyWriter(journal, pepper).create(name, tenant, scopes, now, span)
        document = KeyListing(KeyBook(), frozenset()).document(HeldKey.of(fact), None, now)
        if as_json:
            print_json({"key": key, **document})
            return Exit.SUCCESS
        print(key, flush=True)
        until = "never expires" if fact.expires_at is None else f"expires {fact.expires_at:%Y-%m-%d %H:%M} UTC"
        line = f"{fact.key_id}: tenant {tenant}, {', '.join(fact.scopes)}, {until}. Keep it: it is not shown again."
        Console(stderr=True, highlight=False).print(plain(line), style="dim", soft_wrap=True)
        return Exit.SUCCESS

    async def checked() -> Exit:
        log = _log(nats_url, data_dir)
        _check_pepper(log.stack, pepper)
        code = await connected(log, wait_s, main)
        if log.stack is not None and log.stack.key_pepper == "":
            print_to_stderr(f"The stack in {log.stack.data_dir} asks for no keys until it starts with this KEY_PEPPER.")
        return code

    run(checked, as_json=as_json)


def keys_table(documents: list[dict[str, Any]]) -> RenderableType:
    if not documents:
        return Text("no keys; `deliberate keys create NAME --tenant TENANT` makes one", "dim")
    table = Table(box=None, pad_edge=False)
    for column in ("id", "name", "tenant", "scopes", "expires", "status"):
        table.add_column(column, no_wrap=column in ("id", "status"))
    for key in documents:
        style = "green" if key["status"] == "good" else "red"
        expires = "never" if key["expires_at"] is None else str(key["expires_at"])[:16].replace("T", " ")
        cells = (key["key_id"], key["name"], key["tenant"], ", ".join(key["scopes"]), expires)
        table.add_row(*(plain(printable(cell)) for cell in cells), f"[{style}]{key['status']}[/]")
    return table


@keys_cli.command("list", epilog=EXIT_HELP)
def list_keys(
    nats_url: NatsOption = None,
    data_dir: StackOption = None,
    as_json: JsonOption = False,
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.")] = None,
    wait_s: WaitOption = 10.0,
) -> None:
    """List the keys with their status, oldest first. With KEY_PEPPER set, signatures are verified."""
    pepper = pepper_of_environment() if os.environ.get("KEY_PEPPER") else None

    async def main(journal: JetStreamJournal) -> Exit:
        listing, now = await KeyListing.read(journal, pepper), datetime.now(UTC)
        held = sorted(listing.book.keys.values(), key=lambda key: key.fact.created_at)
        pepper_id = pepper and pepper.id
        documents = [listing.document(key, pepper_id, now) for key in held if tenant in (None, key.fact.tenant)]
        return output({"items": documents}, lambda: keys_table(documents), as_json=as_json)

    run(lambda: connected(_log(nats_url, data_dir), wait_s, main), as_json=as_json)


@keys_cli.command("revoke", epilog=EXIT_HELP)
def revoke_key(
    key_id: KeyArgument,
    nats_url: NatsOption = None,
    data_dir: StackOption = None,
    as_json: JsonOption = False,
    wait_s: WaitOption = 10.0,
) -> None:
    """Revoke a key for ever, with KEY_PEPPER set. Every gateway refuses it within a second and ends its streams."""
    pepper = pepper_of_environment()

    async def main(journal: JetStreamJournal) -> Exit:
        # The argument may also be the whole key, as after a leak.
        known, listing = key_id_of(key_id) or key_id, await KeyListing.read(journal, pepper)
        held = listing.book.keys.get(known)
        if held is None:
            detail = "there is no key with this id"
            raise CommandError(Exit.REFUSED, "not_found", detail, remedy="`deliberate keys list` shows the ids")
        if known in listing.unsigned and known not in listing.book.revoked:
            detail = "the key opens nothing with this KEY_PEPPER: it was made with another one, or not signed"
            raise CommandError(Exit.REFUSED, "not_signed", detail, remedy="set KEY_PEPPER to the gateway's value")
        if known not in listing.book.revoked:
            record = await KeyWriter(journal, pepper).revoke(known, datetime.now(UTC))
            listing.book.apply(decode_key(record.data))
        document = listing.document(held, None, datetime.now(UTC))
        return output(document, lambda: plain(f"{known} is revoked"), as_json=as_json)

    run(lambda: connected(_log(nats_url, data_dir), wait_s, main), as_json=as_json)
