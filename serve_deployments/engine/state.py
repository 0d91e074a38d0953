"""An engine as a replica knows it, and the errors by which calls to engines differ."""

import asyncio
import math
import os
import re
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import structlog

from app.deliberation.budget import BYTES_PER_TOKEN
from app.deliberation.calls import Usage
from app.deliberation.engine_troubles import EngineTrouble, TroubleCause
from app.deliberation.errors import AnswerWithheld, CallFailure, EngineRejected, EngineUnavailable, InvalidRequest
from app.deliberation.roles import EngineSpec, api_key, engine_endpoint
from app.observability.process_counts import DurationHistogram
from app.process_settings import read_text
from serve_deployments.engine.error_words import WORDS_MAX, cause_of_status, own_words
from serve_deployments.engine.limits import Circuit
from serve_deployments.engine.reachability import Outage, cause_of
from serve_deployments.engine.replies import EngineReply
from serve_deployments.engine.request_body import Dialect, refused_fields

# While another engine can take a call, an engine that refused its key gets none for so long.
REFUSED_FOR_S = 30.0
KEY_REFUSED = frozenset({401, 403})
# The statuses below 500 after which clients of OpenAI ask again, beside 429.
_PASSING = frozenset({408, 409, 425})
# Content filters of Azure, OpenAI, DashScope and LiteLLM, which refuse a prompt with 400.
_FILTERED = re.compile(
    rb'"(?:code|type)"\s*:\s*"[^"]{0,40}(?:content_?(?:filter|policy)|inspection|ResponsibleAI)|ContentPolicyViolation',
    re.IGNORECASE,
)
# The last answers of an engine, from which its time to the first token and its cached share are told.
RECENT_MAX = 32
# An engine says nothing while it computes a prompt, nor while it computes those of calls beside it. Before its first
# answers it may be a laptop's.
PROMPTS_AT_ONCE = 4
PACED_TOKENS_MIN = 64
IDLE_TIMES_AT_FIRST = 4
TOKENS_PER_S_AT_FIRST = 200
# Longer than any deadline.
RETRY_AFTER_MAX_S = 86_400.0
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{0,9})?")

log = structlog.get_logger(__name__)


class EngineKey:
    """An engine's key. `refresh` reads a key file anew; what was read before is kept while the file is unusable."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._key = self._read()
        self._usable = True

    def _read(self) -> str | None:
        return api_key(self._spec, os.environ, read_text, "roles file")

    @property
    def headers(self) -> list[tuple[str, str]]:
        if self._key is None:
            return []
        bearer = ("Authorization", f"Bearer {self._key}")
        return [bearer, ("api-key", self._key)] if self._spec.deployment else [bearer]

    def redacted(self, text: str) -> str:
        return text if self._key is None else text.replace(self._key, "***")

    async def refresh(self) -> bool:
        """Read a key file anew, without blocking the event loop; returns whether the key has changed."""
        if self._spec.api_key_file is None:
            return False
        before = self._key
        try:
            self._key = await asyncio.to_thread(self._read)
        except InvalidRequest as unusable:
            # A file may be missing or empty for a moment while it is replaced.
            if self._usable:
                log.warning("engine_key_unusable", engine=self._spec.label, error=str(unusable))
            self._usable = False
            return False
        self._usable = True
        if self._key != before:
            log.info("engine_key_changed", engine=self._spec.label)
        return self._key != before


class KeyRejected(NamedTuple):
    """An engine refuses its key, or wants one: since when, with which status."""

    since: datetime
    status: int


class EngineFailure(NamedTuple):
    """Why a request to an engine failed, in the engine's own words where it gave some."""

    cause: TroubleCause
    words: str


