import asyncio
import base64
import hashlib
import hmac
import time
from datetime import UTC, datetime, timedelta

from app.access.keys import SCOPES, KeyRevoked, Pepper, Scope, created, key_id_of, key_subject
from app.api.schemas import dump
from app.log.journal import JetStreamJournal
from tests.attack.gateways import Gateway
from tests.components.access.keyed import PEPPER, bearer, make_key

HEARD_WITHIN_S = 5.0
SETTINGS = {"KEY_PEPPER": PEPPER}
OTHER_PEPPER = "another pepper of at least thirty-two characters"


async def login(attacked: Gateway, key: str) -> str:
    async with asyncio.timeout(HEARD_WITHIN_S):
        while (answer := await attacked.client.post("/login", json={"key": key})).status_code == 401:
            await asyncio.sleep(0.05)
    attacked.client.cookies.clear()
    assert answer.status_code == 200, answer.text
    return answer.cookies["deliberate"]


async def asked(attacked: Gateway, cookie: str, method: str = "GET", path: str = "/roles", **headers: str) -> int:
    request = attacked.client.build_request(method, path, headers={"Cookie": cookie, **headers})
    return (await attacked.client.send(request)).status_code


async def test_a_copied_token_ends_with_its_key_and_not_with_the_logout(
    attacked: Gateway, jetstream_journal: JetStreamJournal
) -> None:
    key = await make_key(jetstream_journal)  # pyright: ignore[reportArgumentType]
    cookie = f"deliberate={await login(attacked, key)}"
    assert await asked(attacked, cookie) == 200
    assert await asked(attacked, cookie, "POST", "/logout", **{"Sec-Fetch-Site": "same-origin"}) == 204
    # docs/security.md says so: gateways store no sessions.
    assert await asked(attacked, cookie) == 200
    revoked = Pepper(PEPPER).signed(KeyRevoked(key_id=key_id_of(key) or "", revoked_at=datetime.now(UTC)))
    await jetstream_journal.write(key_subject(revoked), dump(revoked))
    async with asyncio.timeout(HEARD_WITHIN_S):
        while await asked(attacked, cookie) != 401:
            await asyncio.sleep(0.02)
    assert (await attacked.client.post("/login", json={"key": key})).status_code == 401


async def test_a_session_ends_with_a_key_that_expires(attacked: Gateway, jetstream_journal: JetStreamJournal) -> None:
    expires_at = datetime.now(UTC) + timedelta(seconds=4)
    key = await make_key(jetstream_journal, expires_at=expires_at)  # pyright: ignore[reportArgumentType]
    cookie = f"deliberate={await login(attacked, key)}"
    assert await asked(attacked, cookie) == 200
    await asyncio.sleep((expires_at - datetime.now(UTC)).total_seconds())
    assert await asked(attacked, cookie) == 401


async def test_no_altered_token_is_accepted(attacked: Gateway, jetstream_journal: JetStreamJournal) -> None:
    token = await login(attacked, await make_key(jetstream_journal))  # pyright: ignore[reportArgumentType]
    victim = key_id_of(await make_key(jetstream_journal, tenant="victim"))  # pyright: ignore[reportArgumentType]
    key_id, ends_at, signature = token.split(".")
    later = str(int(ends_at) + 86_400)
    flipped = [f"{token[:at]}{'b' if token[at] == 'a' else 'a'}{token[at + 1 :]}" for at in range(len(token) - 1)]
    # The last character of a digest holds two bits that a lenient decoder ignores.
    last = [f"{token[:-1]}{letter}" for letter in "ABCDEFGHIJKLMNOP0123456789-_" if letter != token[-1]]
    forged = [
        *flipped,
        *last,
        f"{victim}.{ends_at}.{signature}",
        f"{key_id}.{later}.{signature}",
        f"{key_id}.{ends_at}.",
        f"{key_id}.{ends_at}",
        f"{key_id}.{ends_at}.{signature}=",
        f"{key_id}.{ends_at}.{signature}.{signature}",
        f"{key_id}.+{ends_at}.{signature}",
        f"{key_id}. {ends_at}.{signature}",
        f"{key_id}.{ends_at}e9.{signature}",
        f"{key_id.upper()}.{ends_at}.{signature}",
        f'"{token}"',
        token[1:],
        token * 2,
        ".",
        "..",
        "",
        "null",
        "a" * 4_000,
    ]
    assert await asked(attacked, f"deliberate={token}") == 200
    found = [await asked(attacked, f"deliberate={each}") for each in forged]
    assert [each for each, status in zip(forged, found, strict=True) if status != 401] == []


async def test_no_token_signed_with_what_an_attacker_knows_is_accepted(
    attacked: Gateway, jetstream_journal: JetStreamJournal
) -> None:
    """The log and the public id of the pepper are known to the attacker; the pepper is not."""
    scopes: tuple[Scope, ...] = SCOPES
    fact, _ = created(
        Pepper(PEPPER), name="n", tenant="acme", scopes=scopes, created_at=datetime.now(UTC), expires_at=None
    )
    await jetstream_journal.write(key_subject(fact), dump(fact))
    payload = f"{fact.key_id}.{int(time.time()) + 3_600}"
    known = [OTHER_PEPPER.encode(), b"", fact.digest.encode(), bytes.fromhex(fact.digest), Pepper(PEPPER).id.encode()]
    digests = [hmac.digest(each, f"session\n{payload}".encode(), "sha256") for each in known]
    digests += [hashlib.sha256(f"session\n{payload}".encode()).digest(), Pepper(PEPPER).digest("key", payload), b""]
    for digest in digests:
        token = f"{payload}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
        assert await asked(attacked, f"deliberate={token}") == 401
    signed = Pepper(PEPPER).digest("session", payload)
    token = f"{payload}.{base64.urlsafe_b64encode(signed).decode().rstrip('=')}"
    assert await asked(attacked, f"deliberate={token}") == 200, "the forgeries differ from a session in their key alone"


async def test_a_cookie_is_read_under_its_own_name_and_never_beside_a_bad_key(
    attacked: Gateway, jetstream_journal: JetStreamJournal
) -> None:
    token = await login(attacked, await make_key(jetstream_journal))  # pyright: ignore[reportArgumentType]
    assert await asked(attacked, f"__Host-deliberate={token}") == 401, "over http that name is not ours"
    assert await asked(attacked, f"Deliberate={token}") == 401
    assert await asked(attacked, f"deliberate=x; deliberate={token}") == 401, "the first one counts"
    assert await asked(attacked, f"deliberate={token}", Authorization="Bearer dlb_no_such_key") == 401
    assert await asked(attacked, f"deliberate={token}", "POST", "/deliberations") == 403
    assert await asked(attacked, "", Authorization=f"Bearer {token}") == 401, "a token is no key"


async def test_a_key_of_another_pepper_opens_nothing(attacked: Gateway, jetstream_journal: JetStreamJournal) -> None:
    key = await make_key(jetstream_journal, pepper=OTHER_PEPPER)  # pyright: ignore[reportArgumentType]
    # A later key of this pepper is known, so the earlier one has been heard of too.
    await login(attacked, await make_key(jetstream_journal))  # pyright: ignore[reportArgumentType]
    assert (await attacked.client.get("/roles", headers=bearer(key))).status_code == 401
    assert (await attacked.client.post("/login", json={"key": key})).status_code == 401
