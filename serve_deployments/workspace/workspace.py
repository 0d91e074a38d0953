"""The toolbox of a deliberation's workspace: the arguments and the result of each tool."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from app.control_characters import has_control
from app.deliberation.calls import Call, StageRequest
from app.deliberation.errors import SandboxUnavailable
from app.deliberation.lenient_arguments import as_meant
from app.deliberation.ports import Journal
from app.deliberation.tools import FILES_TOOLS, WORKSPACE_LIMITS, WORKSPACE_TOOLS
from app.workspace.git import GitFailed
from serve_deployments.sandbox.checks import Sandbox
from serve_deployments.tools.toolbox import GrantedTools, Tool, ToolFailure, ToolResult
from serve_deployments.workspace.copies import Copies
from serve_deployments.workspace.programs import run_program, run_tests_program
from serve_deployments.workspace.repository import LINES_MAX, Repository, RepositoryFault, readable
from serve_deployments.workspace.sources import COMMITS, Fetches, RepositoryCommit, RequestFiles, Source

SERVER = "workspace"
GIT_WITHIN_S = 10.0
RUN_WITHIN_S = 30.0
PATH_CHARS_MAX = 1_024
PATTERN_CHARS_MAX = 500
CODE_CHARS_MAX = 32_768


def _path(path: str) -> str:
    trimmed = path.removesuffix("/").removeprefix("./")
    if trimmed in ("", "."):
        return ""
    if has_control(trimmed) or {"", ".", ".."} & set(trimmed.split("/")):
        raise ValueError("a path is relative to the workspace's root, without `..` and `//`")
    return trimmed


def _one_line(text: str) -> str:
    if has_control(text.replace("\t", " ")):
        raise ValueError("it must be one line without control characters")
    return text


_Path = Annotated[str, Field(max_length=PATH_CHARS_MAX), AfterValidator(_path)]
_Anywhere = Annotated[_Path, Field(description="A file or a directory; empty for all")]


class _Runner(NamedTuple):
    """Runs the programs of a tenant."""

    sandbox: Sandbox
    tenant: str


class _Use(BaseModel):
    """The arguments of a use; the docstring of each subclass describes its tool to the model."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    tool: ClassVar[str]
    within_s: ClassVar[float] = GIT_WITHIN_S
    sandboxed: ClassVar[bool] = False

    async def text(self, repository: Repository, runner: _Runner) -> str:
        raise NotImplementedError


class _ListFiles(_Use):
    """List the files of the workspace, or of one directory, with their sizes."""

    tool = "list_files"

    path: _Anywhere = ""

    async def text(self, repository: Repository, runner: _Runner) -> str:
        return await repository.list_files(self.path)


class _ReadFile(_Use):
    """Read lines of a text file."""

    tool = "read_file"

    path: Annotated[_Path, Field(min_length=1)]
    first_line: Annotated[int, Field(ge=1, le=10**7, description="The first line is 1")] = 1
    lines: Annotated[int, Field(ge=1, le=LINES_MAX)] = 400

    async def text(self, repository: Repository, runner: _Runner) -> str:
        return await repository.read_file(self.path, self.first_line, self.lines)


class _Search(_Use):
    """Find lines that contain a text, or match a Perl-compatible regular expression."""

    tool = "search"

    pattern: Annotated[str, Field(min_length=1, max_length=PATTERN_CHARS_MAX), AfterValidator(_one_line)]
    path: _Anywhere = ""
    regex: bool = False
    ignore_case: bool = False

    async def text(self, repository: Repository, runner: _Runner) -> str:
        options = {"regex": self.regex, "ignore_case": self.ignore_case}
        return await repository.search(self.pattern, self.path, **options)


class _Diff(_Use):
    """Show the difference between an earlier commit and the workspace; by default the last commit's change."""

    tool = "diff"

    base: Annotated[str, Field(pattern="^([0-9a-f]{4,40})?$", description="An id from git_log")] = ""
    path: _Anywhere = ""

    async def text(self, repository: Repository, runner: _Runner) -> str:
        return await repository.diff(self.base, self.path)


class _GitLog(_Use):
    """List the last commits: id, date, author, and the first line of the message."""

    tool = "git_log"

    path: _Anywhere = ""
    count: Annotated[int, Field(ge=1, le=COMMITS)] = 20

    async def text(self, repository: Repository, runner: _Runner) -> str:
        return await repository.git_log(self.path, self.count)


class _RunTests(_Use):
    """Run the Python tests of a copy of the workspace by unittest; without network and installed packages."""

    tool = "run_tests"
    within_s = RUN_WITHIN_S
    sandboxed = True

    path: _Anywhere = ""
    only: Annotated[str, Field(max_length=200, description="Only tests whose names contain this text")] = ""

    async def text(self, repository: Repository, runner: _Runner) -> str:
        return await _sandboxed(run_tests_program(self.path, self.only), repository, runner)


class _Run(_Use):
    """Run a Python program in a copy of the workspace, without network and installed packages; shows its output."""

    tool = "run"
    within_s = RUN_WITHIN_S
    sandboxed = True

    code: Annotated[str, Field(min_length=1, max_length=CODE_CHARS_MAX)]

    async def text(self, repository: Repository, runner: _Runner) -> str:
        return await _sandboxed(run_program(self.code), repository, runner)


