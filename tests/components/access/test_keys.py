import asyncio
import hmac
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from app.access import keyring as keyrings
from app.access.authorization import Sessions
from app.access.keyring import Keyring
from app.access.keys import (
    SCOPES,
    KeyBook,
    Pepper,
    created,
    decode_key,
    key_id_of,
    key_subject,
    looks_like_key,
    new_key,
)
from app.api.schemas import dump
from app.deliberation.ports import Record
from tests.components.access.keyed import PEPPER, make_key, revoke
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.story import NOW

pepper = Pepper(PEPPER)


@asynccontextmanager
async def following(journal: InMemoryJournal) -> AsyncGenerator[Keyring, None]:
    ring = Keyring(pepper)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(ring.follow(journal))
        await until(lambda: ring.caught_up)
        yield ring
        task.cancel()


def test_keys_have_a_unique_id_and_256_random_bits() -> None:
    drawn = [new_key() for _ in range(1_000)]
    assert len({key for _, key in drawn}) == len({key_id for key_id, _ in drawn}) == 1_000
    for key_id, key in drawn[:10]:
        assert key_id_of(key) == key_id
        assert len(key) == 69
        assert looks_like_key(key) and looks_like_key(f"see {key.upper()}!") and looks_like_key(key[:40])


@pytest.mark.parametrize("text", ["", "dlb_", "dlb_abc_def", "sk-proj-1234", "dlb_" + "a" * 12 + "_" + "é" * 52])
def test_malformed_keys_have_no_id(text: str) -> None:
    assert key_id_of(text) is None
    assert not looks_like_key(text)


def test_the_log_keeps_a_digest_and_never_the_key() -> None:
    fact, key = created(pepper, name="ci", tenant="acme", scopes=["read", "submit"], created_at=NOW, expires_at=None)
    stored = dump(fact)
    secret = key.rpartition("_")[2]
    assert secret.encode() not in stored
    assert PEPPER.encode() not in stored
    assert fact.scopes == ("submit", "read")
    assert fact.digest == hmac.new(PEPPER.encode(), f"key\n{key}".encode(), "sha256").hexdigest()
    assert decode_key(stored) == fact
    assert key_subject(fact) == f"keys.{fact.key_id}.created"
    assert PEPPER not in repr(pepper)


@pytest.mark.parametrize("tenant", ["*", "a.b", "Acme", "", "x" * 65])
def test_a_key_for_a_tenant_that_cannot_be_in_a_subject_is_refused(tenant: str) -> None:
    with pytest.raises(ValidationError):
        created(pepper, name="ci", tenant=tenant, scopes=SCOPES, created_at=NOW, expires_at=None)


async def test_facts_of_keys_may_come_in_any_order_and_more_than_once() -> None:
    journal = InMemoryJournal()
    key = await make_key(journal)
    await revoke(journal, key)
    for records in (journal.records, journal.records[::-1], journal.records * 2):
        book = KeyBook()
        for record in records:
            fact = pepper.verified(record)
            assert fact is not None
            book.apply(fact)
        key_id = key_id_of(key) or ""
        assert book.good(key_id) is None
        assert book.keys[key_id].caller.tenant == "acme"


async def test_only_the_full_secret_under_its_pepper_is_valid() -> None:
    journal = InMemoryJournal()
    key = await make_key(journal)
    foreign = await make_key(journal, pepper="another pepper of some length, at last")
    async with following(journal) as ring:
        held = ring.holder(key)
        assert held is not None and held.caller.tenant == "acme"
        other = "0" if key[-1] != "0" else "1"
        for wrong in (key[:-1] + other, key[:-1], key + "0", key.upper(), new_key()[1], "", "dlb_", foreign):
            assert ring.holder(wrong) is None


