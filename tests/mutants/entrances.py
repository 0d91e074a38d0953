"""The guards of the socket, of scopes and of origins: where each stands, and which test notices."""

from tests.mutants.guard import Guard

SOCKET = "app/routes/connections.py"
SOCKETS = "tests/components/routes/test_connections.py::"
HEADS = f"{SOCKETS}test_a_head_beyond_its_bounds_is_refused_with_a_problem_and_closed"
AMBIGUOUS = "tests/attack/test_requests.py::test_an_ambiguous_request_is_refused_and_its_connection_closed"
ANSWERS = "tests/components/access/test_answers.py::"
SITES = "tests/components/access/test_sites.py::"

FACADES = "tests/components/facades/"
HABITS = "tests/components/routes/test_client_habits.py::"
COMMANDS = "tests/components/cli/test_deliberations.py::"
ENGINE_KEYS = "tests/integration/engine/test_engine_keys.py::"
MACHINES = "tests/e2e/test_machines.py::"
REFUSED = "tests/integration/cli/test_machines.py::test_a_machine_is_refused_by_name_before_anything_starts"

QUOTES = "tests/components/routes/test_quotes.py::"

MCP = "tests/components/facades/test_mcp.py::"
MCP_TOOLS = "app/facades/mcp/tools.py"

A2A = "tests/components/facades/test_a2a.py::"
A2A_ROUTES = "app/facades/a2a/__init__.py"

