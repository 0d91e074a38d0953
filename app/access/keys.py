"""API keys: their form, their facts in the log, and their callers.

A key is `dlb_<id>_<secret>`: the id names it in lists and logs, the secret has 256 bits. The log keeps its HMAC-SHA256
under a pepper that it does not hold, so that a copy of the log grants no access. A key has at most two facts, each on
its own subject where the first write wins: `keys.<id>.created` and `keys.<id>.revoked`. A signature under the pepper
covers each whole fact: write access to the log alone can neither make, change nor revoke a key.
"""

import base64
import hmac
import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Annotated, Literal, TypeVar, cast

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter

from app.api.schemas import dump
from app.deliberation.ports import Record
from app.deliberation.specification import Token

Scope = Literal["submit", "read", "admin"]
SCOPES: tuple[Scope, ...] = ("submit", "read", "admin")
KeyState = Literal["good", "revoked", "expired"]
KEYS_PATTERN = "keys.>"
NAME_CHARS_MAX = 100
SECRET_BYTES = 32
_ID_CHARS = 12
_SIGNATURE_VERSION = "v1:"
_FACT_BYTES_MAX = 4_096
_KEY = re.compile(r"dlb_([a-z0-9]{12})_[a-z0-9]{52}")
# Matches partial and misspelled keys too: a leak is refused even if the key would not work.
_LOOKS_LIKE_KEY = re.compile(r"dlb_[a-z0-9]{12}_[a-z0-9]{16}", re.IGNORECASE)


class KeyFact(BaseModel):
    model_config = ConfigDict(frozen=True)

    signature: str = ""
    key_id: str = Field(pattern=r"^[a-z0-9]{12}$")


class KeyCreated(KeyFact):
    """A key was created. `digest` is its HMAC in hexadecimal, `pepper` the id of the pepper.

    `maker` is the id of the key that made it over HTTP, whose revocation ends it too; None for the operator's keys.
    """

    type: Literal["key.created"] = "key.created"
    name: str
    tenant: Token
    scopes: tuple[Scope, ...]
    created_at: AwareDatetime
    expires_at: AwareDatetime | None
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    pepper: str
    maker: str | None = None


class KeyRevoked(KeyFact):
    type: Literal["key.revoked"] = "key.revoked"
    revoked_at: AwareDatetime


_FACT: TypeAdapter[KeyCreated | KeyRevoked] = TypeAdapter(
    Annotated[KeyCreated | KeyRevoked, Field(discriminator="type")]
)


AnyKeyFact = TypeVar("AnyKeyFact", KeyCreated, KeyRevoked)


def key_subject(fact: KeyCreated | KeyRevoked) -> str:
    return f"keys.{fact.key_id}.{fact.type.removeprefix('key.')}"


def decode_key(data: bytes) -> KeyCreated | KeyRevoked:
    return _FACT.validate_json(data)


def _random(size: int) -> str:
    return base64.b32hexencode(secrets.token_bytes(size)).decode().lower().rstrip("=")


def new_key() -> tuple[str, str]:
    key_id = _random(8)[:_ID_CHARS]
    return key_id, f"dlb_{key_id}_{_random(SECRET_BYTES)}"


def key_id_of(key: str) -> str | None:
    match = _KEY.fullmatch(key)
    return None if match is None else match[1]


def checked_name(name: str) -> str:
    """The name of a key; raises ValueError."""
    if not name.strip() or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise ValueError(f"a name has 1 to {NAME_CHARS_MAX} printable characters")
    return name


def looks_like_key(text: str) -> bool:
    return _LOOKS_LIKE_KEY.search(text) is not None