async def test_an_unknown_id_takes_the_same_steps_as_a_wrong_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check makes one digest and one comparison of equal length, against timing attacks."""
    journal = InMemoryJournal()
    key = await make_key(journal)
    steps: list[tuple[int, int]] = []
    digest, compare = Pepper.digest, hmac.compare_digest

    def counted(self: Pepper, purpose: str, text: str) -> bytes:
        steps.append((len(purpose), len(text)))
        return digest(self, purpose, text)

    def compared(one: Any, other: Any) -> bool:
        steps.append((len(one), len(other)))
        return compare(one, other)

    async with following(journal) as ring:
        monkeypatch.setattr(Pepper, "digest", counted)
        monkeypatch.setattr(keyrings, "compare_digest", compared)
        taken: list[list[tuple[int, int]]] = []
        for tried in (key, key[:-4] + "0000", new_key()[1], "no key at all", ""):
            steps.clear()
            ring.holder(tried)
            taken.append(list(steps))
    assert taken == [[(3, 69), (32, 32)]] * 5


async def test_records_missed_while_disconnected_are_replayed() -> None:
    journal = InMemoryJournal()
    key = await make_key(journal)
    async with following(journal) as ring:
        ended: list[str] = []
        ring.attach(key_id_of(key) or "", lambda: ended.append("revoked"))
        deaf = list(journal._subscriptions)  # pyright: ignore[reportPrivateUsage]
        journal._subscriptions.clear()  # pyright: ignore[reportPrivateUsage]
        await revoke(journal, key)
        assert ring.good(key_id_of(key) or "") is not None
        journal._subscriptions.extend(deaf)  # pyright: ignore[reportPrivateUsage]
        journal.reconnect()
        await until(lambda: ring.good(key_id_of(key) or "") is None)
        assert ended == ["revoked"]


async def test_lost_key_facts_are_read_within_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyrings, "CHECK_S", 0.01)
    journal = InMemoryJournal()
    key = await make_key(journal)
    async with following(journal) as ring:
        journal._subscriptions.clear()  # pyright: ignore[reportPrivateUsage]
        await revoke(journal, key)
        await until(lambda: ring.good(key_id_of(key) or "") is None)


async def test_keys_of_a_replaced_log_are_removed() -> None:
    journal = InMemoryJournal()
    key = await make_key(journal)
    async with following(journal) as ring:
        journal.records.clear()
        journal.reconnect()
        await until(lambda: ring.holder(key) is None)


async def test_known_keys_apply_while_the_log_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.log.projection.RETRY_S", 0.01)
    journal = InMemoryJournal()
    key = await make_key(journal)
    async with following(journal) as ring:
        journal.available = False
        read, attempts = journal.read, list[str]()

        def counted(pattern: str, after: int) -> AsyncIterator[Record]:
            attempts.append(pattern)
            return read(pattern, after)

        monkeypatch.setattr(journal, "read", counted)
        journal.reconnect()
        await until(lambda: len(attempts) == 3)
        assert ring.good(key_id_of(key) or "") is not None


async def test_an_unreadable_fact_is_left_out() -> None:
    journal = InMemoryJournal()
    await journal.write("keys.abcdefghijkl.created", b"{}")
    key = await make_key(journal)
    async with following(journal) as ring:
        assert ring.holder(key) is not None


async def test_a_revocation_calls_only_the_callbacks_of_its_key() -> None:
    journal = InMemoryJournal()
    first, second = await make_key(journal), await make_key(journal)
    async with following(journal) as ring:
        ended: list[str] = []
        ring.attach(key_id_of(first) or "", lambda: ended.append("first"))
        detach = ring.attach(key_id_of(first) or "", lambda: ended.append("left"))
        ring.attach(key_id_of(second) or "", lambda: ended.append("second"))
        detach()
        detach()
        await revoke(journal, first)
        assert ended == ["first"]
        ring.attach(key_id_of(first) or "", lambda: ended.append("too late"))
        assert ended == ["first", "too late"], "it was revoked between the question and the answer"


async def test_a_session_ends_at_its_time_or_with_its_key() -> None:
    journal = InMemoryJournal()
    key = await make_key(journal)
    brief = await make_key(journal, expires_at=NOW + timedelta(seconds=50))
    sessions, now_s = Sessions(pepper, 100), NOW.timestamp()
    async with following(journal) as ring:
        held, soon = ring.holder(key), ring.holder(brief)
        assert held is not None and soon is not None
        token, ends_at_s = sessions.begin(held, now_s)
        assert ends_at_s == now_s + 100
        assert sessions.begin(soon, now_s)[1] == now_s + 50
    assert sessions.read(token, now_s + 99) == (held.fact.key_id, ends_at_s)
    assert sessions.read(token, now_s + 100) is None
    assert key not in token


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "...",
        "abcdefghijkl.9999999999.",
        "abcdefghijkl.9999999999.AAAA",
        "{key}.9999999999.{signature}",
        "abcdefghijkl.{ends}.{signature}",
        "é.é.é",
    ],
)
async def test_rejects_tokens_with_a_foreign_signature(forged: str) -> None:
    journal = InMemoryJournal()
    key = await make_key(journal)
    sessions = Sessions(pepper, 100)
    async with following(journal) as ring:
        held = ring.holder(key)
        assert held is not None
        key_id, ends, signature = sessions.begin(held, NOW.timestamp())[0].split(".")
        token = forged.format(key=key_id, ends=ends, signature=signature)
        assert sessions.read(token, NOW.timestamp()) is None
        assert Sessions(Pepper(PEPPER + "!"), 100).read(f"{key_id}.{ends}.{signature}", NOW.timestamp()) is None
        with_key_digest = f"{key_id}.{ends}.{pepper.digest('key', f'{key_id}.{ends}').hex()}"
        assert sessions.read(with_key_digest, NOW.timestamp()) is None
