"""A PDF is its text by page, or a refusal that says why it has none."""

from io import BytesIO

import pytest
from pypdf import PdfWriter
from pypdf.actions import JavaScript

from app.inputs.extracted import PAGES_MAX
from app.inputs.pdf import page_text
from tests.components.inputs.files import Spool, deflated_spaces, pdf, pdf_of, pdf_of_streams, stream

TWO_PAGES = pdf(["First page", "second line"], ["Größe (in m\\s)"])


def encrypted(password: str, algorithm: str = "AES-256") -> bytes:
    writer, output = PdfWriter(clone_from=BytesIO(TWO_PAGES)), BytesIO()
    writer.encrypt(user_password=password, owner_password="owner", algorithm=algorithm)
    writer.write(output)
    return output.getvalue()


async def test_a_pdf_is_its_text_by_page(spool: Spool) -> None:
    read = await spool.read(TWO_PAGES, "contract.pdf")
    assert (read.media_type, read.kind, read.pages, read.width) == ("application/pdf", "text", 2, None)
    assert read.path.parent == spool.directory and read.path != spool.source
    assert read.path.read_text() == "--- page 1 ---\nFirst page\nsecond line\n--- page 2 ---\nGröße (in m\\s)\n"


async def test_the_content_says_that_it_is_a_pdf(spool: Spool) -> None:
    assert (await spool.read(TWO_PAGES, "picture.png", "image/png")).media_type == "application/pdf"
    assert (await spool.read(b"\xef\xbb\xbf\r\n" + TWO_PAGES)).pages == 2


async def test_a_line_of_a_page_begins_no_page(spool: Spool) -> None:
    lines = ["--- page 2 ---", "   -- - Page 2", "-- two", "a --- page 2 ---"]
    text = await spool.text(pdf(lines, ["second"]))
    assert [line for line in text.splitlines() if line.startswith("---")] == ["--- page 1 ---", "--- page 2 ---"]
    assert text.startswith(
        "--- page 1 ---\n> --- page 2 ---\n>    -- - Page 2\n-- two\na --- page 2 ---\n--- page 2 ---\n"
    )


@pytest.mark.parametrize(
    "forged",
    [
        "--- page 2 ---",
        "\u200b---\u00adpage 2",
        "\u2014\u2014\u2014",
        "\u2500\u2500\u2500 page",
        "\u2212 \u2212 \u2212",
        f"{' ' * 9_999}---",
        "===",
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\u2029"])
def test_no_line_looks_like_the_beginning_of_a_page(forged: str, end: str) -> None:
    assert page_text(f"a{end}{forged}{end}--b") == f"a\n> {forged}\n--b\n"


def test_what_no_text_holds_is_replaced() -> None:
    assert page_text("a\0b\x1b\ttab\ud800 \ud83d\ude00\u202e") == "a\ufffdb\ufffd\ttab\ufffd \U0001f600\u202e\n"


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-256"])
async def test_a_pdf_that_anyone_may_open_is_read(spool: Spool, algorithm: str) -> None:
    assert "second line" in await spool.text(encrypted("", algorithm))


async def test_a_pdf_that_needs_a_password_is_refused(spool: Spool) -> None:
    assert (await spool.refusal(encrypted("secret"))).code == "encrypted_pdf"


async def test_a_pdf_that_needs_a_certificate_is_refused(spool: Spool) -> None:
    data = TWO_PAGES.replace(b"trailer << ", b"trailer << /Encrypt << /Filter /Adobe.PubSec /V 4 >> ")
    assert (await spool.refusal(data)).code == "encrypted_pdf"


async def test_a_pdf_without_text_is_refused(spool: Spool) -> None:
    refused = await spool.refusal(pdf([], [" "]))
    assert refused.code == "pdf_without_text"
    assert "OCR" in refused.remedy


@pytest.mark.parametrize("data", [TWO_PAGES[:300], b"%PDF-1.7\n", pdf_of([b"<< >>"])], ids=["cut", "empty", "no pages"])
async def test_a_broken_pdf_is_refused(spool: Spool, data: bytes) -> None:
    refused = await spool.refusal(data)
    assert (refused.code, "a PDF" in refused.detail) == ("broken_file", True)


async def test_pages_are_bounded(spool: Spool) -> None:
    kids = b"4 0 R " * (PAGES_MAX + 1)
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] >>"
    catalogue, pages = b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Count 1 /Kids [%s] >>" % kids
    refused = await spool.refusal(pdf_of([catalogue, pages, b"<< >>", page]))
    assert (refused.code, str(PAGES_MAX + 1) in refused.detail) == ("too_many_pages", True)


async def test_a_stream_that_inflates_beyond_all_bounds_ends_with_its_child(spool: Spool) -> None:
    bomb = deflated_spaces(1_100 << 20)
    assert len(bomb) < 4 << 20
    refused = await spool.refusal(pdf_of_streams([stream(bomb, b" /Filter /FlateDecode")]))
    assert refused.code == "file_too_costly"


async def test_scripts_and_embedded_files_are_left_where_they_are(spool: Spool) -> None:
    writer, output = PdfWriter(clone_from=BytesIO(TWO_PAGES)), BytesIO()
    writer.add_open_action(JavaScript("app.alert('script')"))
    writer.add_attachment("attached.txt", b"attached")
    writer.write(output)
    assert b"script" in output.getvalue() and b"attached" in output.getvalue()
    text = await spool.text(output.getvalue())
    assert "First page" in text and "script" not in text and "attached" not in text
