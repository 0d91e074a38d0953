"""The HTTP client for receivers, the only one that connects to hosts that clients name.

Each attempt resolves the name once and checks all addresses, which defeats DNS rebinding. The client follows no
redirect, uses no proxy, keeps no cookie and reads only the head of the answer.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Self

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from app.api.webhook_targets import Rules, Target, UnfitUrl, address_refused
from app.webhooks.attempts import Attempt, AttemptProblem

CONNECT_TIMEOUT_S = 5.0
HEAD_BYTES_MAX = 8_190
HEADERS_MAX = 64
# Each lookup blocks a thread of the system's resolver; one unresponsive name server must not delay other lookups.
_LOOKUP_THREADS = ThreadPoolExecutor(128, thread_name_prefix="lookup")
USER_AGENT = "deliberation-gateway-webhooks"


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    attempt: Attempt
    retry_after_s: float | None = None


Lookup = Callable[[str, int], Awaitable[Sequence[str]]]


class AddressRefused(Exception):
    pass


class _CheckedResolver(AbstractResolver):
    def __init__(self, rules: Rules, lookup: Lookup) -> None:
        self._rules = rules
        self._lookup = lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
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
        pass


async def system_lookup(host: str, port: int) -> Sequence[str]:

    def addresses() -> list[str]:
        return [str(address[4][0]) for address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]

    return await asyncio.get_running_loop().run_in_executor(_LOOKUP_THREADS, addresses)


class Poster:
    """Posts to receivers; an async context manager. `timeout_s` bounds a whole attempt, its lookup included."""

    def __init__(
        self, rules: Rules, *, timeout_s: float, lookup: Lookup | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._rules, self._timeout_s, self._tls = rules, timeout_s, tls
        self._lookup = lookup or system_lookup

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            resolver=_CheckedResolver(self._rules, self._lookup),
            use_dns_cache=False,
            # A kept connection would bypass the check of the name's present addresses.
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

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> AttemptOutcome:
        """Make one attempt; every failure of the receiver or its name is an outcome, never an exception."""
        at, began_s = datetime.now(UTC), time.monotonic()
        status, retry_after_s, fault = None, None, None
        try:
            status, retry_after = await self._answer(url, headers, body)
            retry_after_s = retry_after_seconds(retry_after, datetime.now(UTC))
            if not 200 <= status < 300:
                fault = AttemptProblem(code="http_status", detail=f"The receiver answered {status}.")
        except UnfitUrl as exc:
            fault = AttemptProblem(code="url_refused", detail=f"{exc}.")
        except AddressRefused:
            fault = AttemptProblem(code="address_refused", detail="The host is at a private or reserved address.")
        except TimeoutError:
            fault = AttemptProblem(code="timeout", detail=f"No answer within {self._timeout_s:g} s.")
        except aiohttp.ClientConnectorDNSError:
            fault = AttemptProblem(code="name_unresolved", detail="The host's name has no address.")
        except (aiohttp.ClientSSLError, ssl.SSLError):
            fault = AttemptProblem(code="tls_failed", detail="TLS failed: the certificate, its name, or the protocol.")
        except (aiohttp.ClientConnectionError, OSError):
            fault = AttemptProblem(code="connection_failed", detail="The connection was refused or closed.")
        except (aiohttp.ClientError, ValueError):
            fault = AttemptProblem(code="no_http", detail="The answer is not valid HTTP.")
        duration_ms = round((time.monotonic() - began_s) * 1_000)
        attempt = Attempt(at=at, duration_ms=duration_ms, status_code=status, problem=fault)
        return AttemptOutcome(attempt, None if attempt.succeeded else retry_after_s)

    async def _answer(self, url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, str | None]:
        # One parser decides, and the client gets its spelling. The host stays as DNS has it, in punycode.
        target = self._rules.check(url)
        parsed = URL(target.url, encoded=True)
        if (parsed.scheme, parsed.raw_host, parsed.port) != (target.scheme, target.host, target.port):
            raise UnfitUrl("Parsers disagree on it", "Spell it as browsers do.")
        async with self._session.post(parsed, data=body, headers=headers, allow_redirects=False) as response:
            return response.status, response.headers.get("Retry-After")


def retry_after_seconds(retry_after: str | None, now: datetime) -> float | None:
    """The delay in a Retry-After header, given in seconds or as a date; None if it is neither."""
    if retry_after is None:
        return None
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after[:10])
    try:
        moment = parsedate_to_datetime(retry_after)
    except (ValueError, OverflowError):
        return None
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds())
