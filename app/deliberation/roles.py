"""Engines and roles as roles.yaml declares them.

Reading the file is an edge's work; here its parsed content is checked. An engine's key is never part of it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from app.deliberation.errors import InvalidRequest, fault_of
from app.deliberation.specification import PERSONA_CHARS_MAX, Amount, Prices, RolePrices, Sampling, Structured
from app.deliberation.tools import DeclaredValue, RoleTools, absolute, distinct

ROLE_PATTERN = r"^[A-Z][A-Z0-9_-]{0,31}$"
ENGINE_PATTERN = r"^[a-z][a-z0-9_-]{0,31}$"
CONCURRENCY = 1_024
"""Calls of a role at engines at once, per replica, where the role does not say it."""
DEFAULT_KEY_VARIABLE = "VLLM_API_KEY"
"""Variable with the key of the engines of `--engine-url` and VLLM_URL."""
# Headers that the requests carry already, and headers that belong to the connection.
_OWN_HEADERS = frozenset("accept accept-encoding connection content-length content-type host transfer-encoding".split())
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]{0,1024}")
_KEY = re.compile(r"[\x21-\x7e]{1,4096}")
Complexity = Literal["basic", "medium", "complex"]
ROLES_BY_COMPLEXITY: Mapping[Complexity, tuple[str, ...]] = MappingProxyType(
    {
        "basic": ("DEV", "QA"),
        "medium": ("ARCHITECT", "DEV", "QA"),
        "complex": ("ARCHITECT", "DEV", "QA", "DEVOPS"),
    }
)
"""The roles of a plan, or of a demo, that names its complexity alone."""


_VERSION = re.compile(r"/v\d+[a-z0-9]*(/openai)?$")
_DEPLOYMENT = re.compile(r"/deployments/([^/?]+)$")
_OTHER_APIS = re.compile(r"/(completions|responses|messages|embeddings|models|api/(generate|chat|tags))$")


def engine_base(address: str) -> str:
    """The base URL of an engine from the forms that people have; raises ValueError.

    Known forms: a server, an address with `/v1` as OpenAI's clients take it, a path that ends in another version. A
    full `/chat/completions` endpoint and an Azure deployment with its query are known too.
    """
    url = address.strip()
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"an engine is an http(s) URL, not {address!r}")
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    if (other := _OTHER_APIS.search(path)) is not None:
        raise ValueError(f"{other[0]} is no chat completions API; give the server's base URL, as in http://gpu:8000/v1")
    if not parts.hostname or parts.fragment:
        raise ValueError(f"an engine's URL has a host and no `#` part, unlike {without_credentials(address)!r}")
    shorter = path.removesuffix("/v1").rstrip("/")
    return parts._replace(path=path if _VERSION.search(shorter) else shorter).geturl()


def engine_endpoint(base: str, path: str) -> str:
    """The URL of one of OpenAI's paths below the base URL of an engine."""
    parts = urlsplit(base)
    versioned = _VERSION.search(parts.path) or _DEPLOYMENT.search(parts.path)
    return parts._replace(path=f"{parts.path}{'' if versioned else '/v1'}{path}").geturl()


def without_credentials(url: str) -> str:
    return re.sub(r"(?<=://)[^/?#]*@", "", url, count=1)


class Replicas(DeclaredValue):
    """Bounds within which Ray Serve scales the role's deployment; with a `min` of 0 it starts at its first use."""

    min: int = Field(default=1, ge=0, le=1_000)
    max: int = Field(default=1, ge=1, le=1_000)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, above max, which is {self.max}")
        return self


_Price = Annotated[Amount, Field(le=1_000_000, decimal_places=6)]


class EnginePrices(Prices, frozen=True, extra="forbid"):
    """Prices as a roles file declares them, per million tokens."""

    prompt: _Price
    cached: _Price | None = None
    completion: _Price


