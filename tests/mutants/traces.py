"""The guards of traces: complete after a crash, and without texts."""

from tests.mutants.guard import Guard

CHATS = "tests/integration/agent/test_chat_spans.py::"
COORDINATOR = "tests/integration/coordinator/test_coordinator.py::"

TRACES = (
    Guard(
        "spans are sent before the work is acknowledged",
        "serve_deployments/coordinator/coordinator.py",
        "            await self._tracer.flush()\n",
        "            pass\n",
        f"{COORDINATOR}test_a_coordinator_that_dies_before_its_spans_are_sent_leaves_them_to_its_successor",
    ),
    Guard(
        "prompts are in no span unless they are asked for",
        "serve_deployments/engine/chat_span.py",
        "(_content(choice) if self.tracer.captures_content else {})",
        "_content(choice)",
        f"{CHATS}test_a_request_is_a_chat_below_its_agents_call_and_names_it_to_the_engine",
    ),
    Guard(
        "arguments and results of tools are in no span unless they are asked for",
        "serve_deployments/agent/tool_span.py",
        "(recorded if content else {})",
        "recorded",
        "tests/integration/tools/test_tool_loop.py::"
        "test_each_use_is_a_span_below_that_of_its_call_and_is_counted[False]",
    ),
    Guard(
        "a chat is a request that the engine has",
        "serve_deployments/engine/chat_span.py",
        "            if body.written:\n",
        "            if True:\n",
        f"{CHATS}test_a_request_that_was_not_written_is_no_chat",
    ),
)
