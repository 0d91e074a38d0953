"""The span of one use of a tool, with the attributes of OpenTelemetry's GenAI conventions."""

from datetime import timedelta

from app.deliberation.facts import ToolUsed
from app.observability import conventions as names
from app.observability.trace_context import SpanRef, span_id_of
from app.observability.traces import Attributes, RecordedSpan

# The value of the conventions for a tool that the agent uses itself.
_EXTENSION = "extension"


def tool_span(used: ToolUsed, agent: SpanRef, *, content: bool) -> RecordedSpan:
    """The span below the call's; with `content` it holds the arguments and the result as they are recorded."""
    recorded: Attributes = {names.TOOL_CALL_ARGUMENTS: used.arguments, names.TOOL_CALL_RESULT: used.text}
    problem = used.problem.code if used.problem else "tool_error" if used.failed else None
    return RecordedSpan(
        # Without a name where the model named no tool of its own.
        name=f"{names.EXECUTE_TOOL} {used.tool}".rstrip(),
        ref=SpanRef(agent.trace_id, span_id_of(used.deliberation_id, "tool", used.call_id, used.number)),
        parent_id=agent.span_id,
        began_at=used.ts - timedelta(milliseconds=used.duration_ms),
        ended_at=used.ts,
        attributes={
            names.OPERATION_NAME: names.EXECUTE_TOOL,
            names.CONVERSATION_ID: used.deliberation_id,
            names.TOOL_NAME: used.tool or None,
            names.TOOL_TYPE: _EXTENSION,
            names.TOOL_CALL_ID: used.tool_call_id,
            names.TOOL_SERVER: used.server or None,
            names.CALL_ID: used.call_id,
            **(recorded if content else {}),
        },
        error=problem,
    )
