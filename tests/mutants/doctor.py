"""The checks of the doctor, and the guards of clusters that it names."""

from tests.mutants.guard import Guard

BROKEN = "tests/components/routes/test_findings.py::test_a_broken_installation_is_named_by_its_first_finding"
CLUSTERS = "tests/integration/coordinator/test_clusters.py::"
OPERATIONS = "tests/components/routes/test_operations.py::"
LABELS = "tests/components/routes/test_clusters.py::"
BACKLOG = "tests/components/admission/test_backlog.py::"

DOCTOR = (
    Guard(
        "the doctor names a store near its bound",
        "app/operations/checks.py",
        "stored >= STORE_SHARE_MAX * stored_max:",
        "stored > stored_max:",
        f"{BROKEN}[a store near its bound]",
    ),
    Guard(
        "the doctor names a label that no coordinator takes",
        "app/operations/checks.py",
        "    for label in sorted({*survey.declared.clusters} - taken):\n",
        "    for label in sorted(taken - {*survey.declared.clusters}):\n",
        f"{BROKEN}[a label that no cluster takes]",
    ),
    Guard(
        "agents that end soon after each start are not ready",
        "app/operations/heartbeats.py",
        "life.last_s - life.first_s < SHORT_LIFE_S",
        "life.last_s - life.first_s < 0",
        f"{OPERATIONS}test_agents_that_restart_without_end_are_not_ready_although_one_always_answers",
    ),
    Guard(
        "a replica whose heartbeat is late is asked",
        "app/operations/heartbeats.py",
        "for life in lives if now_s - life.last_s < SILENT_AFTER_S)",
        "for life in lives)",
        f"{OPERATIONS}test_agents_whose_heartbeats_say_that_they_live_are_not_asked",
    ),
    Guard(
        "without a key no finding quotes an engine",
        "app/operations/checks.py",
        'str(trouble if named or code == "engine_unreachable" else general)',
        "str(trouble)",
        f"{OPERATIONS}test_an_engine_says_why_to_operators_alone",
    ),
    Guard(
        "an inquiry is answered while another one waits",
        "app/log/journal.py",
        "            task = asyncio.get_running_loop().create_task(reply(message.data))\n",
        "            task = asyncio.get_running_loop().create_task(reply(message.data))\n            await task\n",
        "tests/integration/log/test_inquiries.py::test_an_inquiry_is_answered_while_another_one_waits",
    ),
    Guard(
        "the subject of an acceptance names its label",
        "app/deliberation/facts.py",
        'return "accepted" if cluster is None else f"accepted-{cluster}"',
        'return "accepted"',
        f"{LABELS}test_a_request_with_a_label_is_accepted_for_its_clusters_also_while_none_takes_it",
    ),
    Guard(
        "a start reads from the earliest unfinished work of any label",
        "app/log/journal.py",
        "floor = min((queue.acknowledged_to for queue in queues if queue.left), default=max(places))",
        "floor = max(places)",
        f"{CLUSTERS}test_a_start_reads_the_unfinished_work_of_every_label",
    ),
    Guard(
        "work of a dead cluster refuses no work with another label",
        "app/admission/backlog.py",
        "            queued = (by_role[role, cluster] for role in names for by_role in queues)\n",
        "            queued = (by_role[role, None] for role in names for by_role in queues)\n",
        f"{BACKLOG}test_work_that_waits_for_a_dead_cluster_refuses_only_work_with_its_label",
    ),
)