class EngineSpec(DeclaredValue):
    """An OpenAI-compatible engine. `name` is its key under `engines`; an engine that is given by its URL has none."""

    name: str | None = None
    url: Annotated[str, AfterValidator(engine_base)]
    api_key_env: str | None = Field(
        default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="Environment variable with its key"
    )
    api_key_file: Annotated[str, AfterValidator(absolute)] | None = Field(
        default=None, description="Absolute path of a file with its key; a change is read within seconds"
    )
    headers: dict[str, str] = Field(default={}, repr=False, description="Sent with every request; not for secrets")
    model: str | None = Field(default=None, description="Model for roles and agents that name none")
    structured: Structured | None = Field(
        default=None, description="How it is made to answer in a form; found out when absent"
    )
    max_in_flight: int | None = Field(
        default=None, ge=1, le=10_000, description="Its requests at once, per replica of a role; others wait"
    )
    context: int | None = Field(
        default=None, ge=64, le=2**31, description="Tokens of prompt and answer that it takes; else what its list says"
    )
    sees: tuple[Literal["text", "image"], ...] | None = Field(
        default=None, description="What its model reads; without `image`, requests with pictures are refused"
    )
    prices: EnginePrices | None = Field(default=None, description="Cost of its tokens, per million")
    proxy: str | None = Field(default=None, repr=False, description="http(s) URL of the proxy before it")
    connect_timeout_s: float = Field(default=2.0, gt=0, le=60, description="Seconds for a connection")
    idle_timeout_s: float = Field(default=20.0, gt=0, le=3_600, description="Seconds without a byte of a stream")

    @field_validator("headers")
    @classmethod
    def _sendable(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if name.lower() == "authorization":
                raise ValueError("Authorization is sent from api_key_env or api_key_file; name one of them instead")
            if name.lower() in _OWN_HEADERS:
                raise ValueError(f"{name} is set by the gateway; remove it")
            if _HEADER_NAME.fullmatch(name) is None or _HEADER_VALUE.fullmatch(value) is None:
                raise ValueError(f"{name[:64]!r} or its value has a character that no header may have; remove it")
        return headers

    @field_validator("proxy")
    @classmethod
    def _http_proxy(cls, proxy: str | None) -> str | None:
        if proxy is not None and not (proxy.startswith(("http://", "https://")) and urlsplit(proxy).hostname):
            raise ValueError("a proxy is an http(s) URL; SOCKS needs one that speaks HTTP before it")
        return proxy

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("it has both api_key_env and api_key_file; remove one of them")
        if self.key_source is not None and self.address != self.url:
            raise ValueError("its url has a user or password and it has a key; remove one of them")
        return self

    @property
    def deployment(self) -> str | None:
        """The name of the model in the URL of an Azure deployment."""
        match = _DEPLOYMENT.search(urlsplit(self.url).path)
        return match and match[1]

    @property
    def address(self) -> str:
        return without_credentials(self.url)

    @property
    def label(self) -> str:
        return f"{self.name} ({self.address})" if self.name else self.address

    @property
    def key_source(self) -> str | None:
        if self.api_key_env is not None:
            return f"api_key_env {self.api_key_env}"
        return None if self.api_key_file is None else f"api_key_file {self.api_key_file}"

    @property
    def key_remedy(self) -> str:
        if self.api_key_file is not None:
            return f"correct the key in {self.api_key_file}, which is read anew within seconds"
        if self.api_key_env is not None:
            return f"correct {self.api_key_env} in the environment of the agents, and restart them"
        default = "" if self.name else f"set {DEFAULT_KEY_VARIABLE} for engines of VLLM_URL and --engine-url, or "
        return f"{default}give it api_key_file or api_key_env under `engines` of the roles file"


def api_key(spec: EngineSpec, environment: Mapping[str, str], read: Callable[[str], str], file: str) -> str | None:
    """The key of an engine that `file` declares; None for an engine without a key. `read` returns the text of a file.

    Raises InvalidRequest, which has no part of the key, for a missing, empty or malformed one.
    """

    def refused(field: str, fault: str) -> InvalidRequest:
        where = f"engines.{spec.name}.{field}" if spec.name else DEFAULT_KEY_VARIABLE
        return InvalidRequest(f"{file}: {where}: {fault}" if spec.name else f"{where}: {fault}", where)

    if spec.api_key_env is not None:
        key, field, source = environment.get(spec.api_key_env, ""), "api_key_env", f"variable {spec.api_key_env}"
        remedy = "set it where the agents run and where they are deployed"
    elif spec.api_key_file is not None:
        field, source, remedy = "api_key_file", spec.api_key_file, "write the key into it"
        try:
            key = read(spec.api_key_file)
        except (OSError, ValueError) as exc:
            # Without `from`: the error of a wrong encoding quotes the file.
            fault = getattr(exc, "strerror", None) or type(exc).__name__
            raise refused(field, f"{source} cannot be read ({fault}); correct the path or its permissions") from None
    else:
        return None
    key = key.strip()
    if not key:
        raise refused(field, f"{source} is {'empty' if field == 'api_key_file' else 'not set or empty'}; {remedy}")
    if _KEY.fullmatch(key) is None:
        raise refused(field, f"{source} holds more than one line of printable ASCII without spaces; correct it")
    return key


def _engine(reference: object, info: ValidationInfo) -> object:
    """The engine that a role names: a declared one by its name or URL, or one that has only a URL."""
    if not isinstance(reference, str):
        return reference
    context: dict[str, dict[str, EngineSpec]] = info.context or {}
    declared = context.get("engines", {})
    if reference in declared:
        return declared[reference]
    if "://" not in reference:
        known = f"declared are {', '.join(declared)}" if declared else "none is declared under `engines`"
        raise ValueError(f"no engine is called {reference!r}; {known}. Name one of them, or give an http(s) URL")
    url = engine_base(reference)
    return next((spec for spec in declared.values() if spec.url == url), {"url": url})


_RoleEngine = Annotated[EngineSpec, BeforeValidator(_engine)]


AgentRunner = Literal["ray", "nats", "local"]


class Role(DeclaredValue):
    """One role: the persona, model and engines of its agents, and the bounds of its replicas."""

    persona: str = Field(
        min_length=1,
        max_length=PERSONA_CHARS_MAX,
        description="The agent's persona, in all its prompts: after the rules if it is the only role, else last",
    )
    model: str | None = Field(default=None, description="Model name; the first that the engine serves when absent")
    engines: tuple[_RoleEngine, ...] = Field(
        default=(), description="Names of declared engines, or base URLs; the default ones when empty"
    )
    fallback: tuple[_RoleEngine, ...] = Field(
        default=(), description="Engines that are asked only while none of `engines` can take a call"
    )
    sampling: Sampling = Field(default=Sampling(), description="Used where a request names none")
    replicas: Replicas = Replicas()
    queue_max: int | None = Field(
        default=None,
        ge=1,
        description="Deliberations accepted and unfinished that need the role; above it POST answers 429",
    )
    hedge: bool = Field(
        default=False, description="Ask a second engine when the first is slower than 95 % of like calls (2 % of calls)"
    )
    concurrency: int = Field(
        default=CONCURRENCY, ge=1, le=10_000, description="Calls in flight to engines, per replica"
    )
    agents: AgentRunner | None = Field(
        default=None,
        description="`ray` for replicas in Ray Serve, `nats` for workers, `local` for the coordinator's process; that "
        "of AGENTS when absent",
    )
    tools: Annotated[tuple[RoleTools, ...], AfterValidator(distinct)] = Field(
        default=(), max_length=16, description="Tool servers, and which of their tools the role's agents may use"
    )

    @property
    def unpriced_engine(self) -> str | None:
        """The label of an engine without prices, or of the default ones; None when all have prices."""
        if not self.engines:
            return "the default engines"
        return next((spec.label for spec in (*self.engines, *self.fallback) if spec.prices is None), None)

    def dearest(self, name: str) -> RolePrices | None:
        """The highest prices of the role's tokens; None when an engine lacks prices."""
        prices = [spec.prices for spec in (*self.engines, *self.fallback) if spec.prices is not None]
        if self.unpriced_engine is not None:
            return None
        return RolePrices(
            role=name,
            currency=prices[0].currency,
            prompt=max(max(price.prompt, price.cached or price.prompt) for price in prices),
            completion=max(price.completion for price in prices),
        )

    @field_validator("sampling", mode="before")
    @classmethod
    def _known(cls, sampling: Sampling | dict[str, object]) -> Sampling | dict[str, object]:
        # A Sampling drops what it does not know, because facts may come from newer writers. A file's typo is a fault.
        if isinstance(sampling, dict) and (unknown := sampling.keys() - Sampling.model_fields.keys()):
            raise ValueError(f"unknown: {', '.join(sorted(map(str, unknown)))}")
        return sampling

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if self.fallback and not self.engines:
            raise ValueError("fallback needs engines; name the first choice there")
        urls = [spec.url for spec in (*self.engines, *self.fallback)]
        if repeated := next((url for url in urls if urls.count(url) > 1), None):
            raise ValueError(f"{without_credentials(repeated)} stands twice in engines and fallback; remove one")
        return self


class RoleTable(DeclaredValue):
    """All declared engines and roles by name."""

    engines: dict[str, EngineSpec] = {}
    roles: dict[str, Role] = Field(min_length=1)

    @field_validator("engines")
    @classmethod
    def _known_to_roles(cls, engines: dict[str, EngineSpec], info: ValidationInfo) -> dict[str, EngineSpec]:
        named: dict[str, EngineSpec] = {}
        for name, spec in engines.items():
            if re.fullmatch(ENGINE_PATTERN, name) is None:
                raise ValueError(f"an engine's name matches {ENGINE_PATTERN}, not {name!r}")
            if spec.name is not None:
                raise ValueError(f"{name}: its name stands before its fields; remove `name`")
            same = next((other for other, known in named.items() if known.url == spec.url), None)
            if same is not None:
                raise ValueError(f"{name} has the url of {same}; remove one, and let roles name their models")
            named[name] = spec.model_copy(update={"name": name})
        currencies = {spec.prices.currency: name for name, spec in named.items() if spec.prices is not None}
        if len(currencies) > 1:
            clash = " and ".join(f"{name} in {currency}" for currency, name in sorted(currencies.items()))
            raise ValueError(f"{clash}: costs of different currencies have no sum; give all prices in one currency")
        # The validation of roles, which comes after, looks names up there.
        context: Any = info.context
        context["engines"] = named
        return named

    @field_validator("roles")
    @classmethod
    def _named(cls, roles: dict[str, Role]) -> dict[str, Role]:
        for name in roles:
            if re.fullmatch(ROLE_PATTERN, name) is None:
                raise ValueError(f"a role's name matches {ROLE_PATTERN}, not {name!r}")
        return roles


def parse_roles(content: object, file: str = "roles.yaml") -> Mapping[str, Role]:
    """Roles by name from the parsed content of a roles file; raises InvalidRequest naming file, field and fault."""
    try:
        return RoleTable.model_validate(content, context={}).roles
    except ValidationError as exc:
        first: Any = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "roles.yaml"
        detail, remedy = fault_of(first)
        raise InvalidRequest(f"{file}: {where}: {detail}{f'. {remedy}' if remedy else ''}", where) from exc


def placed(roles: Mapping[str, Role], default: AgentRunner) -> Mapping[str, Role]:
    """The roles with the runner of each; a role in the coordinator's process has one replica there.

    Raises InvalidRequest for roles in Ray beside roles in the coordinator's process: no coordinator reaches both.
    """
    runners = {name: role.agents or default for name, role in roles.items()}
    in_ray, local = (next((name for name in runners if runners[name] == runner), None) for runner in ("ray", "local"))
    if in_ray and local:
        raise InvalidRequest(
            f"role {in_ray} runs in Ray Serve, and role {local} in the process of a coordinator without Ray",
            f"roles.{in_ray}.agents",
            f"give {in_ray} `agents: local` or `agents: nats`, or {local} another runner than `local`",
        )
    one = {"replicas": Replicas(min=1, max=1)}
    return {
        name: role.model_copy(update={"agents": runners[name], **(one if runners[name] == "local" else {})})
        for name, role in roles.items()
    }


def run_by(runner: AgentRunner, roles: Mapping[str, Role]) -> tuple[str, ...]:
    """The names of those of some placed roles that a runner runs."""
    return tuple(name for name, role in roles.items() if role.agents == runner)


def engines_of(roles: Mapping[str, Role]) -> Iterable[EngineSpec]:
    named = {spec.url: spec for role in roles.values() for spec in (*role.engines, *role.fallback)}
    return named.values()


def currency_of(roles: Mapping[str, Role], setting: str) -> str:
    """Returns the currency of all prices. Raises InvalidRequest with the setting's name if an engine has no price."""
    currency = ""
    for name, role in roles.items():
        prices = role.dearest(name)
        if prices is None:
            raise InvalidRequest(
                f"{setting}: role {name} asks {role.unpriced_engine}, without prices. Declare `prices` of all engines "
                f"of all roles in ROLES_FILE, 0 for a free one, or leave {setting} out."
            )
        currency = prices.currency
    return currency