async def _sandboxed(program: str, repository: Repository, runner: _Runner) -> str:
    """The output of a program that ran in a copy of its own, which is removed after it."""
    left_s = repository.until_s - asyncio.get_running_loop().time()
    output = await runner.sandbox.run(program, runner.tenant, left_s, repository.unpack)
    text = readable(output.text.encode())
    return f"{text}\n[{output.reason}]".strip() if output.reason else text or "[it printed nothing]"


def _schema(use: type[_Use]) -> Mapping[str, Any]:
    """The JSON Schema of a tool's arguments, without titles that repeat names."""
    schema = use.model_json_schema()
    properties = {
        name: {key: value for key, value in declared.items() if key != "title"}
        for name, declared in schema["properties"].items()
    }
    required = schema.get("required", [])
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_USES: Mapping[str, type[_Use]] = {
    use.tool: use for use in (_ListFiles, _RunTests, _ReadFile, _Search, _Diff, _GitLog, _Run)
}
# All read one commit, or work on a copy: a second use changes nothing.
TOOLS = tuple(
    Tool(SERVER, name, (use.__doc__ or "").strip(), _schema(use), repeatable=True) for name, use in _USES.items()
)


class WorkspaceToolbox:
    """The `Toolbox` of one deliberation's workspace."""

    def __init__(self, copies: Copies, sandbox: Sandbox, source: Source) -> None:
        self._copies = copies
        self._runner = _Runner(sandbox, source.tenant)
        self._source = source

    async def tools(self) -> Sequence[Tool]:
        return TOOLS

    async def use(self, name: str, arguments: Mapping[str, Any], within_s: float) -> ToolResult:
        """Use a tool once; a fault of its arguments or of the repository is a result that has `failed`.

        Raises ToolFailure as `Copies.opened` does, and `timeout`.
        """
        if (kind := _USES.get(name)) is None:
            return ToolResult(f"there is no tool {name!r}: the tools are {', '.join(_USES)}", failed=True)
        try:
            meant = as_meant(arguments, kind, clamped=True)
            use = kind.model_validate({field: value for field, value in meant.items() if value is not None})
        except ValidationError as invalid:
            return ToolResult(_faults(invalid), failed=True)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        async with self._copies.opened(self._source, within_s) as directory:
            until_s = min(until_s, loop.time() + use.within_s)
            repository = Repository(directory, self._source.revision, until_s)
            try:
                async with self._turn(use, until_s):
                    return ToolResult(await use.text(repository, self._runner), failed=False)
            except RepositoryFault as fault:
                return ToolResult(str(fault), failed=True)
            except GitFailed as failure:
                raise ToolFailure("timeout", str(failure)) from failure
            except OSError as error:
                raise ToolFailure("server_away", f"no process for the tool: {error.strerror or error}") from error
            except SandboxUnavailable as unavailable:
                raise ToolFailure("server_away", str(unavailable)) from unavailable

    @asynccontextmanager
    async def _turn(self, use: _Use, until_s: float) -> AsyncGenerator[None]:
        """A place among the gits that read; programs have slots of their own. Raises ToolFailure where none is free."""
        async with AsyncExitStack() as stack:
            if not use.sandboxed:
                try:
                    async with asyncio.timeout_at(until_s):
                        await stack.enter_async_context(self._copies.reads.slot(self._source.tenant))
                except TimeoutError:
                    raise ToolFailure("timeout", "other uses kept the workspaces busy", made=False) from None
            yield


def _faults(invalid: ValidationError) -> str:
    faults = invalid.errors(include_input=False, include_url=False)
    places = ((".".join(map(str, fault["loc"])), fault["msg"].removeprefix("Value error, ")) for fault in faults)
    return "; ".join(f"{place}: {message}" for place, message in places)


class Workspaces:
    """The workspaces that a replica's calls may read, over the node's copies and the replica's sandbox."""

    def __init__(self, copies: Copies, sandbox: Sandbox, journal: Journal, fetches: Fetches) -> None:
        self._copies = copies
        self._sandbox = sandbox
        self._journal = journal
        self._fetches = fetches

    def granted(self, request: StageRequest, call: Call) -> Sequence[GrantedTools]:
        """The workspace's tools that a call may use; none without a workspace."""
        workspace, offered = request.workspace, WORKSPACE_TOOLS
        if workspace is None:
            return ()
        if workspace == "files":
            offered, source = FILES_TOOLS, RequestFiles(self._journal, request.deliberation_id, request.tenant)
        else:
            source = RepositoryCommit(self._fetches, workspace, request.tenant)
        names = frozenset(offered) & frozenset(call.tools.names if call.tools is not None else ())
        toolbox = WorkspaceToolbox(self._copies, self._sandbox, source)
        return (GrantedTools(SERVER, toolbox, names, WORKSPACE_LIMITS),) if names else ()

    async def keep(self) -> None:
        """Remove copies that are not used any more, until cancelled."""
        await self._copies.keep()
