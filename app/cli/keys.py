"""`deliberate keys create | list | revoke`: keys are facts in the log, so whoever may write there makes them.

No route makes a key: one that is stolen cannot make others. The secret behind them is read from KEY_PEPPER alone, since
options stand in the list of processes.
"""

import os
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from app.access.keys import (
    KEYS_PATTERN,
    PEPPER_CHARS_MIN,
    SCOPES,
    HeldKey,
    KeyBook,
    KeyRevoked,
    Pepper,
    Scope,
    created,
    encode_key,
    key_id_of,
    key_subject,
)
from app.cli.exits import EXIT_HELP, CommandError, Exit, print_json, run
from app.cli.options import JsonOption
from app.cli.render.prose import printable
from app.cli.render.ranking import plain
from app.cli.streams import DEFAULT_NATS_URL, NatsOption, WaitOption, connected
from app.deliberation.errors import InvalidToken
from app.deliberation.specification import checked_token
from app.log.journal import JetStreamJournal

keys_cli = typer.Typer(no_args_is_help=True, help="Make, list and revoke API keys.", epilog=EXIT_HELP)

_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
_NAME_CHARS_MAX = 100


def pepper_of_environment() -> Pepper:
    """The secret that keys are hashed with; raises CommandError when KEY_PEPPER is missing or too short."""
    secret = os.environ.get("KEY_PEPPER", "")
    if len(secret) < PEPPER_CHARS_MIN:
        detail = f"KEY_PEPPER is {'too short' if secret else 'not set'}; it has {PEPPER_CHARS_MIN} characters or more"
        remedy = "set it to what the gateway has; for a new one, take what `openssl rand -hex 32` writes"
        raise CommandError(Exit.USAGE, "no_pepper", detail, remedy=remedy)
    return Pepper(secret)


def lifetime(text: str) -> timedelta | None:
    """`90d`, `12h`, `30m` as a span, `never` as None; raises typer.BadParameter."""
    found = re.fullmatch(r"([1-9][0-9]{0,4})([mhd])", text)
    if found is None and text != "never":
        raise typer.BadParameter(f"--expires takes 90d, 12h, 30m or never, not {text!r}")
    return None if found is None else int(found[1]) * _UNITS[found[2]]


def _checked_tenant(value: str) -> str:
    try:
        return checked_token(value, "tenant")
    except InvalidToken as exc:
        raise typer.BadParameter("a tenant consists of a-z, 0-9, _ and -, at most 64 of them") from exc


def _checked_name(value: str) -> str:
    if not value.strip() or len(value) > _NAME_CHARS_MAX or not value.isprintable():
        raise typer.BadParameter(f"a name has 1 to {_NAME_CHARS_MAX} printable characters")
    return value


def _checked_scopes(values: list[str]) -> list[str]:
    for value in values:
        if value not in SCOPES:
            raise typer.BadParameter(f"there is no scope {value!r}; there are {', '.join(SCOPES)}")
    return values


def _checked_expiry(value: str) -> str:
    lifetime(value)
    return value


NameArgument = Annotated[str, typer.Argument(metavar="NAME", callback=_checked_name, help="What it is for.")]
TenantOption = Annotated[str, typer.Option(callback=_checked_tenant, help="Whose deliberations it opens.")]
ScopeOption = Annotated[
    list[str],
    typer.Option("--scope", metavar="SCOPE", callback=_checked_scopes, help="submit, read or admin; may be repeated."),
]
ExpiresOption = Annotated[
    str, typer.Option("--expires", metavar="SPAN", callback=_checked_expiry, help="30m, 12h, 90d, or never.")
]
KeyArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the key, as `deliberate keys list` tells it.")]


async def book_of(journal: JetStreamJournal) -> KeyBook:
    """All keys that the log tells of; what does not decode is left out."""
    book = KeyBook()
    async for record in journal.read(KEYS_PATTERN, 0):
        try:
            book.take(record)
        except ValidationError:
            continue
    return book


def standing(key: HeldKey, book: KeyBook, pepper_id: str | None, now: datetime) -> str:
    """Whether a key is good now, or why not; `pepper_id` of None is not compared."""
    if key.fact.key_id in book.revoked:
        return "revoked"
    if key.expires_at_s <= now.timestamp():
        return "expired"
    return "good" if pepper_id in (None, key.fact.pepper) else "other pepper"


def _told(key: HeldKey, book: KeyBook, pepper_id: str | None, now: datetime) -> dict[str, Any]:
    fact = key.fact.model_dump(mode="json", include={"key_id", "name", "tenant", "scopes", "created_at", "expires_at"})
    revoked_at = book.revoked.get(key.fact.key_id)
    told_at = None if revoked_at is None else revoked_at.isoformat()
    return {**fact, "revoked_at": told_at, "status": standing(key, book, pepper_id, now)}


