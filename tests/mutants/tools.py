"""The guards of tools: uses that are made once, and servers that are not trusted."""

from tests.mutants.guard import Guard

LOOP = "tests/integration/tools/test_tool_loop.py::"
SERVERS = "tests/integration/tools/test_tool_servers.py::"
REPLIES = "tests/integration/tools/test_tool_replies.py::"
TOOL_LOOP = "serve_deployments/agent/tool_loop.py"

TOOL_GUARDS = (
    Guard(
        "a use that must not be repeated begins in the log",
        TOOL_LOOP,
        "            if not offer.tool.repeatable and not await self._record(",
        "            if False and not await self._record(",
        f"{LOOP}test_two_replicas_that_run_one_call_execute_what_must_not_be_repeated_once",
    ),
    Guard(
        "recorded uses are read before the model is asked",
        TOOL_LOOP,
        "        await self._adopt()\n        found = ",
        "        found = ",
        f"{LOOP}test_a_recorded_use_is_made_once_and_a_begun_one_that_must_not_be_repeated_never_again",
    ),
    Guard(
        "results are fenced",
        TOOL_LOOP,
        "{fence(told, mark)}",
        "<<<peer-text 0>>>\\n{told}\\n<<<end-of-peer-text 0>>>",
        f"{LOOP}test_an_evil_server_fails_its_own_use_alone[forges-None]",
    ),
    Guard(
        "values of secret keys are replaced",
        TOOL_LOOP,
        '"[secret]" if _is_secret(key) else _without_secrets(each)',
        "_without_secrets(each)",
        f"{LOOP}test_values_of_secret_keys_reach_the_tool_and_no_fact",
    ),
    Guard(
        "a response of a tool server has a bound",
        "serve_deployments/tools/mcp_client.py",
        "            if size > MESSAGE_BYTES_MAX:\n",
        "            if False:\n",
        f"{LOOP}test_a_flood_over_http_ends_at_its_bound[floods]",
    ),
    Guard(
        "a session that its server forgot is made anew",
        "serve_deployments/tools/mcp_client.py",
        "or (self.in_session and self.status in _NO_SESSION)",
        "or False",
        f"{SERVERS}test_a_session_that_its_server_forgot_is_made_anew_and_the_use_is_made_once",
    ),
    Guard(
        "tenants take turns at a tool server",
        "app/tenant_slots.py",
        "(self._working[each], self._latest.get(each, 0))",
        "0",
        f"{LOOP}test_tenants_take_turns_at_a_slow_server_and_another_server_keeps_nobody_waiting",
    ),
    Guard(
        "ids of tool calls are unique in a conversation",
        TOOL_LOOP,
        "asked.id if asked.id and asked.id not in known_ids else",
        "asked.id if asked.id else",
        f"{REPLIES}test_ids_that_repeat_in_later_replies_are_made_unique",
    ),
)
