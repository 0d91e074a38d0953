"""The guards of stored inputs: whole or not at all, for as long as something needs them, and once for all calls."""

from tests.mutants.guard import Guard

STORE = "app/log/inputs.py"
FILES = "app/lifecycle/files.py"
FIT = "app/lifecycle/context_fit.py"
CACHE = "serve_deployments/agent/inputs.py"
STORE_TESTS = "tests/integration/log/test_inputs.py::"
FILES_TESTS = "tests/components/lifecycle/test_files.py::"
FIT_TESTS = "tests/components/lifecycle/test_context_fit.py::"
CACHE_TESTS = "tests/components/agent/test_inputs.py::"

STORED_INPUTS = (
    Guard(
        "an upload that broke off leaves its form to no other one",
        STORE,
        'self._write_chunks(f"{subject}.form.{file.form_sha256}", form, renew)',
        'self._write_chunks(f"{subject}.form.{file.sha256}", form, renew)',
        f"{STORE_TESTS}test_an_upload_that_broke_off_leaves_its_form_to_no_other_upload",
    ),
    Guard(
        "another reading of stored bytes takes no room",
        STORE,
        " and (standing is None or standing.file.form_sha256 == file.form_sha256)",
        "",
        f"{STORE_TESTS}test_another_reading_of_stored_bytes_is_not_stored_beside_the_first",
    ),
    Guard(
        "an upload that was removed meanwhile is no success",
        STORE,
        '                raise JournalUnavailable("the input was removed while it was stored")\n',
        "",
        f"{STORE_TESTS}test_an_upload_that_a_sweep_took_for_a_broken_one_is_no_success",
    ),
    Guard(
        "a long upload says that it goes on",
        STORE,
        "                    await renew(storing=True)\n",
        "",
        f"{STORE_TESTS}test_a_long_upload_says_that_it_goes_on",
    ),
    Guard(
        "what an upload writes after the mark of a removal is removed too",
        STORE,
        "                await self._begin_upload(subject, clock)\n                raise",
        "                raise",
        f"{STORE_TESTS}test_an_upload_that_a_sweep_took_for_a_broken_one_is_no_success",
    ),
    Guard(
        "an input that is not what was stored is not read",
        STORE,
        "        if digest.hexdigest() != sha256:\n",
        "        if False:\n",
        f"{STORE_TESTS}test_what_is_not_whole_is_not_read",
    ),
    Guard(
        "nothing that was used since the look is removed",
        STORE,
        'b"{}", last["seq"], among=f"{subject}.>"',
        'b"{}", 0, among=f"{subject}.removed"',
        f"{STORE_TESTS}test_a_use_that_comes_during_the_look_prevents_the_removal",
    ),
    Guard(
        "what is being removed takes no new use",
        STORE,
        'among=f"{subject}.removed") is not None',
        'among=f"{subject}.none") is not None',
        f"{STORE_TESTS}test_an_interrupted_removal_is_finished_by_whoever_comes_next",
    ),
    Guard(
        "an interrupted removal is found by the uses of the input",
        STORE,
        "            await self._erase(older.keys() - uses)\n",
        "            await self._erase(older)\n",
        f"{STORE_TESTS}test_a_removal_that_is_cut_anywhere_is_found_by_its_uses_until_nothing_is_left",
    ),
    Guard(
        "what was removed takes no use",
        STORE,
        "        return used and await self.find(tenant, sha256) is not None\n",
        "        return used\n",
        f"{STORE_TESTS}test_what_was_removed_takes_no_use",
    ),
    Guard(
        "the files of a tenant are bounded",
        FILES,
        "        if file.sha256 not in stored and taken",
        "        if False and taken",
        f"{FILES_TESTS}test_a_tenant_has_a_share_and_others_keep_theirs",
    ),
    Guard(
        "what agents read counts in the share of a tenant",
        FILES,
        "file.bytes + (0 if file.form_sha256 == file.sha256 else file.form_bytes)",
        "file.bytes",
        f"{FILES_TESTS}test_what_agents_read_counts_where_it_is_stored_beside_the_file",
    ),
    Guard(
        "a use counts before its acceptance stands",
        FILES,
        "self._clock.now() - use.at < YOUNG or any(",
        "any(",
        f"{FILES_TESTS}test_a_use_without_an_acceptance_counts_while_it_may_be_on_its_way",
    ),
    Guard(
        "deletions at once do not leave a file to each other",
        FILES,
        '        if any(record.tokens[-1] == "deleted" for record in records):\n',
        "        if False:\n",
        f"{FILES_TESTS}test_deletions_at_once_of_all_that_name_a_file_remove_it",
    ),
    Guard(
        "an upload that broke off goes sooner than a file",
        FILES,
        "(YOUNG if use.storing else UNUSED_FOR)",
        "UNUSED_FOR",
        f"{FILES_TESTS}test_an_upload_that_never_ended_goes_sooner_than_a_file",
    ),
    Guard(
        "a named file is not deleted",
        FILES,
        "        return use.storing if use.user == UPLOAD else await self._counts(tenant, use)\n",
        "        return False\n",
        f"{FILES_TESTS}test_a_named_file_is_not_deleted_and_an_unnamed_one_is",
    ),
    Guard(
        "a file that is being deleted takes no deliberation",
        FILES,
        "            if not await self._store.use(",
        "            if None is await self._store.use(",
        f"{FILES_TESTS}test_what_is_being_deleted_takes_no_deliberation",
    ),
    Guard(
        "what killed gateways left among temporary files goes",
        FILES,
        "        await asyncio.to_thread(_remove_spools, (self._clock.now() - UNUSED_FOR).timestamp())\n",
        "",
        f"{FILES_TESTS}test_what_killed_gateways_left_among_temporary_files_goes",
    ),
    Guard(
        "temporary files of uploads that go on stay",
        FILES,
        " or status.st_mtime >= before_s",
        "",
        f"{FILES_TESTS}test_what_killed_gateways_left_among_temporary_files_goes",
    ),
    Guard(
        "a log that is away does not end the sweep",
        FILES,
        "            with suppress(JournalUnavailable):\n                await self.sweep_once()\n",
        "            await self.sweep_once()\n",
        f"{FILES_TESTS}test_the_sweep_goes_on_after_a_log_that_was_away",
    ),
    Guard(
        "a fallback that sees no pictures is named",
        FIT,
        "(*role.engines, *role.fallback)",
        "role.engines",
        f"{FIT_TESTS}test_an_engine_that_sees_no_pictures_is_named_for_each_of_them",
    ),
    Guard(
        "a count has a bound",
        FIT,
        "isinstance(tokens, int) and 0 <= tokens <= file.form_bytes",
        "isinstance(tokens, int)",
        f"{FIT_TESTS}test_without_a_usable_count_the_estimate_decides_and_is_not_kept",
    ),
    Guard(
        "counts that are kept are bounded",
        FIT,
        "                if len(self._counts) > COUNTS_KEPT:\n",
        "                if False:\n",
        f"{FIT_TESTS}test_counts_that_are_kept_are_bounded",
    ),
    Guard(
        "one council with inputs is planned at a time",
        FIT,
        "            async with self._planning:\n",
        "            if True:\n",
        f"{FIT_TESTS}test_one_council_is_planned_at_a_time",
    ),
    Guard(
        "calls at once share one reading of an input",
        CACHE,
        "        if key not in self._kept:\n",
        "        if True:\n",
        f"{CACHE_TESTS}test_calls_at_once_share_one_reading",
    ),
    Guard(
        "a stopped call leaves the reading of an input to the others",
        CACHE,
        "await asyncio.shield(self._kept[key][0])",
        "await self._kept[key][0]",
        f"{CACHE_TESTS}test_a_stopped_call_leaves_the_reading_to_the_others",
    ),
    Guard(
        "a failed reading of an input is tried again",
        CACHE,
        "            del self._kept[key]\n",
        "            pass\n",
        f"{CACHE_TESTS}test_a_failed_reading_is_tried_again",
    ),
    Guard(
        "inputs that a replica keeps are bounded",
        CACHE,
        "        while len(self._kept) > 1 and",
        "        while False and",
        f"{CACHE_TESTS}test_the_bound_drops_what_was_used_the_longest_ago",
    ),
    Guard(
        "the input that was used last stays",
        CACHE,
        "        self._kept.move_to_end(key)\n",
        "",
        f"{CACHE_TESTS}test_the_bound_drops_what_was_used_the_longest_ago",
    ),
    Guard(
        "an input beyond the bound is kept while it is the only one",
        CACHE,
        "len(self._kept) > 1 and sum",
        "sum",
        f"{CACHE_TESTS}test_an_input_beyond_the_bound_is_kept_while_it_is_the_only_one",
    ),
    Guard(
        "no input forges a fence",
        CACHE,
        '"".join(without_fences_in_pieces(content.decode()))',
        "content.decode()",
        f"{CACHE_TESTS}test_a_hostile_pdf_is_data_between_its_own_fences",
    ),
    Guard(
        "tenants share no reading of an input",
        CACHE,
        "        key = tenant, file.sha256\n",
        '        key = "", file.sha256\n',
        f"{CACHE_TESTS}test_tenants_share_no_reading",
    ),
)
