"""The guards against losing, doubling and paying again: where each stands, and which test notices."""

from tests.mutants.guard import Guard

AGENT = "tests/integration/agent/test_agent_replica.py::"
ONCE = "tests/integration/agent/test_outcomes_once.py::"
LATE = "tests/integration/coordinator/test_late_announcements.py::"
COORDINATOR = "tests/integration/coordinator/test_coordinator.py::"
VERSIONS = "tests/integration/coordinator/test_other_versions.py::"
CRASH = "tests/crash/test_crash_points.py::"
SURPRISES = "tests/crash/test_surprises.py::"
DIES = f"{CRASH}test_a_kill_at_any_step_changes_neither_end_nor_verdict"
HANGS = f"{CRASH}test_a_coordinator_that_wakes_up_does_not_disturb_its_successor"
REPLACED = f"{CRASH}test_a_coordinator_replaced_at_any_step_hands_over_at_once"
STOPPED = f"{CRASH}test_a_cancel_at_any_step_leads_to_one_end_and_stops_every_call"

DURABILITY_GUARDS = (
    Guard(
        "a fact is written only where nothing stands",
        "app/log/first_write.py",
        "        headers = {EXPECTED_LAST: str(expected), **self._signer",
        "        headers = {**self._signer",
        "tests/contracts/test_journal.py::test_first_write_wins_and_the_loser_gets_the_stored_record[jetstream]",
    ),
    Guard(
        "the same, as crashes show it",
        "app/log/first_write.py",
        "        headers = {EXPECTED_LAST: str(expected), **self._signer",
        "        headers = {**self._signer",
        f"{HANGS}[ray-vote]",
    ),
    Guard(
        "an end is written only where none stands",
        "app/log/first_write.py",
        "        if write.alone is not None:\n",
        '        if write.subject.endswith(".end"):\n            del headers[EXPECTED_LAST]\n'
        "        if write.alone is not None:\n",
        "tests/contracts/test_journal.py::test_of_fifty_concurrent_ends_one_is_stored[jetstream]",
    ),
    Guard(
        "a deliberation is counted by the coordinator whose end stands",
        "serve_deployments/coordinator/coordinator.py",
        "if await self._facts.append(execution, fact):\n                        self._counts",
        "if await self._facts.append(execution, fact) or True:\n                        self._counts",
        f"{COORDINATOR}test_only_the_coordinator_whose_end_stands_counts_the_deliberation",
    ),
    Guard(
        "work of another version is put back",
        "serve_deployments/coordinator/coordinator.py",
        "                if deadline_at is not None and datetime.now(UTC) < deadline_at:\n",
        "                if False:\n",
        f"{VERSIONS}test_a_strategy_of_another_version_waits_for_a_coordinator_that_has_it[single]",
    ),
    Guard(
        "work of another version waits to its deadline at most",
        "serve_deployments/coordinator/coordinator.py",
        "                if deadline_at is not None and datetime.now(UTC) < deadline_at:\n",
        "                if True:\n",
        f"{VERSIONS}test_work_that_no_coordinator_can_take_fails_at_its_deadline",
    ),
    Guard(
        "facts of a later version are not acknowledged as copied",
        "app/archive/projector.py",
        "                if tokens[2] in unreadable:\n",
        "                if False:\n",
        "tests/integration/archive/test_projector.py::"
        "test_facts_of_a_later_version_wait_for_a_projector_that_reads_them[sqlite]",
    ),
    Guard(
        "a write without an answer is looked for",
        "app/log/first_write.py",
        """            stored, _ = await self._standing(write.subject, write.accepts)
            if stored is None:
                detail""",
        """            stored = None
            if stored is None:
                detail""",
        f"{SURPRISES}test_an_unanswered_write_is_repeated_only_when_it_is_absent",
    ),
    Guard(
        "a refused write is looked for: it may be one's own",
        "app/log/first_write.py",
        '        if error.get("err_code") == WRONG_LAST_SEQUENCE:',
        "        if False:",
        f"{SURPRISES}test_a_write_stored_after_its_timeout_counts_as_created",
    ),
    Guard(
        "what stands is compared with what was offered",
        "app/log/first_write.py",
        """                return Appended(stored, created=stored.data == write.data)
        raise""",
        """                return Appended(stored, created=True)
        raise""",
        "tests/contracts/test_journal.py::test_of_fifty_concurrent_ends_one_is_stored[modelled]",
    ),
    Guard(
        "a write in doubt is made again",
        "app/log/first_write.py",
        """        except JournalUnavailable as exc:
            failures = [exc]
        # Entered only after a failed""",
        """        except JournalUnavailable as exc:
            failures = [exc]
            raise
        # Entered only after a failed""",
        f"{SURPRISES}test_a_doubtful_write_of_any_fact_does_not_disturb_the_deliberation",
    ),
    Guard(
        "an item is acknowledged after its end is in the log",
        "serve_deployments/coordinator/coordinator.py",
        """            try:
                await self._deliberate(execution)
""",
        """            try:
                await self._queue.ack(execution.item)
                await self._deliberate(execution)
""",
        f"{DIES}[ray-vote-process]",
    ),
    Guard(
        "a coordinator adopts the fact that stands in place of its own",
        "serve_deployments/coordinator/fact_store.py",
        """        appended = await self._journal.append(execution.tenant, fact)
        if appended.created:
""",
        """        appended = await self._journal.append(execution.tenant, fact)
        if appended.created or not appended.created:
""",
        f"{SURPRISES}test_adopts_a_stage_that_another_coordinator_closed_differently",
    ),
    Guard(
        "work that was touched before is read from the log",
        "serve_deployments/coordinator/fact_store.py",
        "        if execution.resumed or self._complete_above is None or record.sequence <= self._complete_above:\n",
        "        if False:\n",
        f"{SURPRISES}test_poisoned_work_fails_after_five_takeovers_and_leaves_the_queue",
    ),
    Guard(
        "a recorded answer is looked up before an engine is asked",
        "serve_deployments/agent/agent.py",
        "        if request.resumed or self._cancellations.taken_over(request.deliberation_id):\n",
        "        if False:\n",
        f"{DIES}[ray-vote-process]",
    ),
    Guard(
        "the same, when the asking coordinator was taken over and does not know",
        "serve_deployments/agent/agent.py",
        "        if request.resumed or self._cancellations.taken_over(request.deliberation_id):\n",
        "        if request.resumed:\n",
        f"{HANGS}[ray-vote]",
    ),
    Guard(
        "a replica looks the outcome up before it retries",
        "serve_deployments/agent/outcome_check.py",
        "        if await self._recorded():\n",
        "        if False:\n",
        f"{AGENT}test_does_not_retry_a_call_that_another_replica_has_recorded",
    ),
    Guard(
        "the request says since when its outcomes may be recorded",
        "serve_deployments/agent/outcome_check.py",
        "        self._absent_at: datetime | None = absent_at\n",
        "        self._absent_at: datetime | None = datetime.now(UTC)\n",
        f"{AGENT}test_looks_up_the_outcome_when_the_moment_of_the_request_proves_nothing",
    ),
    Guard(
        "while the log is away no call is repeated",
        "serve_deployments/agent/outcome_check.py",
        "                await asyncio.sleep(LOOKUP_RETRY_S)\n",
        "                return False\n",
        f"{AGENT}test_waits_for_an_unavailable_log_before_it_asks_an_engine",
    ),
    Guard(
        "a slow lookup is repeated",
        "serve_deployments/agent/outcome_check.py",
        "            self._absent_at = looked_up_at\n",
        "            self._absent_at = datetime.now(UTC)\n",
        f"{AGENT}test_looks_up_the_outcome_again_after_a_slow_lookup",
    ),
    Guard(
        "a delayed request looks the outcome up again before it is written",
        "serve_deployments/agent/call.py",
        "                before_sending=self._outcome_check.require_absent,\n",
        "                before_sending=None,\n",
        f"{AGENT}test_looks_up_the_outcome_again_before_a_delayed_request_is_written",
    ),
    Guard(
        "an attempt that reached no engine gives its number back",
        "serve_deployments/agent/call.py",
        "                self._number -= 1\n",
        "                pass\n",
        f"{AGENT}test_a_successor_counts_no_requests_that_reached_no_engine",
    ),
    Guard(
        "two requests for one call share it",
        "serve_deployments/agent/agent.py",
        "            running.get(call.call_id) or self._start_call(",
        "            self._start_call(",
        f"{AGENT}test_two_requests_for_one_call_share_it",
    ),
    Guard(
        "two requests that read the log at once share a call",
        "serve_deployments/agent/agent.py",
        "            running |= self._running_of(request)\n",
        "",
        f"{ONCE}test_two_requests_that_read_the_log_at_once_share_a_call",
    ),
    Guard(
        "a call that ends while the log is read is not made again",
        "serve_deployments/agent/agent.py",
        "        running = self._running_of(request)\n",
        "        running = dict[str, asyncio.Task[None]]()\n",
        f"{ONCE}test_a_call_that_ends_while_the_log_is_read_is_not_made_again",
    ),
    Guard(
        "a stop leaves a call alone that has its outcome",
        "serve_deployments/agent/agent.py",
        "                if run.stoppable:\n",
        "                if run.stoppable or True:\n",
        f"{ONCE}test_a_call_that_is_stopped_while_its_outcome_is_announced_counts_once",
    ),
    Guard(
        "a fact that stops a call closes its request",
        "serve_deployments/agent/agent.py",
        """                if run.stoppable:
                    task.cancel()
""",
        """                if run.stoppable:
                    pass
""",
        f"{STOPPED}[ray-vote]",
    ),
    Guard(
        "a request that is cancelled closes its connection",
        "serve_deployments/engine/client.py",
        """        finally:
            await response.aclose()
""",
        """        finally:
            pass
""",
        "tests/integration/engine/test_engine_client.py::test_cancelling_closes_the_connection",
    ),
    Guard(
        "calls with a stored stop are not made",
        "serve_deployments/agent/cancellation.py",
        "        if known_from is None or (accepted",
        "        if False and (accepted",
        f"{STOPPED}[ray-vote]",
    ),
    Guard(
        "stops stored during a lost connection are read",
        "serve_deployments/agent/cancellation.py",
        "            for tenant, deliberation_id in running():\n",
        "            for tenant, deliberation_id in ():\n",
        f"{SURPRISES}test_a_cancel_during_a_lost_connection_is_not_missed",
    ),
    Guard(
        "a coordinator reads the log after a lost connection",
        "serve_deployments/coordinator/coordinator.py",
        """        for execution in self._executions.values():
            execution.inbox.put_nowait(None)
""",
        "",
        f"{SURPRISES}test_a_cancel_during_a_lost_connection_is_not_missed",
    ),
    Guard(
        "an outcome that was not heard is read from the log",
        "serve_deployments/coordinator/coordinator.py",
        "                execution.inbox.put_nowait(None)\n",
        "                pass\n",
        "tests/components/coordinator/test_role_client.py::"
        "test_asks_for_a_read_of_the_log_when_an_outcome_was_not_heard",
    ),
    Guard(
        "a coordinator that hears a stage of another one reads the log",
        "serve_deployments/coordinator/fact_store.py",
        "            if record is None or fact is None or _is_ahead(state, fact):\n",
        "            if record is None or fact is None:\n",
        "tests/components/coordinator/test_fact_store.py::"
        "test_reads_the_log_when_an_outcome_belongs_to_a_stage_of_another_coordinator",
    ),
    Guard(
        "heartbeats keep running work",
        "serve_deployments/coordinator/coordinator.py",
        "                    await execution.queue.working(execution.item)\n",
        "                    pass\n",
        f"{SURPRISES}test_heartbeats_keep_the_work_of_a_long_call",
    ),
    Guard(
        "a redelivered item takes no second slot",
        "serve_deployments/coordinator/coordinator.py",
        "            queue.drop()\n",
        "",
        f"{SURPRISES}test_a_redelivered_item_takes_no_second_slot",
    ),
    Guard(
        "a takeover is recorded first",
        "serve_deployments/coordinator/coordinator.py",
        "        if not execution.resumed or execution.state.ended:\n",
        "        if True:\n",
        f"{HANGS}[ray-vote]",
    ),
    Guard(
        "work that kills its holders ends",
        "app/deliberation/decider.py",
        "    if state.takeovers_without_progress >= POISON_TAKEOVERS:\n",
        "    if False:\n",
        "tests/unit/test_decider.py::test_takeovers_without_progress_end_a_deliberation_and_progress_resets_them",
    ),
    Guard(
        "suspects run apart",
        "serve_deployments/coordinator/coordinator.py",
        "        if execution.state.takeovers_without_progress >= SUSPECT_TAKEOVERS:\n",
        "        if False:\n",
        f"{COORDINATOR}test_poisoned_work_fails_and_work_beside_it_completes",
    ),
    Guard(
        "a cancel may arrive before its deliberation",
        "serve_deployments/coordinator/fact_store.py",
        "        if cancel is not None and ",
        "        if False and ",
        f"{SURPRISES}test_a_cancel_may_arrive_before_its_deliberation",
    ),
    Guard(
        "work that is given back in order is not blamed",
        "app/deliberation/fold.py",
        "            blamed = 0 if fact.given_back or state.given_back else 1\n",
        "            blamed = 1\n",
        "tests/unit/test_fold.py::test_an_orderly_handover_does_not_count_as_a_takeover_without_progress",
    ),
    Guard(
        "deleted work ends no other work",
        "serve_deployments/coordinator/coordinator.py",
        """            return
        except Gone as error:
""",
        """            return
        except ZeroDivisionError as error:
""",
        f"{COORDINATOR}test_a_failure_of_deleted_work_ends_no_other_work",
    ),
    Guard(
        "an end waits for the cost of stopped calls",
        "serve_deployments/coordinator/coordinator.py",
        """                    reloaded = True
                    await self._wait_for_stopped_calls(execution)
""",
        """                    reloaded = True
""",
        f"{SURPRISES}test_an_end_counts_the_calls_that_the_closing_of_its_last_stage_stopped",
    ),
    Guard(
        "that wait ends before the deadline",
        "serve_deployments/coordinator/coordinator.py",
        "else min(STOP_GRACE_S, left_s / 2)\n",
        "else STOP_GRACE_S\n",
        f"{SURPRISES}test_an_end_waits_for_stopped_calls_no_longer_than_its_deadline_allows",
    ),
    Guard(
        "an orderly stop is recorded",
        "serve_deployments/coordinator/coordinator.py",
        "            if cancelled and self._journal",
        "            if False and self._journal",
        f"{COORDINATOR}test_orderly_restarts_never_poison_work",
    ),
    Guard(
        "a breakdown is not recorded as an orderly stop",
        "serve_deployments/coordinator/coordinator.py",
        "            if cancelled and self._journal",
        "            if self._journal",
        f"{COORDINATOR}test_a_broken_coordinator_records_no_hand_over",
    ),
    Guard(
        "ending work is not handed over",
        "serve_deployments/coordinator/coordinator.py",
        "                    execution.enter(ExecutionState.ENDING)\n",
        "",
        f"{REPLACED}[ray-vote]",
    ),
    Guard(
        "a stopping coordinator requeues its items",
        "serve_deployments/coordinator/coordinator.py",
        """            for execution in list(self._executions.values()):
                await execution.queue.requeue(execution.item)
""",
        "",
        f"{REPLACED}[ray-vote]",
    ),
    Guard(
        "a stopping coordinator requeues items that are on their way",
        "app/log/work_queue.py",
        "                await subscription.drain()\n",
        "                await subscription.unsubscribe()\n",
        f"{REPLACED}[ray-vote]",
    ),
    Guard(
        "a stopping agent waits for its calls",
        "serve_deployments/agent/agent.py",
        "            await asyncio.wait(running, timeout=within_s)\n",
        "            pass\n",
        f"{AGENT}test_a_stopping_replica_waits_for_its_calls_for_a_limited_time",
    ),
    Guard(
        "a step of the work clears it of the suspicion",
        "app/deliberation/fold.py",
        '"finished": finished, "after_cancel": after_cancel, "takeovers_without_progress": 0}\n',
        '"finished": finished, "after_cancel": after_cancel}\n',
        "tests/unit/test_fold.py::test_takeovers_count_as_without_progress_until_the_next_step",
    ),
    Guard(
        "what a stage saw is frozen",
        "app/deliberation/decider.py",
        "            seen = {call_id: state.finished[call_id] for call_id in stage.closed.seen}\n",
        "            seen = {each.call_id: state.finished[each.call_id] for each in ask.calls"
        " if each.call_id in state.finished}\n",
        "tests/unit/test_decider.py::test_an_answer_that_comes_while_the_next_stage_runs_is_late",
    ),
    Guard(
        "no stage opens after one was closed past the deadline",
        "app/deliberation/decider.py",
        "    return max(now, closed.ts if closed else now) >= state.accepted.deadline_at\n",
        "    return now >= state.accepted.deadline_at\n",
        "tests/unit/test_decider.py::test_a_successor_whose_clock_is_behind_opens_no_stage_after_the_deadline",
    ),
    Guard(
        "a stage waits for its quorum",
        "app/deliberation/decider.py",
        "    if now >= stage.opened.soft_deadline_at and answers >= stage.opened.quorum:\n",
        "    if now >= stage.opened.soft_deadline_at and answers >= 1:\n",
        "tests/unit/test_decider.py::test_a_quorum_reached_after_the_soft_deadline_closes_the_stage_at_once",
    ),
    Guard(
        "a stage closes on what is recorded alone",
        "app/deliberation/fold.py",
        "    if unknown:\n",
        "    if False:\n",
        "tests/unit/test_fold.py::test_facts_of_a_missing_stage_or_call_are_refused",
    ),
    Guard(
        "an outcome that is delivered twice is the first one",
        "app/deliberation/fold.py",
        "    return state.finished if fact.call_id in state.finished else {**state.finished, fact.call_id: fact}\n",
        "    return {**state.finished, fact.call_id: fact}\n",
        "tests/unit/test_fold.py::test_a_second_outcome_of_a_call_is_ignored",
    ),
    Guard(
        "a late text is no version of its agent's answer",
        "app/deliberation/contributions.py",
        "        if self.left_out or self.finished is None or self.finished.text is None:\n",
        "        if self.finished is None or self.finished.text is None:\n",
        "tests/components/api/test_one_reading.py::test_every_view_says_the_same_of_each_agent",
    ),
    Guard(
        "a text fused from several answers is no agent's own",
        "app/deliberation/outputs.py",
        'VERSION_KINDS = frozenset(ANSWER_FIELDS) - {"fusion"}\n',
        "VERSION_KINDS = frozenset(ANSWER_FIELDS)\n",
        "tests/components/api/test_one_reading.py::test_every_view_says_the_same_of_each_agent",
    ),
    Guard(
        "an acceptance stands alone: not beside a tombstone",
        "app/log/journal.py",
        '        alone = f"{subject}.*" if isinstance(fact, Accepted) else None\n',
        "        alone = None\n",
        "tests/contracts/test_journal.py::test_a_purge_leaves_the_tombstone_which_refuses_another_acceptance[jetstream]",
    ),
    Guard(
        "a request that is sent again finds its first",
        "app/lifecycle/specify.py",
        "    if key:\n        return keyed_id",
        "    if False:\n        return keyed_id",
        "tests/components/routes/test_deliberations.py::test_a_key_used_again_with_the_same_body_starts_nothing",
    ),
    Guard(
        "an end is announced only where the server does not know its id",
        "app/log/announced_ends.py",
        '    return {"Nats-Msg-Id": f"{tenant}.{deliberation_id}"}\n',
        "    return {}\n",
        "tests/integration/coordinator/test_announcements.py"
        "::test_each_end_is_announced_once_whatever_coordinators_die",
    ),
    Guard(
        "a late announcement is looked for first",
        "app/log/announced_ends.py",
        "        if datetime.now(UTC) - announced.ts < PUBLISHED_WITHIN:\n",
        "        if True:\n",
        f"{LATE}test_a_late_announcement_is_stored_once",
    ),
    Guard(
        "a late announcement is looked for behind its mark",
        "app/log/announced_ends.py",
        "            if await self._search(subject, after, last, tenant, id):\n                return\n",
        "",
        f"{LATE}test_a_late_announcement_is_found_behind_its_mark",
    ),
    Guard(
        "a deletion looks for a late announcement behind its mark",
        "app/log/announced_ends.py",
        "if sequence is None and (mark :=",
        "if False and (mark :=",
        f"{LATE}test_a_late_announcement_is_found_behind_its_mark",
    ),
    Guard(
        "a deletion erases the mark of a late announcement",
        "app/log/erasure.py",
        "            await self.erase(ANNOUNCEMENTS_STREAM, mark)\n",
        "            pass\n",
        f"{LATE}test_a_late_announcement_is_found_behind_its_mark",
    ),
    Guard(
        "a look-up that is out of date stores nothing",
        "app/log/announced_ends.py",
        "{EXPECTED_LAST: str(last)}",
        "{}",
        f"{LATE}test_a_look_that_is_out_of_date_stores_nothing",
    ),
    Guard(
        "a look-up that a lagging server answers stores nothing",
        "app/log/announced_ends.py",
        "        raise JournalUnavailable(f\"the log's reads lag",
        "        return None\n        raise JournalUnavailable(f\"the log's reads lag",
        f"{LATE}test_a_look_that_lags_stores_nothing",
    ),
    Guard(
        "nothing is announced late of what was deleted",
        "app/log/announced_ends.py",
        'last_by_subj=f"{prefix(tenant, id)}.deleted"',
        'last_by_subj=f"{prefix(tenant, id)}.nothing"',
        f"{LATE}test_nothing_is_announced_after_the_deletion",
    ),
    Guard(
        "a deletion withholds the announcement that is still to come",
        "app/log/erasure.py",
        "        # After the look-up: otherwise an announcement could be stored between the two.\n"
        "        await self._withhold(tenant, deliberation_id)\n",
        "",
        f"{LATE}test_an_announcement_after_the_deletion_is_dropped",
    ),
    Guard(
        "a deletion looks for an announcement whose id is forgotten",
        "app/log/erasure.py",
        "        if datetime.now(UTC) - ended_at >= REMEMBERED_FOR:\n",
        "        if False:\n",
        f"{LATE}test_a_deletion_erases_the_announcement_and_no_other",
    ),
    Guard(
        "a deletion reaches the announcement of an end that has left the log",
        "app/lifecycle/deliberations.py",
        "        await self.journal.erase_announcement(tenant, id, state.end.ts)\n",
        "",
        "tests/components/archive/test_gateway.py"
        "::test_a_deletion_of_what_the_archive_alone_holds_erases_its_announcement",
    ),
    Guard(
        "a repeated deletion erases an announcement after it",
        "app/log/erasure.py",
        "        if ANNOUNCEMENTS_STREAM in published:\n            await self._withhold(tenant, deliberation_id)\n",
        "",
        f"{LATE}test_a_deletion_is_repeated_after_a_restart_of_the_server",
    ),
    Guard(
        "an outcome whose replica died is told of at the end",
        "serve_deployments/coordinator/coordinator.py",
        "execution.deliberation_id, recorded_responses(execution.tenant, state)\n",
        "execution.deliberation_id, ()\n",
        "tests/integration/coordinator/test_announcements.py"
        "::test_each_end_is_announced_once_whatever_coordinators_die",
    ),
    Guard(
        "a pull that was lost is asked for again",
        "app/log/work_queue.py",
        "            if asyncio.get_running_loop().time() - self._last_message_at_s > 2 * HEARTBEAT_S:\n"
        "                self._forget_pulls()\n",
        "",
        f"{SURPRISES}test_repeats_a_lost_pull",
    ),
)
