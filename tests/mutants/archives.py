"""The guards of the archive: tenants apart in searches and statistics, and each deliberation counted once."""

from tests.mutants.guard import Guard

SEARCHES = "tests/integration/archive/test_search.py::"
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
        'given = {"tenant": tenant, "role": asked.role',
        'given = {"role": asked.role',
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
        "await replace(connection, dialect, [each.key for _, each in placed], measured)",
        "await replace(connection, dialect, [each.key for _, each in placed if each.measures], measured)",
        f"{SUMS}test_a_deletion_leaves_no_trace_in_statistics[sqlite-begin0]",
    ),
)
