"""One request to a receiver, and nowhere else: the only HTTP client that connects where clients say.

The name is looked up anew for each attempt, its addresses are checked, and the connection goes to one of those that
were checked: what the name says a moment later changes nothing. No redirect is followed, no proxy of the environment is
used, no cookie kept, and of the answer nothing is read but its head.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from app.api.webhook_targets import Rules, Target, UnfitUrl, address_refused
from app.deliberation.ports import Clock
from app.webhooks.attempts import Attempt, AttemptFault
from app.webhooks.sender.schedule import AttemptOutcome

CONNECT_TIMEOUT_S = 5.0
HEAD_BYTES_MAX = 8_190
HEADERS_MAX = 64
# The system's resolver blocks a thread for each question; a dead one must not hold up everybody's.
_LOOKUPS_MAX = 128
USER_AGENT = "deliberation-gateway-webhooks"

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]


class AddressRefused(Exception):
    """The host is, or is also, at an address that must not be connected to."""


class _Pinning(AbstractResolver):
    """Looks names up, and lets no connection begin to an address that was not checked."""

    def __init__(self, rules: Rules, lookup: Lookup) -> None:
        self._rules = rules
        self._lookup = lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The host's addresses; raises AddressRefused unless all of them may be connected to, and OSError."""
        addresses = list(dict.fromkeys(await self._lookup(host, port)))
        if not addresses:
            raise OSError("the name has no address")
        listed = self._rules.listed(Target("https", host.lower(), port))
        if not listed and any(address_refused(address) for address in addresses):
            raise AddressRefused
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Nothing is held."""


class SystemLookup:
    """The machine's own resolver, in threads of its own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_LOOKUPS_MAX, thread_name_prefix="lookup")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """The host's addresses; raises OSError."""

        def looked_up() -> list[str]:
            return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]

        return await asyncio.get_running_loop().run_in_executor(self._threads, looked_up)


class Poster:
    """Posts to receivers; an async context manager. `timeout_s` bounds an attempt from the first lookup on."""

    def __init__(
        self,
        rules: Rules,
        clock: Clock,
        *,
        timeout_s: float,
        lookup: Lookup | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._rules = rules
        self._clock = clock
        self._timeout_s = timeout_s
        self._lookup = lookup or SystemLookup()
        self._tls = tls

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            resolver=_Pinning(self._rules, self._lookup),
            use_dns_cache=False,
            # Every attempt looks the name up and connects anew: what was checked an hour ago says nothing now.
            force_close=True,
            limit=0,
            ssl=self._tls or True,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=CONNECT_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding"),
            headers={"User-Agent": USER_AGENT, "Content-Type": "application/json"},
            auto_decompress=False,
            trust_env=False,
            read_bufsize=HEAD_BYTES_MAX,
            max_line_size=HEAD_BYTES_MAX,
            max_field_size=HEAD_BYTES_MAX,
            max_headers=HEADERS_MAX,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> AttemptOutcome:
        """What came of one attempt; never raises for what a receiver or its name does."""
        at, began_s = self._clock.now(), time.monotonic()
        status, retry_after_s, fault = None, None, None
        try:
            status, retry_after = await self._answer(url, headers, body)
            retry_after_s = seconds_of(retry_after, self._clock.now())
            if not 200 <= status < 300:
                fault = AttemptFault(code="http_status", detail=f"The receiver answered {status}.")
        except UnfitUrl as exc:
            fault = AttemptFault(code="url_refused", detail=f"{exc}.")
        except AddressRefused:
            fault = AttemptFault(code="address_refused", detail="The host is at a private or reserved address.")
        except TimeoutError:
            fault = AttemptFault(code="timeout", detail=f"No answer within {self._timeout_s:g} s.")
        except aiohttp.ClientConnectorDNSError:
            fault = AttemptFault(code="name_unresolved", detail="The host's name has no address.")
        except (aiohttp.ClientSSLError, ssl.SSLError):
            fault = AttemptFault(code="tls_failed", detail="TLS failed: the certificate, its name, or the protocol.")
        except (aiohttp.ClientConnectionError, OSError):
            fault = AttemptFault(code="connection_failed", detail="The connection was refused or broken off.")
        except (aiohttp.ClientError, ValueError):
            fault = AttemptFault(code="no_http", detail="What came back is no answer of HTTP.")
        duration_ms = round((time.monotonic() - began_s) * 1_000)
        attempt = Attempt(at=at, duration_ms=duration_ms, status_code=status, problem=fault)
        return AttemptOutcome(attempt, None if attempt.succeeded else retry_after_s)

    async def _answer(self, url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, str | None]:
        """Status and Retry-After; the answer's body is not read, and the connection is closed."""
        target, parsed = self._rules.check(url), URL(url, encoded=True)
        if (parsed.scheme, parsed.host, parsed.port) != (target.scheme, target.host, target.port):
            raise UnfitUrl("It is read in more than one way", "Spell it as browsers do.")
        async with self._session.post(parsed, data=body, headers=headers, allow_redirects=False) as response:
            return response.status, response.headers.get("Retry-After")


def seconds_of(retry_after: str | None, now: datetime) -> float | None:
    """The seconds that a Retry-After header names, or its date from now on; None where it is neither."""
    if retry_after is None:
        return None
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after[:10])
    try:
        moment = parsedate_to_datetime(retry_after)
    except (ValueError, OverflowError):
        return None
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds())