@dataclass(eq=False)
class EngineState:
    """One engine of a role, as a replica knows it.

    `extended`: it takes vLLM's own request fields; None until a probe was answered. `listed` has the models of its list
    with their context in tokens, None where it does not say; empty where the list is cut. `list_problem` says why its
    list of models is of no use, empty while it is, and `list_cause` its cause. `told_to_wait_until_s` is the end of its
    Retry-After, `refusing_since` the first 429 or 503 in a row. `failure` is that of the last request that failed.
    `silent_since` begins with a probe that was not answered in time. `answers`, `usage`, and the durations `seconds`
    and `first_token` of answered requests count from the replica's start; `recent` has milliseconds to the first token,
    prompt tokens and cached ones, `paces` seconds to the first token for each token of a prompt that it computed.
    `slots` are the calls that it works on at once, where it says so. `outage` lasts from the first failed connection to
    the next response, at `reached_s`. `key_rejected` lasts from the first refusal of the key to the next request that
    is not refused. `prioritises` is True until it refuses a priority.
    """

    spec: EngineSpec
    fallback: bool = False
    key: EngineKey = field(init=False)
    address: str = field(init=False)
    label: str = field(init=False)
    completions: httpx.URL = field(init=False)
    models_url: str = field(init=False)
    version_url: str = field(init=False)
    tokenize_url: str = field(init=False)
    properties_url: str = field(init=False)
    models: tuple[str, ...] = ()
    listed: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    list_problem: str = ""
    list_problem_since: datetime | None = None
    list_cause: TroubleCause = "list"
    told_to_wait_until_s: float = -math.inf
    refusing_since: datetime | None = None
    failure: EngineFailure = field(default_factory=lambda: EngineFailure("errors", ""))
    silent_since: datetime | None = None
    answers: int = 0
    usage: Usage = field(default_factory=Usage)
    seconds: DurationHistogram = field(default_factory=DurationHistogram)
    first_token: DurationHistogram = field(default_factory=DurationHistogram)
    recent: deque[tuple[int | None, int, int]] = field(default_factory=lambda: deque(maxlen=RECENT_MAX))
    paces: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_MAX))
    extended: bool | None = None
    prioritises: bool = True
    version: str | None = None
    in_flight: int = 0
    slots: int | None = None
    circuit: Circuit = field(default_factory=Circuit)
    outage: Outage | None = None
    reached_s: float = -math.inf
    key_rejected: KeyRejected | None = None
    # By model; what an engine takes may change with its next start.
    dialects: dict[str, Dialect] = field(default_factory=dict[str, Dialect])
    _refused_s: float = -math.inf
    _refusing_until_s: float = -math.inf
    _refused_by_probe: bool = False

    def __post_init__(self) -> None:
        self.key = EngineKey(self.spec)
        self.address, self.label = self.spec.address, self.spec.label
        self.completions = httpx.URL(engine_endpoint(self.spec.url, "/chat/completions"))
        self.models_url = engine_endpoint(self.spec.url, "/models")
        root = urlsplit(self.spec.url)
        self.version_url = root._replace(path=f"{root.path}/version").geturl()
        self.tokenize_url = root._replace(path=f"{root.path}/tokenize").geturl()
        self.properties_url = root._replace(path=f"{root.path}/props").geturl()

    @property
    def headers(self) -> list[tuple[str, str]]:
        return [*self.spec.headers.items(), *self.key.headers]

    @property
    def full(self) -> bool:
        most = self.slots if self.spec.max_in_flight is None else self.spec.max_in_flight
        return most is not None and self.in_flight >= most

    def silence_s(self, body_bytes: int) -> float:
        """The seconds without a byte after which a request with a body of so many bytes counts as lost.

        They grow with the prompt by the slowest of the last answers, which may have waited in the engine's own queue.
        """
        tokens = body_bytes / BYTES_PER_TOKEN
        if not self.paces:
            return IDLE_TIMES_AT_FIRST * self.spec.idle_timeout_s + tokens / TOKENS_PER_S_AT_FIRST
        return self.spec.idle_timeout_s + PROMPTS_AT_ONCE * tokens * max(self.paces)

    def paced(self, reply: EngineReply) -> None:
        """Learn the pace of prompts from a reply, unless the engine found almost all of its prompt in its cache."""
        computed = reply.usage.prompt_tokens - reply.usage.cached_tokens
        if reply.ttft_s is not None and computed >= PACED_TOKENS_MIN:
            self.paces.append(reply.ttft_s / computed)

    @property
    def unlisted(self) -> bool:
        return bool(self.list_problem) or self.key_rejected is not None

    def refused_lately(self, now_s: float) -> bool:
        return self.key_rejected is not None and now_s < self._refused_s + REFUSED_FOR_S

    def refuses_key(self, status: int, *, probe: bool = False) -> None:
        self._refused_s, self._refused_by_probe = time.monotonic(), probe
        if self.key_rejected is None:
            self.key_rejected = KeyRejected(datetime.now(UTC), status)
            log.warning("engine_key_rejected", engine=self.label, status=status)

    def accepts_key(self, *, probe: bool = False) -> None:
        """Record a request that it took; many engines list their models without a key."""
        if self._refused_by_probe or not probe:
            self.key_rejected = None
        if not probe:
            self.refusing_since = None

    def refuses_for_now(self, after_s: float) -> None:
        """Record a 429 or 503 with its Retry-After; it is told until a request is taken, or for `REFUSED_FOR_S`."""
        now_s = time.monotonic()
        if self.refusing_since is None or now_s >= self._refusing_until_s:
            self.refusing_since = datetime.now(UTC)
        self.told_to_wait_until_s = max(self.told_to_wait_until_s, now_s + after_s)
        self._refusing_until_s = max(self.told_to_wait_until_s, now_s + REFUSED_FOR_S)

    def dialect(self, model: str) -> Dialect:
        return self.dialects.get(model) or Dialect(self.spec.structured or "json_schema")

    def remember(self, model: str, dialect: Dialect, *, own_schema: bool) -> None:
        """Record a dialect in which a request was taken. The first one decides how answers get their form.

        A client's own schema that the engine cannot compile says nothing of others.
        """
        known = self.dialects.get(model)
        if known is None:
            self.dialects[model] = dialect
        else:
            lacking = dialect.lacking if own_schema else dialect.lacking - {"schema"}
            self.dialects[model] = replace(known, lacking=known.lacking | lacking)

    def quote(self, content: bytes) -> str:
        """The words of an error's body, on one line, without the key."""
        return self.key.redacted(own_words(content))[:WORDS_MAX]

    @property
    def list_failure(self) -> EngineFailure:
        which = "it" if self.list_cause == "list" else "its list of models"
        return EngineFailure(self.list_cause, f"{which} {self.list_problem}")

    @property
    def healthy(self) -> bool:
        return self.circuit.opened_until_s is None

    @property
    def own_model(self) -> str | None:
        return self.spec.model or self.spec.deployment

    def admits(self, now_s: float) -> bool:
        """Whether a request may be sent: its circuit lets it pass, and no Retry-After is under way."""
        return now_s >= self.told_to_wait_until_s and self.circuit.admits(now_s)

    def opens_s(self, now_s: float) -> float:
        """Returns the time from which on it may admit a request, as far as only time decides it."""
        return max(self.circuit.opened_until_s or now_s, self.told_to_wait_until_s)

    def answered(self, reply: EngineReply, usage: Usage, seconds: float) -> None:
        self.answers += 1
        self.seconds.observe(seconds)
        if reply.ttft_s is not None:
            self.first_token.observe(reply.ttft_s)
        ttft_ms = None if reply.ttft_s is None else round(reply.ttft_s * 1_000)
        self.recent.append((ttft_ms, usage.prompt_tokens, usage.cached_tokens))

    def trouble(self, now_s: float) -> EngineTrouble | None:
        """The fault that keeps calls from the engine or makes them fail; None without a fault."""
        if self.outage is not None:
            return EngineTrouble.of(self.outage.cause, self.outage.since, self.outage.words)
        if self.key_rejected is not None:
            remedy = f"{self.spec.key_remedy[0].upper()}{self.spec.key_remedy[1:]}."
            since, status = self.key_rejected
            return EngineTrouble.of("key", since, f"it answered {status}", remedy)
        if self.silent_since is not None:
            return EngineTrouble.of("silent", self.silent_since)
        if not self.healthy:
            since_s = now_s - (self.circuit.failing_since_s or now_s)
            return EngineTrouble.of(
                self.failure.cause, datetime.now(UTC) - timedelta(seconds=since_s), self.failure.words
            )
        if self.list_problem_since is not None:
            cause, words = self.list_failure
            return EngineTrouble.of(cause, self.list_problem_since, words)
        if self.refusing_since is not None and now_s < self._refusing_until_s:
            return EngineTrouble.of(self.failure.cause, self.refusing_since, self.failure.words)
        return None

    def described(self, now_s: float, named: str | None) -> dict[str, Any]:
        """The engine as `EngineStatus` reads it; `named` is the model that the role names."""
        trouble, usage = self.trouble(now_s), self.usage
        model = named or self.own_model or next(iter(self.models), None)
        dialect = self.dialects.get(model or "")
        return {
            "url": self.address,
            "name": self.spec.name,
            "healthy": self.healthy,
            "circuit": self.circuit.state(now_s),
            "in_flight": self.in_flight,
            "models": list(self.models),
            "version": self.version,
            "trouble": trouble and trouble.model_dump(mode="json"),
            "unlisted": model if model and self.listed and model not in self.listed else "",
            "context_tokens": self.spec.context or self.listed.get(model or ""),
            "structured": dialect and dialect.structured,
            "prioritises": self.prioritises if self.extended else None,
            "answers": self.answers,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "seconds": self.seconds.model_dump(),
            "first_token": self.first_token.model_dump(),
            "recent": list(self.recent),
        }

    def connected(self) -> None:
        if self.outage is not None:
            self.dialects.clear()
        self.outage, self.silent_since, self.reached_s = None, None, time.monotonic()

    def not_connected(self, error: Exception) -> None:
        if self.outage is None:
            self.outage = Outage(datetime.now(UTC), time.monotonic(), *cause_of(error))
            log.warning("engine_unreachable", engine=self.address, cause=self.outage.words)


