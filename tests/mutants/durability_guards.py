"""The guards against losing, doubling and paying again: where each stands, and which test notices."""

from tests.mutants.guard import Guard

AGENT = "tests/integration/agent/test_agent_replica.py::"
COORDINATOR = "tests/integration/coordinator/test_coordinator.py::"
CRASH = "tests/crash/test_crash_points.py::"
SURPRISES = "tests/crash/test_surprises.py::"
DIES = f"{CRASH}test_whoever_dies_at_whichever_step_the_deliberation_ends_once_and_as_if_nothing_had_happened"
HANGS = f"{CRASH}test_a_coordinator_that_hangs_and_wakes_up_does_no_harm_to_what_its_successor_does"
REPLACED = f"{CRASH}test_a_coordinator_that_is_replaced_at_whichever_step_hands_over_at_once_and_is_not_blamed"
STOPPED = f"{CRASH}test_a_request_to_stop_at_whichever_step_leads_to_one_end_and_cuts_every_call"

DURABILITY_GUARDS = (
    Guard(
        "a fact is written only where nothing stands",
        "app/log/journal.py",
        '_FIRST_WRITE = {"Nats-Expected-Last-Subject-Sequence": "0"}',
        "_FIRST_WRITE: dict[str, str] = {}",
        "tests/contracts/test_journal.py::test_first_write_wins_and_the_loser_gets_the_stored_record[jetstream]",
    ),
    Guard(
        "the same, as crashes show it",
        "app/log/journal.py",
        '_FIRST_WRITE = {"Nats-Expected-Last-Subject-Sequence": "0"}',
        "_FIRST_WRITE: dict[str, str] = {}",
        f"{HANGS}[vote]",
    ),
    Guard(
        "an end is written only where none stands",
        "app/log/journal.py",
        "        headers = _FIRST_WRITE if alone is None else",
        '        headers = {} if subject.endswith(".end") else _FIRST_WRITE if alone is None else',
        "tests/contracts/test_journal.py::test_of_fifty_concurrent_ends_one_is_stored[jetstream]",
    ),
    Guard(
        "a write without an answer is looked for",
        "app/log/journal.py",
        """            stored = await self._last(subject)
            if stored is None:
                detail""",
        """            stored = None
            if stored is None:
                detail""",
        f"{SURPRISES}test_a_write_without_an_answer_is_looked_for_and_made_again_only_when_it_is_not_there",
    ),
    Guard(
        "a refused write is looked for: it may be one's own",
        "app/log/journal.py",
        '        if error.get("err_code") == WRONG_LAST_SEQUENCE:',
        "        if False:",
        f"{SURPRISES}test_a_write_that_arrives_after_its_time_out_is_ones_own_all_the_same",
    ),
    Guard(
        "what stands is compared with what was offered",
        "app/log/journal.py",
        """                return Appended(stored, created=stored.data == data)
        raise""",
        """                return Appended(stored, created=True)
        raise""",
        "tests/contracts/test_journal.py::test_of_fifty_concurrent_ends_one_is_stored[modelled]",
    ),
    Guard(
        "a write in doubt is made again",
        "app/log/journal.py",
        """        except JournalUnavailable as exc:
            failures = [exc]
        # Entered only after a failed""",
        """        except JournalUnavailable as exc:
            failures = [exc]
            raise
        # Entered only after a failed""",
        f"{SURPRISES}test_any_fact_may_be_in_doubt_and_the_deliberation_goes_on_as_ever",
    ),
    Guard(
        "work is acknowledged after its end is in the log",
        "serve_deployments/coordinator/coordinator.py",
        """            try:
                await self._deliberated(work)
""",
        """            try:
                await self._queue.ack(work.delivery)
                await self._deliberated(work)
""",
        f"{DIES}[vote-process]",
    ),
    Guard(
        "whoever comes second with a fact goes on from the one that stands",
        "serve_deployments/coordinator/fact_store.py",
        """        appended = await self._journal.append(work.tenant, fact)
        if appended.created:
            if not""",
        """        appended = await self._journal.append(work.tenant, fact)
        if appended.created or not appended.created:
            if not""",
        f"{SURPRISES}test_a_stage_that_somebody_else_has_closed_otherwise_is_closed_as_the_log_says",
    ),
    Guard(
        "what was touched before is read from the log",
        "serve_deployments/coordinator/fact_store.py",
        "        if work.resumed or self._heard_from is None or record.sequence <= self._heard_from:\n",
        "        if False:\n",
        f"{SURPRISES}test_work_that_kills_whoever_holds_it_ends_after_five_and_leaves_the_queue",
    ),
    Guard(
        "a recorded answer is looked for before it is asked for again",
        "serve_deployments/agent/agent.py",
        "        if request.resumed or self._stops.taken_over(request.deliberation_id):\n",
        "        if False:\n",
        f"{DIES}[vote-process]",
    ),
    Guard(
        "the same, when who asks has been overtaken and does not know",
        "serve_deployments/agent/agent.py",
        "        if request.resumed or self._stops.taken_over(request.deliberation_id):\n",
        "        if request.resumed:\n",
        f"{HANGS}[vote]",
    ),
    Guard(
        "a replica that was given up looks before it tries again",
        "serve_deployments/agent/call.py",
        "        if await self._stands():\n",
        "        if False:\n",
        f"{AGENT}test_what_another_replica_has_recorded_meanwhile_is_not_asked_for_again",
    ),
    Guard(
        "a replica that hung knows by the request how late it is",
        "serve_deployments/agent/call.py",
        "        self._unrecorded_at: datetime | None = unrecorded_at\n",
        "        self._unrecorded_at: datetime | None = datetime.now(UTC)\n",
        f"{AGENT}test_who_hung_before_it_read_what_it_was_asked_looks_before_it_asks_an_engine",
    ),
    Guard(
        "while the log is away nothing is asked for a second time",
        "serve_deployments/agent/call.py",
        "                await asyncio.sleep(LOOK_RETRY_S)\n",
        "                return False\n",
        f"{AGENT}test_who_cannot_look_waits_for_the_log_before_it_asks_again",
    ),
    Guard(
        "what a slow log told is asked again",
        "serve_deployments/agent/call.py",
        "            self._unrecorded_at = looked_at\n",
        "            self._unrecorded_at = datetime.now(UTC)\n",
        f"{AGENT}test_what_a_slow_log_told_is_asked_again",
    ),
    Guard(
        "who was stopped looks again before its request is written",
        "serve_deployments/agent/call.py",
        "                before_sending=self._still_needed,\n",
        "                before_sending=None,\n",
        f"{AGENT}test_who_is_stopped_before_its_request_is_written_looks_again",
    ),
    Guard(
        "two who ask for one call share it",
        "serve_deployments/agent/agent.py",
        "        if key in self._running:\n",
        "        if False:\n",
        f"{AGENT}test_two_requests_for_one_call_share_it",
    ),
    Guard(
        "a fact that stops a call closes its request",
        "serve_deployments/agent/agent.py",
        """            if self.run.begun:
                self.task.cancel()
""",
        """            if self.run.begun:
                pass
""",
        f"{STOPPED}[vote]",
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
        "calls whose stop came first are not made",
        "serve_deployments/agent/cancellation.py",
        "        if self._heard_from is None or (accepted",
        "        if False and (accepted",
        f"{STOPPED}[vote]",
    ),
    Guard(
        "stops that came without a connection are made up for",
        "serve_deployments/agent/cancellation.py",
        "            for tenant, deliberation_id in running():\n",
        "            for tenant, deliberation_id in ():\n",
        f"{SURPRISES}test_a_request_to_stop_is_not_missed_for_want_of_a_connection",
    ),
    Guard(
        "who is away from the log reads what it missed",
        "serve_deployments/coordinator/coordinator.py",
        """        for work in self._works.values():
            work.inbox.put_nowait(None)
""",
        "",
        f"{SURPRISES}test_a_request_to_stop_is_not_missed_for_want_of_a_connection",
    ),
    Guard(
        "work that is still worked on is kept",
        "serve_deployments/coordinator/coordinator.py",
        "                    await self._queue.working(work.delivery)\n",
        "                    pass\n",
        f"{SURPRISES}test_a_long_call_keeps_its_work_and_is_asked_for_once",
    ),
    Guard(
        "work that comes again while it is in hand takes no place",
        "serve_deployments/coordinator/coordinator.py",
        "            self._queue.drop()\n",
        "",
        f"{SURPRISES}test_work_that_comes_again_while_it_is_in_hand_takes_no_place_in_the_queue",
    ),
    Guard(
        "a takeover is recorded before anything is done",
        "serve_deployments/coordinator/coordinator.py",
        "        if not work.resumed or state.ended:\n",
        "        if True:\n",
        f"{HANGS}[vote]",
    ),
    Guard(
        "work that kills whoever holds it ends",
        "app/deliberation/engine.py",
        "    if state.takeovers_without_progress >= POISON_TAKEOVERS:\n",
        "    if False:\n",
        "tests/unit/test_engine.py::test_work_that_nobody_survives_ends_and_work_that_goes_on_does_not",
    ),
    Guard(
        "work that seems to kill is begun alone",
        "serve_deployments/coordinator/coordinator.py",
        "        if state.takeovers_without_progress >= SUSPECT_TAKEOVERS:\n",
        "        if False:\n",
        f"{COORDINATOR}test_work_that_kills_whoever_holds_it_ends_and_what_lay_beside_it_is_not_blamed",
    ),
    Guard(
        "a request to stop may come before its deliberation",
        "serve_deployments/coordinator/fact_store.py",
        "        return apply(state, fact_of(cancel), cancel.sequence) if cancel else state\n",
        "        return state\n",
        f"{SURPRISES}test_a_request_to_stop_may_come_before_its_deliberation_does",
    ),
    Guard(
        "work that is given back in order is not blamed",
        "app/deliberation/fold.py",
        "            blamed = 0 if fact.given_back or state.given_back else 1\n",
        "            blamed = 1\n",
        "tests/unit/test_fold.py::test_a_coordinator_that_stops_in_order_leaves_no_blame_on_the_work",
    ),
    Guard(
        "who stops in order says so",
        "serve_deployments/coordinator/coordinator.py",
        "            if in_order and self._journal",
        "            if False and self._journal",
        f"{COORDINATOR}test_work_that_is_handed_over_again_and_again_is_not_blamed_for_it",
    ),
    Guard(
        "who breaks does not",
        "serve_deployments/coordinator/coordinator.py",
        "            if in_order and self._journal",
        "            if self._journal",
        f"{COORDINATOR}test_a_coordinator_that_breaks_hands_nothing_over_in_order",
    ),
    Guard(
        "what has its end is handed over to nobody",
        "serve_deployments/coordinator/coordinator.py",
        "                    work.begun = isinstance(fact, StageClosed)\n",
        "",
        f"{REPLACED}[vote]",
    ),
    Guard(
        "who stops gives back what is in hand",
        "serve_deployments/coordinator/coordinator.py",
        """            for work in list(self._works.values()):
                await self._queue.give_back(work.delivery)
""",
        "",
        f"{REPLACED}[vote]",
    ),
    Guard(
        "who stops gives back what is on its way",
        "app/log/work_queue.py",
        "                await self._subscription.drain()\n",
        "                await self._subscription.unsubscribe()\n",
        f"{REPLACED}[vote]",
    ),
    Guard(
        "an agent's replica that stops lets its calls end",
        "serve_deployments/agent/agent.py",
        "            await asyncio.wait(running, timeout=within_s)\n",
        "            pass\n",
        f"{AGENT}test_a_replica_that_stops_lets_its_calls_end_but_not_for_ever",
    ),
    Guard(
        "a step of the work clears it of the suspicion",
        "app/deliberation/fold.py",
        "finished=_finished(state, fact), after_cancel=after_cancel, takeovers_without_progress=0\n",
        "finished=_finished(state, fact), after_cancel=after_cancel\n",
        "tests/unit/test_fold.py::test_takeovers_are_fruitless_until_the_work_makes_a_step",
    ),
    Guard(
        "what a stage saw is frozen",
        "app/deliberation/engine.py",
        "            seen = {call_id: state.finished[call_id] for call_id in stage.closed.seen}\n",
        "            seen = {each.call_id: state.finished[each.call_id] for each in ask.calls"
        " if each.call_id in state.finished}\n",
        "tests/unit/test_engine.py::test_an_answer_that_comes_while_the_next_stage_runs_is_late",
    ),
    Guard(
        "a stage waits for its quorum",
        "app/deliberation/engine.py",
        "    if now >= stage.opened.soft_deadline_at and answers >= stage.opened.quorum:\n",
        "    if now >= stage.opened.soft_deadline_at and answers >= 1:\n",
        "tests/unit/test_engine.py::test_a_quorum_that_is_there_too_late_for_the_soft_deadline_closes_the_stage_when_it_is",
    ),
    Guard(
        "a stage closes on what is recorded alone",
        "app/deliberation/fold.py",
        "    if unknown:\n",
        "    if False:\n",
        "tests/unit/test_fold.py::test_facts_that_tell_of_a_stage_or_call_that_is_not_there_are_refused",
    ),
    Guard(
        "an outcome that is told twice is the first one",
        "app/deliberation/fold.py",
        "    return state.finished if fact.call_id in state.finished else {**state.finished, fact.call_id: fact}\n",
        "    return {**state.finished, fact.call_id: fact}\n",
        "tests/unit/test_fold.py::test_an_outcome_told_twice_is_the_first_one",
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
        "    if key:\n        drawn",
        "    if False:\n        drawn",
        "tests/components/routes/test_deliberations.py::test_a_key_used_again_with_the_same_body_starts_nothing",
    ),
    Guard(
        "a pull that was lost is asked for again",
        "app/log/work_queue.py",
        "            if asyncio.get_running_loop().time() - self._last_message_at_s > 2 * HEARTBEAT_S:\n"
        "                self._forget_pulls()\n",
        "",
        f"{SURPRISES}test_a_pull_that_is_lost_is_asked_for_again",
    ),
)
