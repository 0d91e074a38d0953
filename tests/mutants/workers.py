"""The guards of workers without Ray: where each stands, and which test notices."""

from tests.mutants.guard import Guard

WORKER = "serve_deployments/agent/worker.py"
KILLED = "tests/crash/test_crash_points.py::test_a_kill_at_any_step_changes_neither_end_nor_verdict[nats-vote-process]"
LATE = "tests/contracts/test_agents.py::test_a_task_that_nobody_waits_for_makes_no_call"
ERASED = "tests/integration/log/test_deleted_streams.py::"

STOPPED = "tests/integration/coordinator/test_local_agents.py::test_a_stop_lets_calls_finish_and_begins_nothing_more"
TEXTS = "tests/integration/agent/test_text_viewers.py::"

WORKERS = (
    Guard(
        "a viewer in the middle of a call gets the text so far",
        "serve_deployments/agent/call.py",
        """        if not self._pending or not self.is_watched():
            return
""",
        """        if not self._pending or not self.is_watched():
            self._pending.clear()
            return
""",
        f"{TEXTS}test_a_viewer_in_the_middle_of_a_call_gets_the_text_so_far_and_each_piece_after_it[default.d1]",
    ),
    Guard(
        "leases on texts are renewed",
        "app/log/text_viewers.py",
        "            await self.announce(self._viewers)\n",
        "",
        f"{TEXTS}test_leases_are_renewed_while_they_are_held",
    ),
    Guard(
        "a cancellation in the moment of an answer is not lost",
        "app/log/connection.py",
        "        if task.cancelling() > before:\n",
        "        if False:\n",
        "tests/components/log/test_cancellation.py::"
        "test_a_cancellation_in_the_moment_of_the_answer_ends_the_task[None-<lambda>0]",
    ),
    Guard(
        "a task is removed after its outcomes are in the log",
        WORKER,
        """            await self.replica.run_stage(request.model_copy(update={"resumed": resumed}))
""",
        """            await self.replica.journal.erase(TASKS_STREAM, item.record.sequence)
            await self.replica.run_stage(request.model_copy(update={"resumed": resumed}))
""",
        KILLED,
    ),
    Guard(
        "a redelivered task makes no call that is recorded",
        WORKER,
        "            resumed = request.resumed or again\n",
        "            resumed = request.resumed\n",
        KILLED,
    ),
    Guard(
        "a worker that breaks waits for its calls",
        "serve_deployments/agent/replicas.py",
        "        await asyncio.gather(*(replica.finish(FINISH_WITHIN_S) for replica in replicas))\n",
        "",
        "tests/integration/agent/test_worker.py::"
        "test_a_worker_that_breaks_records_what_its_calls_are_answered_meanwhile",
    ),
    Guard(
        "a coordinator with agents of its own lets their calls finish before it hands over",
        "serve_deployments/coordinator/__main__.py",
        "replica.finish(self._args.worker_drain_s)",
        "replica.finish(0.0)",
        STOPPED,
    ),
    Guard(
        "a coordinator whose agents finish their calls decides nothing more",
        "serve_deployments/coordinator/coordinator.py",
        """            if execution.task is not None:
                execution.task.cancel()

    async def describe""",
        """            assert execution is not None

    async def describe""",
        STOPPED,
    ),
    Guard(
        "a replica in the coordinator's process that cannot record an outcome is asked again",
        "serve_deployments/coordinator/local_agents.py",
        "            raise AgentsLost(str(error)) from error\n",
        "            raise\n",
        "tests/contracts/test_agents.py::test_it_says_that_agents_are_lost[local]",
    ),
    Guard(
        "a task of an ended deliberation makes no call",
        WORKER,
        """        return bool(await self.replica.journal.last([f"{subject}.end", f"{subject}.deleted"]))
""",
        "        return subject is None\n",
        f"{LATE}[cancelled-nats]",
    ),
    Guard(
        "a task past its deadline makes no call",
        WORKER,
        "        if now >= request.deadline_at:\n",
        "        if False:\n",
        f"{LATE}[too late-nats]",
    ),
    Guard(
        "a removal erases untaken tasks",
        "app/log/erasure.py",
        """        await self._erase_matching(TASKS_STREAM, task_subject("*", tenant, deliberation_id))
""",
        "",
        f"{ERASED}test_a_removal_erases_its_untaken_tasks_alone_and_overwrites_them",
    ),
    Guard(
        "a removal erases no task of another deliberation",
        "app/log/erasure.py",
        '_erase_matching(TASKS_STREAM, task_subject("*", tenant, deliberation_id))',
        '_erase_matching(TASKS_STREAM, task_subject("*", "*", "*"))',
        f"{ERASED}test_a_removal_erases_its_untaken_tasks_alone_and_overwrites_them",
    ),
    Guard(
        "a removal erases no task of another tenant",
        "app/log/erasure.py",
        '_erase_matching(TASKS_STREAM, task_subject("*", tenant, deliberation_id))',
        '_erase_matching(TASKS_STREAM, task_subject("*", "*", deliberation_id))',
        f"{ERASED}test_a_removal_erases_its_untaken_tasks_alone_and_overwrites_them",
    ),
)
