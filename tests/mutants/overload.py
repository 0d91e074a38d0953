"""The guards against too much at once, of work and of requests to engines."""

from tests.mutants.guard import Guard

AGENT = "tests/integration/agent/test_agent_replica.py::"
BACKLOG = "tests/components/admission/test_backlog.py::"
SPENDS = "tests/components/admission/test_spends.py::"
RETRY = "tests/components/agent/test_retry.py::"
POOL = "tests/components/engine/test_pool.py::"
CIRCUIT = "tests/components/engine/test_limits.py::"

OVERLOAD = (
    Guard(
        "no more is accepted than the queue may hold",
        "app/admission/backlog.py",
        '        self._check_depth("", self._all, self.depth_max)\n',
        "",
        "tests/components/routes/test_deliberations.py::test_a_full_queue_answers_with_retry_after_and_admits_replays",
    ),
    Guard(
        "what is being written counts",
        "app/admission/backlog.py",
        "            self.hold(key, roles, self.clock.now(), begun_at=None, priority=priority)\n",
        "",
        f"{BACKLOG}test_a_request_being_written_counts_once_even_after_it_is_logged",
    ),
    Guard(
        "no more of a role than it may hold",
        "app/admission/backlog.py",
        "            self._check_depth(needing, self._by_role[role], self.role_depth_max.get(role))\n",
        "",
        f"{BACKLOG}test_a_role_with_a_bound_of_its_own_is_full_without_the_others",
    ),
    Guard(
        "no more of a tenant than it may hold",
        "app/admission/backlog.py",
        "        if tenant is not None:\n",
        "        if False:\n",
        f"{BACKLOG}test_a_tenant_that_has_much_in_flight_leaves_room_for_the_others",
    ),
    Guard(
        "no tenant spends more in a day than it may",
        "app/lifecycle/deliberations.py",
        "            self.spends.check(key, request.budget.max_cost, self._ceilings(tenant))\n",
        "            pass\n",
        "tests/components/access/test_spends.py::test_a_refusal_asks_no_context_service",
    ),
    Guard(
        "each spend counts once",
        "app/admission/spends.py",
        "        if record.sequence <= sums.complete_to or record.sequence in sums.above:\n",
        "        if False:\n",
        f"{SPENDS}test_records_heard_and_read_in_any_order_count_once",
    ),
    Guard(
        "a ceiling that is being written is reserved",
        "app/admission/spends.py",
        "            self._written[key] = max_cost\n",
        "            pass\n",
        f"{SPENDS}test_what_runs_counts_with_its_ceiling_and_is_reserved_while_it_is_written",
    ),
    Guard(
        "nothing is accepted before the spends of the day were read",
        "app/admission/spends.py",
        "        if not self.caught_up:\n",
        "        if False:\n",
        f"{SPENDS}test_nothing_is_accepted_before_the_day_was_read_where_there_is_a_limit",
    ),
    Guard(
        "a spend is recorded before the end",
        "serve_deployments/coordinator/coordinator.py",
        "                    await self._record_spend(work, work.state, fact.ts)\n",
        "",
        "tests/integration/coordinator/test_spends.py::"
        "test_a_coordinator_that_ends_again_what_was_counted_counts_it_once",
    ),
    Guard(
        "what could not begin in time is refused",
        "app/admission/backlog.py",
        "        if waited_s > timeout_s:\n",
        "        if False:\n",
        f"{BACKLOG}test_work_that_could_not_begin_within_its_deadline_is_refused",
    ),
    Guard(
        "what could not end in time is refused",
        "app/admission/backlog.py",
        "            self._check_wait(needing, ahead[role], timeout_s)\n",
        "",
        f"{BACKLOG}test_while_work_waits_a_request_that_needs_over_half_of_its_deadline_is_rejected",
    ),
    Guard(
        "batch work is ahead of no interactive newcomer",
        "app/admission/backlog.py",
        'ahead = self._interactive if priority == "interactive" else self._by_role',
        "ahead = self._by_role",
        f"{BACKLOG}test_batch_work_that_waits_refuses_batch_work_and_no_interactive_work",
    ),
    Guard(
        "throughput is measured only while work waits",
        "app/admission/backlog.py",
        "        if saturated and now_s - done_at_s < LATE_S:\n",
        "        if now_s - done_at_s < LATE_S:\n",
        "tests/components/admission/test_throughput.py::test_throughput_is_measured_only_while_work_waits",
    ),
    Guard(
        "a burst is no overload",
        "app/admission/backlog.py",
        "        if waited_s < max(WAITED_S, WAITED_SHARE * timeout_s):\n",
        "        if waited_s < WAITED_S:\n",
        f"{BACKLOG}test_work_that_waits_for_a_moment_refuses_nothing",
    ),
    Guard(
        "refused clients do not come back all at once",
        "app/admission/backlog.py",
        "SPREAD * drain_s\n",
        "0.0 * drain_s\n",
        f"{BACKLOG}test_retry_after_is_the_time_until_there_is_room_and_up_to_eight_times_the_drain_time",
    ),
    Guard(
        "no more is taken from the queue than there are slots",
        "app/log/work_queue.py",
        "        free = self._slots - self._held - self._requested\n",
        "        free = self._slots - self._requested\n",
        "tests/integration/log/test_work_queue.py::test_deliveries_never_exceed_the_slots_until_they_are_acknowledged",
    ),
    Guard(
        "failures in a row open an engine's circuit",
        "serve_deployments/engine/limits.py",
        "        if unreachable or self.probing or self.failures >= FAILURES_TO_OPEN:\n",
        "        if unreachable or self.probing:\n",
        f"{CIRCUIT}test_failures_in_a_row_open_a_circuit_and_an_answer_resets_the_count",
    ),
    Guard(
        "one request at a time probes an engine",
        "serve_deployments/engine/limits.py",
        "(now_s >= self.opened_until_s and not self.probing)\n",
        "now_s >= self.opened_until_s\n",
        f"{CIRCUIT}test_an_unreachable_engine_opens_its_circuit_at_once_and_one_request_probes_it",
    ),
    Guard(
        "retries are a small part of the traffic",
        "serve_deployments/engine/limits.py",
        "        self.saved -= 1\n",
        "        self.saved -= 0.5\n",
        f"{CIRCUIT}test_retries_are_a_tenth_of_the_traffic_and_one_a_second",
    ),
    Guard(
        "a retry that is not made is given back",
        "serve_deployments/agent/call.py",
        "            if not made:\n                budget.refund()\n",
        "            pass\n",
        f"{RETRY}test_a_retry_that_is_not_made_is_given_back",
    ),
    Guard(
        "a call does not wait for a retry after its deadline",
        "serve_deployments/agent/call.py",
        "            if wait_s >= self._left_s():\n",
        "            if False:\n",
        f"{RETRY}test_a_refusal_is_final_when_its_retry_would_come_after_the_deadline",
    ),
    Guard(
        "hedges are a small part of the calls",
        "serve_deployments/engine/limits.py",
        "        if self.made + 1 > HEDGE_SHARE * self.calls:\n",
        "        if False:\n",
        f"{CIRCUIT}test_a_call_is_hedged_after_the_95th_percentile_of_its_kind_within_the_share",
    ),
    Guard(
        "a call has three attempts",
        "serve_deployments/agent/call.py",
        "in range(1, ATTEMPTS_MAX):",
        "in range(1, 2 * ATTEMPTS_MAX):",
        f"{AGENT}test_makes_three_attempts_at_most",
    ),
    Guard(
        "of the calls that wait for an engine the first in their order is next",
        "serve_deployments/engine/pool.py",
        "        insort(self._waiting, call, key=lambda each: each.order)\n",
        "        self._waiting.append(call)\n",
        f"{POOL}test_an_interactive_call_is_next_however_many_batch_calls_wait",
    ),
    Guard(
        "a call whose turn it is and that ends gives its turn on",
        "serve_deployments/engine/pool.py",
        "            asyncio.get_running_loop().call_soon(self._wake)\n",
        "",
        f"{POOL}test_a_cancelled_call_loses_no_room",
    ),
    Guard(
        "a probe waits for the end of no call",
        "serve_deployments/engine/client.py",
        "max_connections=0,",
        "max_connections=100,",
        "tests/integration/engine/test_busy_engine.py::test_a_probe_is_answered_beside_any_number_of_streams",
    ),
    Guard(
        "a replica that checks its engines no more is replaced",
        "serve_deployments/deployments.py",
        "        _require_running(*self._tasks)\n",
        "        return\n",
        "tests/integration/serve/test_deployments.py::test_an_agent_whose_task_has_ended_is_unhealthy[Engines-watch]",
    ),
    Guard(
        "a call waits only so long for engines that cannot be connected to",
        "serve_deployments/agent/call.py",
        "        if left_s <= 0:\n",
        "        if False:\n",
        f"{AGENT}test_calls_tell_their_viewers_that_no_engine_can_be_connected_to_and_give_up_after_the_timeout",
    ),
    Guard(
        "a timeout that is over is not spent again",
        "serve_deployments/agent/call.py",
        "            except NoEngineReachable:\n                raise\n",
        "",
        f"{AGENT}test_a_call_whose_timeout_is_over_is_not_retried",
    ),
    Guard(
        "an engine is away until it responds",
        "serve_deployments/engine/state.py",
        "        if self.outage is None:\n            self.outage",
        "        if True:\n            self.outage",
        "tests/components/engine/test_reachability.py::"
        "test_an_outage_lasts_from_the_first_failed_connection_to_the_next_response",
    ),
    Guard(
        "a request whose calls are all stopped is closed",
        "serve_deployments/engine/samples.py",
        "            waiting.request.cancel()\n            await asyncio.wait({waiting.request})\n",
        "            pass\n",
        "tests/integration/agent/test_samples.py::test_a_stop_closes_the_shared_connection_of_an_engine_that_is_silent",
    ),
    Guard(
        "a prompt is counted once for all choices of a request",
        "serve_deployments/engine/replies.py",
        '                choice.meter.reported = {"prompt_tokens": 0, "completion_tokens": choice.tokens}\n',
        "",
        "tests/components/engine/test_streamed_reply.py::"
        "test_interleaved_choices_end_one_by_one_and_the_last_carries_the_prompt",
    ),
)
