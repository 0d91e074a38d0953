"""The guards of announced plans: where each stands, and which test notices."""

from tests.mutants.guard import Guard

SEVERAL = "tests/integration/planning/test_several_gateways.py::"
STOPS = f"{SEVERAL}test_a_stopping_gateway_gives_the_plan_in_hand_to_another"
IN_ORDER = f"{SEVERAL}test_a_plan_finds_the_transition_before_it_though_gateways_stop_and_start"

PLANS = (
    Guard(
        "one of several gateways takes all plans",
        "app/log/streams.py",
        "(PLANNING_STREAM, _exclusive(PLANNING_CONSUMER,",
        "(PLANNING_STREAM, _consumer(PLANNING_CONSUMER,",
        f"{SEVERAL}test_one_of_several_gateways_takes_all_plans",
    ),
    Guard(
        "the event of a killed gateway is given again before another gateway is given one",
        "app/log/streams.py",
        "EXCLUSIVE_S = WORKER_ACK_WAIT_S + 3\n",
        "EXCLUSIVE_S = WORKER_ACK_WAIT_S - 3\n",
        f"{SEVERAL}test_the_event_of_a_killed_gateway_comes_before_those_that_follow_it",
    ),
    Guard(
        "a stopping gateway gives back what it has in hand",
        "app/main.py",
        "catalog.dismiss_waiters(), [task.cancel() for task in taking])",
        "catalog.dismiss_waiters())",
        STOPS,
    ),
    Guard(
        "a stopping gateway gives up its place",
        "app/log/queue_worker.py",
        "            await self._queue.leave()\n",
        "",
        STOPS,
    ),
    Guard(
        "an event is given back before the place",
        "app/log/work_queue.py",
        "confirmed=bool(self._pin))",
        "confirmed=False)",
        IN_ORDER,
    ),
    Guard(
        "an event is given back without a timer",
        "app/log/work_queue.py",
        ' if delay_s else b""\n',
        "\n",
        IN_ORDER,
    ),
    Guard(
        "whoever lost its place asks without it",
        "app/log/work_queue.py",
        '                self._pin.pop("id", None)\n',
        "                pass\n",
        f"{SEVERAL}test_a_gateway_whose_place_ran_out_is_given_events_again",
    ),
    Guard(
        "a gateway takes plans once it has read the log",
        "app/main.py",
        "    await _until_caught_up(projections)\n    await consumer.run()\n",
        "    await consumer.run()\n",
        f"{SEVERAL}test_a_gateway_that_has_not_read_the_log_takes_no_plan",
    ),
    Guard(
        "an event that is larger than a body is not parsed",
        "app/planning/consumer.py",
        "    if len(event.data) > PLAN_BYTES_MAX:\n        return dump(rejected)\n",
        "",
        "tests/integration/planning/test_plans.py"
        "::test_what_cannot_be_taken_is_rejected_by_name_and_the_next_plan_starts",
    ),
    Guard(
        "a plan that a stopping gateway may not accept is not rejected",
        "app/planning/consumer.py",
        "        except NotReady as stopping:\n            raise ItemDeferred(0) from stopping\n",
        "",
        "tests/components/planning/test_consumer.py::test_a_stopping_gateway_gives_an_event_back",
    ),
)