class EngineUnreachable(EngineUnavailable):
    """No connection to the engine: nothing was sent, and nothing was spent."""


class EngineFull(EngineUnreachable):
    """Other calls took the last of the engine's slots meanwhile."""


class KeyRefused(EngineRejected):
    def __init__(self, engine: EngineState, status: int) -> None:
        source = engine.spec.key_source
        refuses = f"refuses the key of {source}" if source else "wants a key"
        super().__init__(f"engine {engine.label} answered {status}: it {refuses}; {engine.spec.key_remedy}")


class FieldsRefused(EngineRejected):
    """The engine refuses `fields` of the request; `otherwise` is the error if it cannot be made without them."""

    def __init__(self, otherwise: EngineUnavailable | EngineRejected, fields: frozenset[str]) -> None:
        super().__init__(str(otherwise))
        self.otherwise = otherwise
        self.fields = fields


class RetryLater(EngineUnavailable):
    def __init__(self, detail: str, after_s: float) -> None:
        super().__init__(detail)
        self.after_s = after_s


def refusal_of(
    engine: EngineState, status: int, headers: httpx.Headers, content: bytes, within: str = ""
) -> CallFailure:
    """The failure that an error means; `within` says where its status stood, if not in the response's first line."""
    if status in KEY_REFUSED:
        # Not quoted, because such answers tend to repeat a part of the key.
        engine.refuses_key(status)
        return KeyRefused(engine, status)
    words = engine.quote(content)
    detail = f"{engine.label} answered {status}{within}: {words}"
    engine.failure = EngineFailure(cause_of_status(status, words), f"it answered {status}: {words}".removesuffix(": "))
    if status < 500 and _FILTERED.search(content):
        return AnswerWithheld(detail)
    after_s = retry_after_s(headers, datetime.now(UTC))
    if status in (429, 503) or (after_s > 0 and (status >= 500 or status in _PASSING)):
        engine.refuses_for_now(after_s)
        return RetryLater(detail, after_s)
    if 300 <= status < 400:
        place = engine.quote(headers.get("Location", "").encode("utf-8", "replace"))
        return EngineRejected(f"{engine.label} answered {status} and names the address {place!r}: give it as the `url`")
    error = EngineUnavailable(detail) if status >= 500 or status in _PASSING else EngineRejected(detail)
    fields = refused_fields(status, content)
    return FieldsRefused(error, fields) if fields else error


def retry_after_s(headers: httpx.Headers, now: datetime) -> float:
    """Returns the seconds of Retry-After, a number or a date, or of `retry-after-ms`, which OpenAI sends; else 0."""
    milliseconds, after = headers.get("retry-after-ms", ""), headers.get("Retry-After", "").strip()
    if _SECONDS.fullmatch(milliseconds):
        told_s = float(milliseconds) / 1_000
    elif _SECONDS.fullmatch(after):
        told_s = float(after)
    else:
        try:
            date = parsedate_to_datetime(after)
            told_s = (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds()
        except (ValueError, TypeError, IndexError, OverflowError):
            return 0.0
    return min(max(0.0, told_s), RETRY_AFTER_MAX_S)
