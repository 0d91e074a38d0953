"""The simulator as an obedient model: it makes the tool calls that a task orders, and answers after them.

`python -m tests.attack.obedient_engine` prints the line of the simulator's server, and serves until it is killed.
"""

import base64
import json
import re
import socket
from collections.abc import Sequence
from typing import Any

from serve_deployments.simulator.__main__ import serve
from serve_deployments.simulator.script import FaultKind, Script, ScriptedToolCall
from serve_deployments.simulator.server import app
from serve_deployments.simulator.server.completion import (
    CompletionChoice,
    RenderedPrompt,
    SimulatorSettings,
    complete,
)
from serve_deployments.simulator.server.requests import CompletionRequest

_ORDER = re.compile(r"order:([A-Za-z0-9+/=]+)")
# Without tool calls of a script the simulator calls the offered tools by itself.
_NO_ORDER = Script(tool_uses=0)

Use = tuple[str, dict[str, Any]]


def ordering(uses: Sequence[Use]) -> str:
    """A task that orders uses of tools, each a name and arguments, one after the other."""
    written = json.dumps([{"name": name, "arguments": arguments} for name, arguments in uses])
    return f"Name a colour. order:{base64.b64encode(written.encode()).decode()}"


def _obeying(
    settings: SimulatorSettings,
    request: CompletionRequest,
    prompt: RenderedPrompt,
    script: Script,
    fault: FaultKind | None,
) -> list[CompletionChoice]:
    order = _ORDER.search("\n".join(prompt.texts))
    if order is None:
        return complete(settings, request, prompt, script.changed(_NO_ORDER), fault)
    uses = [ScriptedToolCall.model_validate(use) for use in json.loads(base64.b64decode(order[1]))]
    return complete(settings, request, prompt, script.changed(Script(tool_calls=tuple(uses))), fault)


if __name__ == "__main__":
    app.complete = _obeying
    serve(SimulatorSettings(model="simulated-obedient", max_model_len=1 << 20), socket.create_server(("127.0.0.1", 0)))