def _run(nats_url: str, wait_s: float, as_json: bool, work: Callable[[JetStreamJournal], Awaitable[Exit]]) -> None:
    run(lambda: connected(nats_url, wait_s, work, name="deliberate keys"), as_json=as_json)


@keys_cli.command("create", epilog=EXIT_HELP)
def create_key(
    name: NameArgument,
    tenant: TenantOption,
    scope: ScopeOption = ["submit", "read"],  # noqa: B006 -- typer's default, never changed
    expires: ExpiresOption = "90d",
    nats_url: NatsOption = DEFAULT_NATS_URL,
    as_json: JsonOption = False,
    wait_s: WaitOption = 10.0,
) -> None:
    """Make a key. Stdout has the key alone, and nothing can tell it again."""

    async def work(journal: JetStreamJournal) -> Exit:
        now, span = datetime.now(UTC), lifetime(expires)
        scopes: list[Scope] = [each for each in SCOPES if each in scope]
        fact, key = created(
            pepper_of_environment(),
            name=name,
            tenant=tenant,
            scopes=scopes,
            created_at=now,
            expires_at=None if span is None else now + span,
        )
        appended = await journal.write(key_subject(fact), encode_key(fact))
        assert appended.created, "an id of 60 random bits was drawn twice"
        told = _told(HeldKey.of(fact), KeyBook(), None, now)
        if as_json:
            print_json({"key": key, **told})
            return Exit.SUCCESS
        print(key, flush=True)
        until = "never expires" if fact.expires_at is None else f"expires {fact.expires_at:%Y-%m-%d %H:%M} UTC"
        line = f"{fact.key_id}: tenant {tenant}, {', '.join(fact.scopes)}, {until}. Keep the key: it is not told again."
        Console(stderr=True, highlight=False).print(plain(line), style="dim", soft_wrap=True)
        return Exit.SUCCESS

    _run(nats_url, wait_s, as_json, work)


def keys_table(told: list[dict[str, Any]]) -> Table:
    """One row for each key."""
    table = Table(box=None, pad_edge=False)
    for column in ("id", "name", "tenant", "scopes", "expires", "status"):
        table.add_column(column, no_wrap=column in ("id", "status"))
    for key in told:
        style = "green" if key["status"] == "good" else "red"
        expires = "never" if key["expires_at"] is None else str(key["expires_at"])[:16].replace("T", " ")
        cells = (key["key_id"], key["name"], key["tenant"], ", ".join(key["scopes"]), expires)
        table.add_row(*(plain(printable(cell)) for cell in cells), f"[{style}]{key['status']}[/]")
    return table


@keys_cli.command("list", epilog=EXIT_HELP)
def list_keys(
    nats_url: NatsOption = DEFAULT_NATS_URL,
    as_json: JsonOption = False,
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant.")] = None,
    wait_s: WaitOption = 10.0,
) -> None:
    """List the keys, oldest first, and whether each is good now. With KEY_PEPPER: also which are of another one."""

    async def work(journal: JetStreamJournal) -> Exit:
        book, now = await book_of(journal), datetime.now(UTC)
        pepper_id = pepper_of_environment().id if os.environ.get("KEY_PEPPER") else None
        held = sorted(book.keys.values(), key=lambda key: key.fact.created_at)
        told = [_told(key, book, pepper_id, now) for key in held if tenant in (None, key.fact.tenant)]
        if as_json:
            print_json({"items": told})
        else:
            Console(highlight=False).print(keys_table(told))
        return Exit.SUCCESS

    _run(nats_url, wait_s, as_json, work)


@keys_cli.command("revoke", epilog=EXIT_HELP)
def revoke_key(
    key_id: KeyArgument, nats_url: NatsOption = DEFAULT_NATS_URL, as_json: JsonOption = False, wait_s: WaitOption = 10.0
) -> None:
    """Revoke a key, for ever: every gateway refuses it within a second, and ends its streams and sessions."""

    async def work(journal: JetStreamJournal) -> Exit:
        # Whoever revokes what has leaked may have the whole key at hand.
        known, book = key_id_of(key_id) or key_id, await book_of(journal)
        held = book.keys.get(known)
        if held is None:
            detail = "there is no key of this id"
            raise CommandError(Exit.REFUSED, "not_found", detail, remedy="`deliberate keys list` tells the ids")
        fact = KeyRevoked(key_id=known, revoked_at=datetime.now(UTC))
        if known not in book.revoked:
            book.take((await journal.write(key_subject(fact), encode_key(fact))).record)
        if as_json:
            print_json(_told(held, book, None, datetime.now(UTC)))
        else:
            Console(highlight=False).print(plain(f"{known} is revoked"))
        return Exit.SUCCESS

    _run(nats_url, wait_s, as_json, work)
