"""Guards of the reading of replies and of client's schemas."""

from tests.mutants.guard import Guard

SCHEMAS = "app/deliberation/answer_schema.py"
READINGS = "app/deliberation/readings.py"
SCHEMA_TESTS = "tests/unit/test_answer_schema.py::"
READING_TESTS = "tests/unit/test_readings.py::"

READINGS_GUARDS = (
    Guard(
        "a text that nobody watches is read in few pieces",
        "serve_deployments/engine/replies.py",
        "                            await end.wait(UNWATCHED_READ_S)\n",
        "                            pass\n",
        "tests/integration/engine/test_unwatched_replies.py::"
        "test_an_unwatched_text_comes_in_its_first_piece_and_the_rest",
    ),
    Guard(
        "what came of an unwatched text is paid for when its call is cancelled",
        "serve_deployments/engine/replies.py",
        "                            await self._feed_what_came(engine, decoder, chunks)\n",
        "",
        "tests/integration/engine/test_unwatched_replies.py::"
        "test_an_unwatched_text_that_is_cancelled_costs_what_came_of_it",
    ),
    Guard(
        "the end of a body ends the wait for its next piece",
        "serve_deployments/engine/client.py",
        ".content.on_eof(end.come)",
        ".content.on_eof(lambda: None)",
        "tests/integration/engine/test_unwatched_replies.py::"
        "test_an_unwatched_text_comes_in_its_first_piece_and_the_rest",
    ),
    Guard(
        "a strategy begins anew for stages that were read again",
        "app/deliberation/decider.py",
        "all(told is stage for",
        "all(True for",
        "tests/unit/test_decider.py::test_a_strategy_goes_on_where_it_stood_until_its_facts_are_read_again",
    ),
    Guard(
        "a check of a client's schema has a budget of steps",
        SCHEMAS,
        "        if self.steps < 0:\n",
        "        if False:\n",
        f"{SCHEMA_TESTS}test_a_check_beyond_its_budget_of_steps_finds_the_answer_invalid",
    ),
    Guard(
        "a schema whose smallest answer is expensive is refused",
        SCHEMAS,
        "        if _least_steps(made) > LEAST_STEPS_MAX:\n",
        "        if False:\n",
        f"{SCHEMA_TESTS}test_refuses_what_an_engine_or_this_check_may_not_bear[lists that multiply]",
    ),
    Guard(
        "texts that references repeat are counted before the schema has them",
        SCHEMAS,
        "            self._spend_chars(keyword, value)\n",
        "",
        f"{SCHEMA_TESTS}test_refuses_what_an_engine_or_this_check_may_not_bear[a long text that references repeat]",
    ),
    Guard(
        "a long text is read off the event loop",
        "serve_deployments/agent/validation.py",
        "read() if on_loop else await asyncio.get_running_loop().run_in_executor(_READER, read)",
        "read()",
        "tests/components/agent/test_validation.py::test_a_long_text_is_read_while_the_event_loop_goes_on[True]",
    ),
    Guard(
        "an answer satisfies the client's schema before it is recorded",
        READINGS,
        "            self._check_schema(fields)\n",
        "",
        f"{SCHEMA_TESTS}test_an_answer_that_breaks_its_schema_is_invalid",
    ),
    Guard(
        "no draft of a reply that was cut off stands for its answer",
        READINGS,
        "    if cut_off:\n",
        "    if False:\n",
        f"{READING_TESTS}test_of_a_reply_that_was_cut_off_only_the_object_at_its_end_counts",
    ),
    Guard(
        "no draft in a model's reasoning stands for its answer",
        READINGS,
        "beside if number is None else",
        "beside if True else",
        f"{READING_TESTS}test_a_draft_in_the_reasoning_is_no_answer_beside_other_words",
    ),
    Guard(
        "a beginning that a run has read is not tried again",
        "app/deliberation/json_objects.py",
        "                decided.add(place - 1)\n",
        "                pass\n",
        f"{READING_TESTS}test_a_beginning_that_was_read_is_not_tried_again",
    ),
    Guard(
        "an answer whose backslashes stand for themselves is not taken as strict JSON",
        READINGS,
        "if strict and not has_plain_backslashes(bare):",
        "if strict:",
        f"{READING_TESTS}test_backslashes_are_read_as_the_model_meant_them",
    ),
    Guard(
        "[DONE] ends a reply only behind a whole object",
        "serve_deployments/engine/replies.py",
        "if self.choice.finish_reason is None and self._done and self.choice.is_closed:",
        "if self.choice.finish_reason is None and self._done:",
        "tests/integration/engine/test_recorded_replies.py::test_done_after_an_object_that_is_not_closed_is_no_answer",
    ),
    Guard(
        "a statement of two letters states none",
        "app/deliberation/choice/letters.py",
        "if stated := [*stated_choices(statements), *others.values()]:",
        "if stated := stated_choices(statements):",
        "tests/unit/test_answers.py::test_a_letter_is_read_whatever_script_stands_around_it",
    ),
    Guard(
        "a fence survives invisible characters",
        "app/deliberation/choice/anonymity.py",
        '    bare = _INVISIBLE.sub("", bare)\n',
        "",
        "tests/unit/choice/test_anonymity.py::test_a_text_can_neither_close_its_fence_nor_open_one",
    ),
    Guard(
        "a persona is without fences",
        "app/deliberation/prompts/form.py",
        "{without_fences(persona)}",
        "{persona}",
        "tests/unit/test_prompts.py::test_a_member_reads_its_own_persona_without_fences_and_not_its_roles",
    ),
    Guard(
        "a member's own persona stands in the place of its role's",
        "app/deliberation/prompts/form.py",
        "persona_section(call.persona or of_role)",
        "persona_section(of_role)",
        "tests/unit/test_prompts.py::test_a_member_reads_its_own_persona_without_fences_and_not_its_roles",
    ),
    Guard(
        "the mark of a fence follows from the text",
        "app/deliberation/choice/anonymity.py",
        '    mark = hashlib.sha256(f"{nonce}\\n{text}".encode(errors="replace")).hexdigest()[:12]\n',
        "    mark = nonce\n",
        "tests/unit/choice/test_anonymity.py::test_who_knows_the_seed_cannot_write_the_mark_of_a_text",
    ),
)
