"""The guards of the archive: tenants apart in searches and statistics, and each deliberation counted once."""

from tests.mutants.guard import Guard

SEARCHES = "tests/integration/archive/test_search.py::"
POOLER = "tests/integration/archive/test_pooler.py::"
TRANSFER = "tests/integration/archive/test_transfer.py::test_what_is_no_export_is_refused_by_its_line"
SUMS = "tests/integration/archive/test_statistics.py::"
ROUTE = "tests/components/routes/test_statistics.py::"

ARCHIVES = (
    Guard(
        "a search shows rows of its tenant alone",
        "app/archive/database/texts.py",
        "(row.accepted == hits.c.rowid) & (row.tenant == tenant)",
        "row.accepted == hits.c.rowid",
        f"{SEARCHES}test_labels_that_are_equal_by_chance_show_no_other_tenant[sqlite]",
    ),
    Guard(
        "a search looks for its tenant's words alone",
        "app/archive/database/texts.py",
        'wanted = {"tenant": tenant, "role": asked.role',
        'wanted = {"role": asked.role',
        f"{SEARCHES}test_another_tenants_hits_take_no_place_of_a_page[sqlite]",
    ),
    Guard(
        "statistics are of one tenant",
        "app/archive/database/statistics.py",
        "return chosen if asked.tenant is None else chosen.where(table.c.tenant == asked.tenant)",
        "return chosen",
        f"{SUMS}test_tenants_are_counted_apart[sqlite]",
    ),
    Guard(
        "active deliberations count for their tenant",
        "app/archive/database/statistics.py",
        """    if asked.tenant is not None:
        chosen = chosen.where(row.tenant == asked.tenant)
    for""",
        """    for""",
        f"{ROUTE}test_only_an_administrator_sees_all_tenants",
    ),
    Guard(
        "statistics of all tenants need the scope admin",
        "app/routes/statistics.py",
        'if query.by == "tenant" and "admin" not in caller.scopes:',
        "if False:",
        f"{ROUTE}test_only_an_administrator_sees_all_tenants",
    ),
    Guard(
        "what is written again is counted once",
        "app/archive/database/measures.py",
        "        _add(changes, removed.mappings(), -1)\n",
        "",
        f"{SUMS}test_a_later_fact_replaces_what_was_counted[sqlite]",
    ),
    Guard(
        "what is deleted leaves the sums",
        "app/archive/database/writing.py",
        "[deliberation.key for _, deliberation in placed], measured)",
        "[deliberation.key for _, deliberation in placed if deliberation.measures], measured)",
        f"{SUMS}test_a_deletion_leaves_no_trace_in_statistics[sqlite-begin0]",
    ),
    Guard(
        "a search has few beginnings of words",
        "app/archive/database/search_query.py",
        "    if sum(phrase.prefix for phrase in chain(excluded, *required)) > PREFIXES_MAX:\n",
        "    if False:\n",
        "tests/components/archive/test_gateway.py::test_a_search_without_words_names_the_remedy"
        "[waa* OR wab* OR wac* OR wad* OR wae*-Write some of them out]",
    ),
    Guard(
        "a search ends in time on SQLite",
        "app/archive/database/connection.py",
        "            interrupt = loop.call_later(limit_s, driver._conn.interrupt)\n",
        "            interrupt = None\n",
        f"{SEARCHES}test_a_search_that_takes_too_long_is_interrupted[sqlite]",
    ),
    Guard(
        "a search ends in time on PostgreSQL",
        "app/archive/database/connection.py",
        '            await connection.execute(text(f"SET LOCAL statement_timeout = {round(limit_s * 1_000)}"))\n',
        "            pass\n",
        f"{SEARCHES}test_a_search_that_takes_too_long_is_interrupted[postgresql]",
    ),
    Guard(
        "searches of a tenant leave others theirs",
        "app/archive/database/store.py",
        "                await turns.acquire()\n",
        "                turns.release()\n",
        f"{SEARCHES}test_slow_searches_of_one_tenant_leave_others_theirs[sqlite]",
    ),
    Guard(
        "an import checks the names of logs",
        "app/archive/transfer.py",
        "Annotated[str, Field(pattern=EPOCH_PATTERN)]",
        "str",
        f"{TRANSFER}[<lambda>-logs.0_0]",
    ),
    Guard(
        "an import checks times",
        "app/archive/transfer.py",
        "        if isinstance(at, datetime) and not EARLIEST <= at <= now + LEAD_MAX:\n",
        "        if False:\n",
        f"{TRANSFER}[<lambda>-Line 2 has a time in ts]",
    ),
    Guard(
        "settings of a read end with its transaction",
        "app/archive/database/connection.py",
        "set_config('jit', 'off', true)",
        "set_config('jit', 'off', false)",
        f"{POOLER}test_settings_and_the_bound_of_a_search_end_with_their_transaction",
    ),
    Guard(
        "a migration refuses a pooler that loses prepared statements",
        "app/archive/database/migrate.py",
        "            await _execute_prepared(engine)\n",
        "            pass\n",
        f"{POOLER}test_a_pooler_that_keeps_no_prepared_statements_is_refused_by_name",
    ),
)
