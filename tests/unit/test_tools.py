"""Tools as the roles file declares them, and as a request narrows them."""

from typing import Any

import pytest

from app.deliberation.errors import InvalidRequest
from app.deliberation.roles import parse_roles
from app.deliberation.specification import ToolAllowance
from app.deliberation.tools import RoleTools, ToolLimits, allowance

BOOKS = {"mcp": {"name": "books", "url": "https://books:8000/mcp"}, "allow": ["look_up", "write"]}
SHELL = {"mcp": {"name": "shell", "command": ["run", "--all"]}, "allow": ["ls"], "per_call": {"calls": 2}}


def declared(*tools: Any) -> tuple[RoleTools, ...]:
    return parse_roles({"roles": {"DEV": {"persona": "p", "tools": list(tools)}}})["DEV"].tools


def test_a_role_declares_servers_by_url_or_command_with_limits() -> None:
    books, shell = declared(BOOKS, SHELL)
    assert (books.mcp.address, shell.mcp.address) == ("https://books:8000/mcp", "run"), "without its arguments"
    assert books.per_call == ToolLimits() and shell.per_call.calls == 2


@pytest.mark.parametrize(
    ("tools", "fault"),
    [
        ({**BOOKS, "mcp": {"name": "b"}}, "either url or command"),
        ({**BOOKS, "mcp": {**BOOKS["mcp"], "command": ["run"]}}, "either url or command"),
        ({**SHELL, "mcp": {**SHELL["mcp"], "headers_file": "/run/h"}}, "takes no headers"),
        ({**SHELL, "mcp": {**SHELL["mcp"], "env_file": "env"}}, "absolute path"),
        ({**BOOKS, "mcp": {**BOOKS["mcp"], "env_file": "/run/e"}}, "takes no environment"),
        ({**BOOKS, "mcp": {**BOOKS["mcp"], "concurrency": 0}}, "concurrency"),
        ({**BOOKS, "allow": ["files.read", "files_read"]}, "tool files_read stands twice"),
        ({**BOOKS, "mcp": {"name": "b", "url": "ftp://b"}}, "http"),
        ({**BOOKS, "mcp": {"name": "b", "url": "http://u:p@b"}}, "headers_file"),
        ({**BOOKS, "mcp": {**BOOKS["mcp"], "headers_file": "h"}}, "absolute path"),
        ({**BOOKS, "mcp": {**BOOKS["mcp"], "name": "A B"}}, "name"),
        ({**BOOKS, "allow": []}, "allow"),
        ({**BOOKS, "allow": ["a b"]}, "allow"),
        ({**BOOKS, "allow": ["a", "a"]}, "tool a stands twice"),
        ({**BOOKS, "per_call": {"calls": 0}}, "calls"),
        ({**BOOKS, "per_call": {"bytes": 10**9}}, "bytes"),
    ],
)
def test_a_wrong_declaration_is_refused_with_its_place_and_fault(tools: Any, fault: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        declared(tools)
    assert fault in str(refused.value) and "roles.DEV.tools" in str(refused.value)


def test_two_servers_of_a_role_have_different_names_and_tools() -> None:
    with pytest.raises(InvalidRequest, match="server books stands twice"):
        declared(BOOKS, {**SHELL, "mcp": {**SHELL["mcp"], "name": "books"}})


def test_an_allowance_is_what_the_request_leaves_of_the_roles_tools() -> None:
    tools = declared(BOOKS, SHELL)
    everything = ToolAllowance(names=("look_up", "write", "ls"), uses=8 + 2, bytes=2 * 65_536)
    assert allowance(tools, None) == everything
    assert allowance(tools, ["ls", "unknown"]) == ToolAllowance(names=("ls",), uses=2, bytes=65_536)
    assert allowance(tools, []) is None and allowance((), None) is None
