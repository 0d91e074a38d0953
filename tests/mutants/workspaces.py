"""The guards of workspaces: the reach of repositories, paths, tenants and credentials."""

from tests.mutants.guard import Guard

ATTACKS = "tests/attack/test_workspaces.py::"
COPIES = "serve_deployments/workspace/copies.py"
FILES = "tests/integration/workspace/test_files.py::"
PRIVATE = "tests/integration/workspace/test_private_repositories.py::"
REPOSITORIES = "app/workspace/repositories.py"
REQUESTS = "tests/components/lifecycle/test_workspace.py::"
SHARES = "tests/integration/workspace/test_shares.py::"
SWEEP = "serve_deployments/node_directory/sweep.py"
TREES = "tests/attack/test_foreign_trees.py::"
SOURCES = "serve_deployments/workspace/sources.py"

WORKSPACE_GUARDS = (
    Guard(
        "a path of a request's file stays inside",
        "app/workspace/files.py",
        '    if {"", ".", ".."} & set(parts) or "\\\\" in path:\n',
        "    if False:\n",
        f"{REQUESTS}test_a_path_that_leads_out_or_differs_between_systems_is_refused",
    ),
    Guard(
        "two files of a request are two on any system",
        "app/workspace/files.py",
        "        known = path.casefold()\n",
        "        known = path\n",
        f"{REQUESTS}test_two_files_are_never_one_on_any_system",
    ),
    Guard(
        "agents check the paths of a record",
        SOURCES,
        "        if any(map(path_fault, paths)) or any(same_paths(paths)):\n",
        "        if False:\n",
        f"{FILES}test_a_record_with_a_path_that_leads_out_makes_no_copy",
    ),
    Guard(
        "a path that a model writes stays inside",
        "serve_deployments/workspace/workspace.py",
        '    if has_control(trimmed) or {"", ".", ".."} & set(trimmed.split("/")):\n',
        "    if False:\n",
        "tests/integration/workspace/test_calls.py::test_an_agent_runs_the_tests_and_its_answer_says_what_failed",
    ),
    Guard(
        "links are left out of a copy for programs",
        "serve_deployments/workspace/repository.py",
        " if entry.mode in _FILES]",
        "]",
        f"{ATTACKS}test_links_are_left_out_of_a_copy",
    ),
    Guard(
        "directories of deep paths are not counted",
        "serve_deployments/workspace/repository.py",
        " or depth > COPY_DEPTH_MAX:",
        ":",
        f"{TREES}test_names_of_a_tree_are_compared_while_the_loop_goes_on[_below_many]",
    ),
    Guard(
        "names with long runs of marks are not normalised",
        "serve_deployments/workspace/repository.py",
        "_is_stream_safe(place) and ",
        "",
        f"{TREES}test_names_of_a_tree_are_compared_while_the_loop_goes_on[_of_many_marks]",
    ),
    Guard(
        "a prefix ends at a slash",
        REPOSITORIES,
        "    return text == prefix or text.startswith(f\"{prefix.rstrip('/')}/\")\n",
        "    return text.startswith(prefix)\n",
        f"{ATTACKS}test_no_url_or_path_beside_the_allowed_prefixes_is_read",
    ),
    Guard(
        "agents check the repository of a record",
        SOURCES,
        "asyncio.to_thread(self.fetches.allowed.location,",
        "asyncio.to_thread(AllowedRepositories((self.workspace.git,)).location,",
        "tests/integration/workspace/test_copies.py::test_a_process_without_the_setting_fetches_nothing",
    ),
    Guard(
        "a redirect is refused",
        "app/workspace/gitconfig",
        "\tfollowRedirects = false\n",
        "\tfollowRedirects = true\n",
        f"{ATTACKS}test_a_redirect_is_not_followed",
    ),
    Guard(
        "credentials follow no redirect",
        "app/workspace/gitconfig",
        "\tfollowRedirects = false\n",
        "\tfollowRedirects = true\n",
        f"{PRIVATE}test_credentials_follow_no_redirect",
    ),
    Guard(
        "no hook of the host runs",
        "app/workspace/git.py",
        "environment=environment(path),",
        "environment={**os.environ, **environment(path)},",
        f"{ATTACKS}test_git_gets_nothing_of_the_environment_of_its_process",
    ),
    Guard(
        "no copy serves two tenants",
        COPIES,
        '    return f"{tenant[:32]}-{name[:40]}"\n',
        '    return f"{tenant[:0]}-{name[:40]}"\n',
        f"{ATTACKS}test_no_tenant_reads_anothers_copy",
    ),
    Guard(
        "a prefix of tenants is for them alone",
        REPOSITORIES,
        "        if not is_below or (longest >= open_to_all and (longest, tenant) not in reserved):\n",
        "        if not is_below:\n",
        f"{REQUESTS}test_a_prefix_of_tenants_is_for_them_alone_also_below_one_for_all",
    ),
    Guard(
        "another spelling of a URL is the same repository",
        REPOSITORIES,
        '    return re.sub(r"\\.git(?=/|$)", "", text.lower())\n',
        "    return text\n",
        f"{PRIVATE}test_another_tenant_gets_nothing_however_it_spells_the_url",
    ),
    Guard(
        "credentials are replaced in errors of git",
        REPOSITORIES,
        "        return replace(output, error=without(output.error, secrets_of(headers)))\n",
        "        return replace(output, error=output.error)\n",
        f"{PRIVATE}test_credentials_stand_in_no_argument_environment_log_or_problem",
    ),
    Guard(
        "one tenant holds at most half of the slots",
        "app/tenant_slots.py",
        "        self._share = share or total\n",
        "        self._share = total\n",
        f"{SHARES}test_refs_of_one_tenants_slow_repositories_leave_half_of_the_slots",
    ),
    Guard(
        "fetches take a slot of their tenant",
        SOURCES,
        "self.fetches.slots.slot(self.tenant):",
        'self.fetches.slots.slot(""):',
        f"{SHARES}test_fetches_of_one_tenants_slow_repositories_leave_half_of_the_slots",
    ),
    Guard(
        "copies of the tenant with the most go first",
        SWEEP,
        "(of_tenants[copy.tenant], -copy.used_s)",
        "-copy.used_s",
        f"{SHARES}test_copies_of_one_tenant_do_not_displace_anothers",
    ),
    Guard(
        "a removal goes up only to the directory that it came from",
        "serve_deployments/node_directory/removal.py",
        "        if _identity(above) != self._levels[-1].identity:\n",
        "        if False:\n",
        f"{TREES}test_a_directory_that_is_moved_away_meanwhile_is_not_followed_up",
    ),
    Guard(
        "the directory of a running program stays",
        SWEEP,
        "                if has_locked(directory, fcntl.LOCK_EX):\n",
        "                if True:\n",
        f"{TREES}test_what_cannot_be_removed_keeps_nothing_else_and_ends_no_sweep",
    ),
    Guard(
        "programs of one tenant take at most half of the slots",
        "serve_deployments/node_directory/slots.py",
        "name, total, total // 2\n",
        "name, total, total\n",
        f"{TREES}test_programs_of_one_tenant_that_sleep_leave_slots_to_others",
    ),
    Guard(
        "the directory of a use that is cancelled while it is made is given back",
        "serve_deployments/node_directory/directory.py",
        "            making.add_done_callback(_give_back)\n",
        "",
        f"{TREES}test_a_use_that_is_cancelled_while_its_directory_is_made_leaves_none",
    ),
    Guard(
        "a tenant's share is one of the node",
        "serve_deployments/node_directory/slots.py",
        "((of_tenant, self._share), (self._name, self._total))",
        "((self._name, self._total),)",
        f"{SHARES}test_the_replicas_of_a_node_share_its_slots_and_a_tenant_has_half_of_all",
    ),
    Guard(
        "the slots of a node have a sum",
        "serve_deployments/node_directory/slots.py",
        "((of_tenant, self._share), (self._name, self._total))",
        "((of_tenant, self._share),)",
        f"{SHARES}test_the_replicas_of_a_node_share_its_slots_and_a_tenant_has_half_of_all",
    ),
    Guard(
        "a slot in use stays when a sweep comes",
        SWEEP,
        "                if has_locked(slot, fcntl.LOCK_EX) and is_at(slot, path):\n",
        "                if True:\n",
        f"{SHARES}test_a_slot_is_free_once_its_process_is_killed_and_a_sweep_removes_its_file",
    ),
    Guard(
        "opening a file for writing is counted",
        "serve_deployments/sandbox/seccomp.py",
        "COUNT, ALLOW), COUNT)",
        "COUNT, ALLOW), ALLOW)",
        f"{TREES}test_a_program_writes_no_more_than_its_creations_in_sum[r+b]",
    ),
    Guard(
        "a copy that is read stays",
        SWEEP,
        "                if has_locked(lock, fcntl.LOCK_EX) and is_at(lock, path):\n",
        "                if is_at(lock, path):\n",
        "tests/integration/workspace/test_copies.py::"
        "test_copies_above_the_number_and_the_age_are_removed_but_none_that_is_read",
    ),
)
