"""The guards of inputs: what a hostile file costs, and what of it reaches agents."""

from tests.mutants.guard import Guard

READING = "app/inputs/reading.py"
PDF = "app/inputs/pdf.py"
PICTURES = "app/inputs/pictures.py"
TEXTS = "tests/components/inputs/test_texts.py::"
PDFS = "tests/components/inputs/test_pdfs.py::"
PICTURE_TESTS = "tests/components/inputs/test_pictures.py::"

CITATIONS = "tests/unit/test_citations.py::"
ROUTES = "tests/components/routes/test_files.py::"
MCP = "tests/components/facades/test_mcp.py::"

INPUT_GUARDS = (
    Guard(
        "binary data are no text",
        READING,
        '        if b"\\0" in piece:\n',
        "        if False:\n",
        f"{TEXTS}test_a_text_has_no_nul",
    ),
    Guard(
        "a text that no model reads is refused",
        READING,
        "    if size > (TEXT_BYTES_MAX if is_utf8 else SOURCE_BYTES_MAX):\n",
        "    if False:\n",
        f"{TEXTS}test_a_text_that_no_model_reads_is_refused",
    ),
    Guard(
        "a refused file leaves nothing in the directory",
        READING,
        "            await asyncio.to_thread(target.unlink, missing_ok=True)\n",
        "            pass\n",
        "tests/components/inputs/test_hostile_files.py::test_a_child_that_is_killed_leaves_no_file",
    ),
    Guard(
        "a declared encoding is one of texts",
        "app/inputs/encodings.py",
        "    if not encoding or _OTHER_CODECS.match(encoding):\n",
        "    if not encoding:\n",
        f"{TEXTS}test_a_declared_encoding_is_taken_where_it_fits",
    ),
    Guard(
        "a detected text has no control characters of binary data",
        "app/inputs/encodings.py",
        ' or (not encoding.startswith("utf") and _BINARY_CONTROLS.search(text))',
        "",
        f"{TEXTS}test_what_is_no_text_is_refused_by_its_name",
    ),
    Guard(
        "no line of a page looks like the beginning of one",
        PDF,
        "{'> ' if _begins_with_dashes(line) else ''}",
        "",
        f"{PDFS}test_a_line_of_a_page_begins_no_page",
    ),
    Guard(
        "pages are bounded",
        PDF,
        "        if pages > PAGES_MAX:\n",
        "        if False:\n",
        f"{PDFS}test_pages_are_bounded",
    ),
    Guard(
        "pixels are bounded before they are decoded",
        PICTURES,
        "        if image.width * image.height > PIXELS_MAX:\n",
        "        if False:\n",
        f"{PICTURE_TESTS}test_pixels_are_bounded_by_the_header_alone",
    ),
    Guard(
        "bytes of a picture are bounded",
        PICTURES,
        "    if output.tell() > PICTURE_BYTES_MAX:\n",
        "    if False:\n",
        f"{PICTURE_TESTS}test_bytes_of_a_picture_are_bounded",
    ),
    Guard(
        "metadata of a picture are removed",
        PICTURES,
        '    upright.info = {} if transparency is None else {"transparency": transparency}\n',
        "",
        f"{PICTURE_TESTS}test_nothing_but_the_picture_remains",
    ),
    Guard(
        "a docx that inflates too far is refused",
        "app/inputs/word.py",
        "    if sum(member.file_size for member in members) > UNPACKED_BYTES_MAX:\n",
        "    if False:\n",
        "tests/components/inputs/test_word_documents.py::test_an_archive_that_inflates_too_far_is_refused",
    ),
    Guard(
        "bases of styles that form a circle end",
        "app/inputs/word.py",
        "        for _ in range(_BASES_MAX):\n",
        "        while True:\n",
        "tests/components/inputs/test_word_documents.py::test_styles_that_are_based_on_each_other_end",
    ),
    Guard(
        "a reader that cannot start is no fault of the file",
        READING,
        "    if not output.data.startswith(BEGUN):\n",
        "    if False:\n",
        "tests/components/inputs/test_hostile_files.py::test_a_reader_that_cannot_start_is_no_fault_of_the_file",
    ),
    Guard(
        "a declared encoding is an argument that a command takes",
        "app/inputs/media_types.py",
        '    return charset if _CHARSET.fullmatch(charset) else ""\n',
        "    return charset\n",
        f"{TEXTS}test_a_declared_encoding_is_taken_where_it_fits",
    ),
    Guard(
        "a device is no file that a command uploads",
        "app/cli/files.py",
        "            if not stat.S_ISFIFO(mode):\n",
        "            if False:\n",
        "tests/components/cli/test_files.py::test_a_file_that_cannot_be_read_is_an_error_before_anything_is_sent",
    ),
    Guard(
        "the places of an answer that may cite are bounded",
        "app/deliberation/citations.py",
        "islice(_BRACKETED.finditer(answer), PLACES_MAX)",
        "_BRACKETED.finditer(answer)",
        f"{CITATIONS}test_the_places_that_are_read_are_bounded",
    ),
    Guard(
        "the pages of a citation are bounded",
        "app/deliberation/citations.py",
        "min(last, first + PAGES_MAX - 1)",
        "last",
        f"{CITATIONS}test_pages_are_bounded",
    ),
    Guard(
        "slow uploads of a tenant are bounded",
        "app/routes/files.py",
        "    async with files.receiving.slot(tenant), upload_of(",
        "    async with upload_of(",
        f"{ROUTES}test_slow_uploads_of_a_tenant_are_bounded_and_the_next_waits_for_one",
    ),
    Guard(
        "a file somewhat too large is read to its end",
        "app/api/upload.py",
        "                    if received > 2 * bytes_max + FRAME_BYTES_MAX:\n",
        "                    if received > bytes_max:\n",
        f"{ROUTES}test_a_file_somewhat_too_large_is_read_to_its_end_so_that_the_answer_arrives",
    ),
    Guard(
        "what waits to be sent is refused by its declared length",
        "app/api/upload.py",
        "(bytes_max if waits else 2 * bytes_max)",
        "2 * bytes_max",
        f"{ROUTES}test_a_declared_length_is_refused_before_its_body",
    ),
    Guard(
        "a resource has one content",
        "app/facades/mcp/resources.py",
        '                raise refused("conflict", "The resource has not one of text and blob", "Give one of them.")\n',
        '                self._file = file_of(b"")\n',
        f"{MCP}test_a_bad_argument_is_a_problem_that_names_it",
    ),
)
