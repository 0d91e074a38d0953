"""The checks of the doctor, and the guards of clusters that it names."""

from tests.mutants.guard import Guard

BROKEN = "tests/components/routes/test_doctor.py::test_a_broken_installation_is_named_by_its_first_finding"
CLUSTERS = "tests/integration/coordinator/test_clusters.py::"
LABELS = "tests/components/routes/test_clusters.py::"
BACKLOG = "tests/components/admission/test_backlog.py::"

DOCTOR = (
    Guard(
        "the doctor names a store near its bound",
        "app/routes/doctor.py",
        "stored >= STORE_SHARE_MAX * stored_max:",
        "stored > stored_max:",
        f"{BROKEN}[a store near its bound]",
    ),
    Guard(
        "the doctor names a label that no coordinator takes",
        "app/observability/checks.py",
        "    missing = set(clusters)\n",
        "    missing = set[str]()\n",
        f"{BROKEN}[a label that no cluster takes]",
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
        "            queued = (work[role, cluster] for role in names for work in queues)\n",
        "            queued = (work[role, None] for role in names for work in queues)\n",
        f"{BACKLOG}test_work_that_waits_for_a_dead_cluster_refuses_only_work_with_its_label",
    ),
)