class Pepper:
    """The secret that signs keys, their facts and sessions. No log, fact or `repr` contains it."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    @property
    def id(self) -> str:
        return self.digest("id", "")[:4].hex()

    def digest(self, purpose: str, text: str) -> bytes:
        """HMAC-SHA256 of a text; digests of different purposes are unrelated."""
        return hmac.digest(self._secret, f"{purpose}\n{text}".encode(), "sha256")

    def signed(self, fact: AnyKeyFact) -> AnyKeyFact:
        return fact.model_copy(update={"signature": self._sign(key_subject(fact), _unsigned(dump(fact))[1])})

    def verified(self, record: Record) -> KeyCreated | KeyRevoked | None:
        """The fact of a record; None where its signature is missing, foreign, or of another subject or content."""
        try:
            signature, text = _unsigned(record.data)
            if not hmac.compare_digest(self._sign(record.subject, text).encode(), signature.encode()):
                return None
            # Exactly the text that was verified, because foreign JSON may be read in two ways.
            return decode_key(text.encode()).model_copy(update={"signature": signature})
        except (ValueError, RecursionError):
            return None

    def _sign(self, subject: str, text: str) -> str:
        return _SIGNATURE_VERSION + self.digest("key fact", f"{subject}\n{text}").hex()


def _unsigned(data: bytes) -> tuple[str, str]:
    if len(data) > _FACT_BYTES_MAX:
        raise ValueError("longer than any fact of a key")
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError("no object")
    fields = cast("dict[str, object]", document)
    signature = fields.pop("signature", "")
    return str(signature), json.dumps(fields, sort_keys=True, separators=(",", ":"))


def created(
    pepper: Pepper,
    *,
    name: str,
    tenant: str,
    scopes: Iterable[Scope],
    created_at: datetime,
    expires_at: datetime | None,
    maker: str | None = None,
) -> tuple[KeyCreated, str]:
    """A new key's fact, and the key itself, which cannot be recovered later. Raises pydantic's ValidationError."""
    key_id, key = new_key()
    fact = KeyCreated(
        key_id=key_id,
        name=name,
        tenant=tenant,
        scopes=tuple(scope for scope in SCOPES if scope in set(scopes)),
        created_at=created_at,
        expires_at=expires_at,
        digest=pepper.digest("key", key).hex(),
        pepper=pepper.id,
        maker=maker,
    )
    return pepper.signed(fact), key


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request; `valid_until_s` is the end of its credential since 1970, None if none was required."""

    tenant: str
    scopes: frozenset[Scope]
    key_id: str = ""
    name: str = ""
    valid_until_s: float | None = None

    @property
    def authenticated(self) -> bool:
        return self.valid_until_s is not None


@dataclass(frozen=True, slots=True)
class HeldKey:
    fact: KeyCreated
    caller: Caller
    digest: bytes
    expires_at_s: float

    @classmethod
    def of(cls, fact: KeyCreated) -> "HeldKey":
        expires_at_s = inf if fact.expires_at is None else fact.expires_at.timestamp()
        caller = Caller(fact.tenant, frozenset(fact.scopes), fact.key_id, fact.name, expires_at_s)
        return cls(fact, caller, bytes.fromhex(fact.digest), expires_at_s)


@dataclass(slots=True)
class KeyBook:
    """Keys by id. Of two different facts of one kind the first counts; repetition makes no difference."""

    keys: dict[str, HeldKey] = field(default_factory=dict[str, HeldKey])
    revoked: dict[str, datetime] = field(default_factory=dict[str, datetime])

    def apply(self, fact: KeyCreated | KeyRevoked) -> None:
        match fact:
            case KeyCreated():
                self.keys.setdefault(fact.key_id, HeldKey.of(fact))
            case KeyRevoked():
                self.revoked.setdefault(fact.key_id, fact.revoked_at)

    def is_revoked(self, key: HeldKey) -> bool:
        """Whether the key, or a maker of it, was revoked. An unknown maker counts as a revoked one."""
        held: HeldKey | None = key
        while held is not None and held.fact.key_id not in self.revoked:
            if held.fact.maker is None:
                return False
            held = self.keys.get(held.fact.maker)
        return True

    def state(self, key: HeldKey, now: datetime) -> KeyState:
        return "revoked" if self.is_revoked(key) else "expired" if key.expires_at_s <= now.timestamp() else "good"

    def good(self, key_id: str) -> HeldKey | None:
        held = self.keys.get(key_id)
        return None if held is None or self.is_revoked(held) else held
