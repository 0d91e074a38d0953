"""Messages of MCP, and the headers that they need."""

from typing import Any

MODERN, LEGACY = "2026-07-28", "2025-11-25"

META = "io.modelcontextprotocol"


def message(method: str, params: dict[str, Any] | None = None, *, extensions: Any = None) -> dict[str, Any]:
    """A request of 2026-07-28."""
    capabilities = {"extensions": extensions} if extensions else {}
    meta = {f"{META}/protocolVersion": MODERN, f"{META}/clientCapabilities": capabilities}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**(params or {}), "_meta": meta}}


def headers_for(sent: dict[str, Any], **more: str) -> dict[str, str]:
    params = sent.get("params", {})
    named = params.get("name") or params.get("uri") or params.get("taskId")
    return {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": sent["method"],
        **({"Mcp-Name": named} if named else {}),
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"name": tool, "arguments": arguments}