ENTRANCES = (
    Guard(
        "a method of A2A that changes something needs the scope submit",
        A2A_ROUTES,
        'if call.method.startswith(READS) else ("submit", "read")',
        'if call.method else ("submit", "read")',
        f"{A2A}test_a_method_needs_its_scopes",
    ),
    Guard(
        "a task of A2A outlives its client's connection",
        A2A_ROUTES,
        "kept=True",
        "kept=False",
        f"{A2A}test_leaving_cancels_nothing[SendStreamingMessage]",
    ),
    Guard(
        "the agent card that needs no key shows no role",
        A2A_ROUTES,
        "    if extended:\n",
        "    if True:\n",
        f"{A2A}test_the_public_card_has_strategies_and_the_extended_one_roles",
    ),
    Guard(
        "a gateway that stops gives an A2A client its task",
        A2A_ROUTES,
        "council.told_to_the_end(ended) if ended else council.told()",
        "council.told_to_the_end(ended)",
        f"{A2A}test_a_gateway_that_stops_answers_with_the_unfinished_task",
    ),
    Guard(
        "a subscription repeats nothing that its task told",
        "app/facades/a2a/writer.py",
        "if state.last_sequence > self.known.last_sequence:",
        "if True:",
        f"{A2A}test_a_subscription_begins_with_the_task_as_it_is_and_goes_on_live",
    ),
    Guard(
        "a closed request of an MCP client cancels its deliberation",
        MCP_TOOLS,
        '        if arguments.get("idempotency_key") is None:\n',
        "        if False:\n",
        f"{MCP}test_closing_the_request_cancels_the_deliberation",
    ),
    Guard(
        "a deliberation with a client's key outlives the MCP client's request",
        MCP_TOOLS,
        '        if arguments.get("idempotency_key") is None:\n',
        "        if True:\n",
        f"{MCP}test_a_call_with_an_idempotency_key_goes_on_and_is_found_again",
    ),
    Guard(
        "a stopping gateway ends the waits of MCP clients, which would be cancelled with it",
        MCP_TOOLS,
        "        stopping = newer.status == 304 and took_s < hold_s - RETRY_S\n",
        "        stopping = False\n",
        f"{MCP}test_a_stopping_gateway_ends_a_wait_and_cancels_nothing",
    ),
    Guard(
        "a message of MCP is one request of its tenant, whatever it asks",
        "app/access/authorization.py",
        '        caller: Caller | None = scope.get("caller")\n',
        "        caller: Caller | None = None\n",
        f"{MCP}test_a_message_is_one_request_of_the_tenant",
    ),
    Guard(
        "a cancellation names its session: the ids of another one's requests repeat",
        "app/facades/mcp/rest.py",
        "encoded([session, request_id])",
        "encoded([request_id])",
        f"{MCP}test_a_notification_of_an_earlier_protocol_cancels_on_any_gateway",
    ),
    Guard(
        "only an operator cancels as one",
        "app/routes/deliberations.py",
        '    if asked.by == "operator" and "admin" not in caller.scopes:\n',
        "    if False:\n",
        "tests/components/routes/test_deliberations.py::test_only_an_operator_cancels_as_one[scopes0-403]",
    ),
    Guard(
        "a reason is kept on one line",
        "app/api/requests.py",
        "Annotated[str, AfterValidator(_on_one_line)]",
        "str",
        "tests/components/routes/test_deliberations.py::test_a_cancellation_says_who_stopped_it_and_why_on_one_line",
    ),
    Guard(
        "a key that may not read gets no history in a quote",
        "app/routes/deliberations.py",
        "quote(tenant, asked, read=read)",
        "quote(tenant, asked, read=True)",
        f"{QUOTES}test_a_key_that_may_not_read_gets_no_history",
    ),
    Guard(
        "a quote counts the schema that an engine may be shown",
        "app/deliberation/quote.py",
        "(own + _schema_bytes(self.call.output))",
        "own",
        "tests/oracles/strategies/test_every_quote.py::test_no_run_costs_more_than_its_quote[single]",
    ),
    Guard(
        "a quote bounds a vote whose members fail",
        "app/deliberation/quote.py",
        "    if bare.quorum > 2:\n",
        "    if False:\n",
        "tests/oracles/strategies/test_every_quote.py::test_failures_that_cost_more_calls_are_within_the_quote",
    ),
    Guard(
        "an engine's words are quoted without its key",
        "serve_deployments/engine/state.py",
        "self.key.redacted(content)[:DETAIL_CHARACTERS]",
        "content[:DETAIL_CHARACTERS]",
        f"{ENGINE_KEYS}test_no_error_holds_the_key_that_an_engine_repeats[500]",
    ),
    Guard(
        "a refused request is sent again only with another key",
        "serve_deployments/engine/client.py",
        "                if not await engine.key.refresh() and engine.key.headers == key:\n                    raise\n",
        "                raise\n",
        f"{ENGINE_KEYS}test_a_replaced_key_is_used_at_once_when_the_old_one_is_refused[True]",
    ),
    Guard(
        "calls avoid an engine that refuses its key, which answers sooner than any other",
        "serve_deployments/engine/pool.py",
        "        found = [engine for engine in found if not engine.refused_lately(now_s)] or found\n",
        "",
        f"{ENGINE_KEYS}test_the_fallback_is_asked_only_while_no_first_choice_can_take_a_call",
    ),
    Guard(
        "a head has a bounded size",
        SOCKET,
        "HEAD_BYTES_MAX = 65_536\n",
        "HEAD_BYTES_MAX = 65_536_000\n",
        f"{HEADS}[a-value-that-never-ends]",
    ),
    Guard(
        "a head has a bounded number of headers",
        SOCKET,
        "        if len(self.headers) > HEADERS_MAX:\n",
        "        if False:\n",
        f"{HEADS}[one-header-too-many]",
    ),
    Guard(
        "a target has a bounded size",
        SOCKET,
        "        if len(self.url) > TARGET_BYTES_MAX:\n",
        "        if False:\n",
        f"{HEADS}[a-target-one-byte-too-long]",
    ),
    Guard(
        "a connection without a head is closed",
        SOCKET,
        '        if self._table.enter(self, self.client[0] if self.client else ""):\n            self._start_timer()\n',
        '        if self._table.enter(self, self.client[0] if self.client else ""):\n            pass\n',
        f"{SOCKETS}test_a_connection_without_a_head_is_closed_after_its_time[nothing]",
    ),
    Guard(
        "a later head has its time too",
        SOCKET,
        '        elif self._timer is None and (self._part == "head" or self._head_bytes > 0):\n',
        "        elif False:\n",
        f"{SOCKETS}test_a_second_head_that_trickles_is_refused_after_its_time",
    ),
    Guard(
        "a head that a proxy may read differently is refused",
        SOCKET,
        "        if fault is not None:\n",
        "        if False:\n",
        f"{AMBIGUOUS}[two hosts]",
    ),
    Guard(
        "connections are bounded in all",
        SOCKET,
        "        elif self.opened >= self.connections_max:\n",
        "        elif False:\n",
        f"{SOCKETS}test_an_idle_connection_gives_way_to_a_new_one",
    ),
    Guard(
        "connections are bounded per client",
        SOCKET,
        "        if self._opened[address] >= self.per_client_max and address not in self._proxies:\n",
        "        if False:\n",
        f"{SOCKETS}test_a_client_at_its_bound_replaces_its_own_connections_alone",
    ),
    Guard(
        "requests are bounded per client behind a proxy",
        SOCKET,
        "        if self._working[client] >= self.per_client_max and client not in self._proxies:\n",
        "        if False:\n",
        f"{SOCKETS}test_a_client_behind_a_proxy_is_bounded_in_its_requests_under_way",
    ),
    Guard(
        "a client may not name itself before a proxy",
        SOCKET,
        "        return self._proxies.get_trusted_client_address(forwarded)[0] or address\n",
        '        return forwarded.partition(",")[0] or address\n',
        f"{SOCKETS}test_a_client_behind_a_proxy_is_bounded_in_its_requests_under_way",
    ),
    Guard(
        "a scope that is missing refuses the operation",
        "app/access/authorization.py",
        "        if missing:\n",
        "        if False:\n",
        f"{ANSWERS}test_an_answer_shows_only_what_the_scopes_allow",
    ),
    Guard(
        "without `read` a deliberation's content is withheld",
        "app/routes/deliberations.py",
        '    return "whole" if read else "receipt"\n',
        '    return "whole"\n',
        f"{ANSWERS}test_a_submit_only_key_gets_id_status_and_times",
    ),
    Guard(
        "without `read` a receiver's answers are withheld",
        "app/webhooks/routes.py",
        "    return _answered(delivery if read else narrowed(delivery, DeliveryReceipt), 202)\n",
        "    return _answered(delivery, 202)\n",
        f"{ANSWERS}test_a_redelivery_hides_the_receivers_answers_without_read",
    ),
    Guard(
        "a change without a credential comes from no other site",
        "app/access/authorization.py",
        '            if scope["method"] not in SAFE_METHODS and self._same_site(scope) is False:\n',
        "            if False:\n",
        f"{SITES}test_development_mode_refuses_changes_from_other_sites",
    ),
    Guard(
        "a session's change comes from this site",
        "app/access/authorization.py",
        '        if scope["method"] not in SAFE_METHODS and not self._same_site(scope):\n',
        "        if False:\n",
        f"{SITES}test_a_session_makes_no_changes_for_other_sites",
    ),
    Guard(
        "an origin is this host's",
        "app/access/origins.py",
        '    if origins and not _is_own(origins[0], scheme, headers.get("host", "")):\n',
        "    if False:\n",
        f"{SITES}test_an_origin_equals_scheme_host_and_port",
    ),
    Guard(
        "an origin has the request's scheme",
        "app/access/origins.py",
        " or named != scheme or",
        " or",
        f"{SITES}test_an_origin_equals_scheme_host_and_port",
    ),
    Guard(
        "a sibling domain is another site",
        "app/access/origins.py",
        '        return sites[0] == "same-origin"\n',
        "        return True\n",
        f"{SITES}test_development_mode_refuses_changes_from_other_sites",
    ),
    Guard(
        "another site's name for loopback is no Host",
        "app/routes/middleware.py",
        "(None if access.knows_host(scope) else ForeignHost())",
        "None",
        f"{SITES}test_a_rebound_name_cannot_read",
    ),
    Guard(
        "a preflight names few headers, each by a name",
        "app/access/origins.py",
        "        if len(names) > REQUESTED_HEADERS_MAX or not all(map(_HEADER_NAME.fullmatch, filter(None, names))):\n",
        "        if False:\n",
        f"{HABITS}test_a_preflight_without_names_or_a_listed_page_fails[no token]",
    ),
    Guard(
        "HEAD is answered where GET is",
        "app/routes/middleware.py",
        '        inner: Scope = {**scope, "method": "GET"} if head else scope\n',
        "        inner = scope\n",
        f"{HABITS}test_head_has_status_and_headers_of_get[/healthz]",
    ),
    Guard(
        "HEAD of a stream ends",
        "app/routes/middleware.py",
        '                await send({"type": "http.response.body", "body": b"", "more_body": False})\n',
        "                pass\n",
        f"{HABITS}test_head_of_a_stream_has_its_headers_and_ends",
    ),
    Guard(
        "blanks around a header's value are no part of it",
        SOCKET,
        'value.strip(b" \\t")',
        "value",
        f"{HABITS}test_a_cursor_is_read_as_the_standard_says[case B5b]",
    ),
    Guard(
        "a reading that is interrupted closes every part that began",
        "app/facades/moments.py",
        '            yield from self._cut(self.state, "interruption")\n',
        "            pass\n",
        f"{FACADES}test_moments.py::test_an_interruption_at_any_event_closes_every_part_before_its_error",
    ),
    Guard(
        "a run of AG-UI is cancelled when its client leaves, unless in the background",
        "app/facades/ag_ui/__init__.py",
        "kept=given.forwarded_props.background)",
        "kept=True)",
        f"{FACADES}test_ag_ui_routes.py::test_a_client_that_leaves_cancels_unless_in_the_background[False]",
    ),
    Guard(
        "a run of AG-UI takes no webhook, whose URL its door does not check",
        "app/facades/ag_ui/reader.py",
        '{"task", "evidence", "webhook"}',
        '{"task", "evidence"}',
        f"{FACADES}test_ag_ui_routes.py::test_refuses_by_name",
    ),
    Guard(
        "a client that joins a run gets a snapshot, not the past again",
        "app/facades/ag_ui/writer.py",
        "        if self._behind:\n",
        "        if False:\n",
        f"{FACADES}test_ag_ui_routes.py::test_whoever_joins_a_run_has_all_of_it",
    ),
    Guard(
        "a stream of a response goes on after the number that its client has seen",
        "app/facades/responses/writer.py",
        "if event.sequence_number > self._after:",
        "if True:",
        f"{FACADES}test_responses_writer.py::test_events_are_numbered_from_0_and_resume_after_any_of_them",
    ),
    Guard(
        "an interruption takes no number that the next reader would miss",
        "app/facades/responses/writer.py",
        ' if cut != "interruption":',
        ":",
        f"{FACADES}test_responses_writer.py::test_an_interruption_ends_the_stream_with_an_error_and_takes_no_number",
    ),
    Guard(
        "a user's one message is no conversation, whatever it looks like",
        "app/facades/openai_requests.py",
        "None if count == 1 else _MARK.search(task)",
        "_MARK.search(task)",
        f"{FACADES}test_responses_requests.py::test_one_message_of_a_user_cannot_pose_as_a_conversation",
    ),
    Guard(
        "a background response goes on without its client",
        "app/facades/responses/__init__.py",
        "kept=background)",
        "kept=False)",
        f"{FACADES}test_responses_routes.py::test_a_client_that_leaves_cancels_the_foreground_alone",
    ),
    Guard(
        "a waiting completion has chunks that clients count",
        "app/facades/chat/__init__.py",
        '"end", waiting_frame(chat, council.state))',
        '"end")',
        f"{HABITS}test_a_waiting_stream_has_chunks_that_a_client_parses",
    ),
    Guard(
        "a terminal shows what reorders or hides text",
        "app/cli/render/text.py",
        'return shown if shown.isascii() else _HIDDEN.sub(lambda found: found[1] or f"<U+{ord(found[0]):04X}>", shown)',
        "return shown",
        f"{COMMANDS}test_no_text_reorders_or_hides_what_a_command_prints",
    ),
    Guard(
        "JSON escapes what controls a terminal",
        "app/cli/render/text.py",
        "    return _UNSAFE_IN_JSON.sub(lambda found: json.dumps(found[0])[1:-1], text)\n",
        "    return text\n",
        f"{COMMANDS}test_no_text_reorders_or_hides_what_a_command_prints",
    ),
    Guard(
        "a link of an answer shows its target",
        "app/cli/render/report.py",
        "Markdown(text, hyperlinks=False)",
        "Markdown(text)",
        f"{COMMANDS}test_a_link_shows_its_target[None]",
    ),
    Guard(
        "a licence that is not allowed fails the bill of materials",
        "deploy/licences.py",
        "    return 1 if refused else 0\n",
        "    return 0\n",
        "tests/deploy/test_supply_chain.py::test_another_licence_fails_the_bill_of_materials",
    ),
    Guard(
        "a data directory is named in UTF-8",
        "app/cli/machine.py",
        'if os.fsencode(path) != path.encode(errors="replace"):',
        "if False:",
        f"{REFUSED}[a locale without UTF-8]",
    ),
    Guard(
        "a stack has room to write before it starts",
        "app/cli/stack/layout.py",
        "        check_room(path)\n",
        "",
        f"{REFUSED}[a disk of 4 MiB]",
    ),
    Guard(
        "a module of the user's directory runs in place of no part",
        "app/cli/stack/children.py",
        '"PYTHONSAFEPATH": "1", ',
        "",
        f"{MACHINES}test_names_and_variables_of_others_change_no_part",
    ),
    Guard(
        "Ray's replicas import nothing from the user's directory",
        "serve_deployments/application.py",
        "with chdir(Path(__file__).parents[1]):",
        "if True:",
        f"{MACHINES}test_names_and_variables_of_others_change_no_part",
    ),
    Guard(
        "a controller that keeps its status for ever is started again",
        "serve_deployments/application.py",
        "async with asyncio.timeout(CONTROLLER_SILENCE_MAX_S):",
        "async with asyncio.timeout(None):",
        "tests/integration/serve/test_application.py::"
        "test_a_controller_that_keeps_its_status_for_ever_is_started_again",
    ),
)
