"""Tool servers as a role declares them, and how far an agent's calls may use their tools."""

import re
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from app.deliberation.specification import Token, ToolAllowance

TOOL_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"
"""The names that engines take in a request's `tools`."""
RESULT_BYTES_MAX = 131_072
HISTORY_TOOLS = ("diff", "git_log")
WORKSPACE_TOOLS = ("list_files", "run_tests", "read_file", "search", *HISTORY_TOOLS, "run")
"""The tools of every agent of a deliberation about a git repository, unless its request narrows them."""
FILES_TOOLS = tuple(name for name in WORKSPACE_TOOLS if name not in HISTORY_TOOLS)
"""The same where the request sends the files, which have no history."""


def engine_name(name: str) -> str:
    """A tool's name as engines are offered it: `files.read` and `files/read` become `files_read`."""
    return re.sub("[./:]", "_", name)


ToolName = Annotated[str, Field(pattern=TOOL_PATTERN), BeforeValidator(lambda name: engine_name(str(name)))]


class DeclaredValue(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError("give an absolute path, because agents run in directories of their own")
    return path


def _http(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a tool server's URL begins with http:// or https:// and has a host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL is shown to users; move its user and password into headers_file")
    return url


class McpServer(DeclaredValue):
    """A server of the Model Context Protocol: at a URL (streamable HTTP or SSE), or a command (standard streams)."""

    name: Token
    url: Annotated[str, AfterValidator(_http)] | None = None
    command: tuple[str, ...] | None = Field(default=None, min_length=1, description="The program and its arguments")
    headers_file: Annotated[str, AfterValidator(absolute)] | None = Field(
        default=None, description="Absolute path of a file with a `Name: value` on each line; read at each connection"
    )
    env_file: Annotated[str, AfterValidator(absolute)] | None = Field(
        default=None, description="Absolute path of a file with `NAME=value` on each line; read at each start"
    )
    concurrency: int = Field(
        default=16, ge=1, le=1_024, description="Uses at once by each replica; more of them wait, tenants in turn"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.url is None) == (self.command is None):
            raise ValueError("give either url or command")
        if self.command is not None and self.headers_file is not None:
            raise ValueError("a command takes no headers; give env_file in place of headers_file")
        if self.url is not None and self.env_file is not None:
            raise ValueError("a URL takes no environment; give headers_file in place of env_file")
        return self

    @property
    def address(self) -> str:
        """The URL, or the program without its arguments, which may hold secrets."""
        return self.url if self.command is None else self.command[0]  # pyright: ignore[reportReturnType] -- one is set


class ToolLimits(DeclaredValue):
    """Limits of one server's tools in one call of an agent: uses, seconds and bytes of results, each in all."""

    calls: int = Field(default=8, ge=1, le=64)
    seconds: float = Field(default=60.0, gt=0, le=3_600)
    bytes: int = Field(default=65_536, ge=1_024, le=RESULT_BYTES_MAX)


class RoleTools(DeclaredValue):
    """The tools of one server that a role's agents may use."""

    mcp: McpServer
    allow: tuple[ToolName, ...] = Field(min_length=1, max_length=64, description="Names of its tools")
    per_call: ToolLimits = ToolLimits()


WORKSPACE_LIMITS = ToolLimits(calls=8, seconds=120)


def distinct(tools: tuple[RoleTools, ...]) -> tuple[RoleTools, ...]:
    """The tools, unless two servers or two tools have one name."""
    for what, names in (
        ("server", [role_tools.mcp.name for role_tools in tools]),
        ("tool", [name for role_tools in tools for name in role_tools.allow]),
    ):
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"the {what} {repeated} stands twice in tools; remove one")
    return tools


def allowance(
    tools: tuple[RoleTools, ...], narrowed: list[str] | None, workspace: tuple[str, ...] = ()
) -> ToolAllowance | None:
    """How far a call may use the tools of a role and of a workspace, or those of them that a request names.

    None where it may use none.
    """
    allowed = [(role_tools.allow, role_tools.per_call) for role_tools in tools]
    allowed.append((workspace, WORKSPACE_LIMITS))
    usable = [
        (names, per_call)
        for allow, per_call in allowed
        if (names := [name for name in allow if narrowed is None or name in narrowed])
    ]
    if not usable:
        return None
    return ToolAllowance(
        names=tuple(dict.fromkeys(name for names, _ in usable for name in names)),
        uses=sum(limits.calls for _, limits in usable),
        bytes=sum(limits.bytes for _, limits in usable),
    )
