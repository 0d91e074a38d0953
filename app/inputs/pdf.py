"""The text of a PDF, page by page."""

import unicodedata
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from pypdf import PdfReader
from pypdf.errors import LimitReachedError

from app.control_characters import whole_characters
from app.inputs.extracted import PAGES_MAX, TEXT_BYTES_MAX, Extracted, NotExtracted, encoded

# Beside the class of dashes of Unicode: minus signs, and lines of boxes and rules.
_FURTHER_DASHES = frozenset("\u2212\u2500\u2501\u2504\u2505\u2508\u2509\u2574\u2576\u00af=_")
# Glyphs without a character, which fonts of some documents map to them.
_CONTROLS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "\ufffd")


def extract(source: Path, _charset: str) -> Extracted:
    """The text of all pages. A page begins with a line `--- page N ---`, which no line of its text looks like."""
    try:
        reader = PdfReader(source)
        if reader.is_encrypted and not reader.decrypt(""):
            raise NotExtracted("encrypted_pdf")
        pages = len(reader.pages)
        if pages > PAGES_MAX:
            raise NotExtracted("too_many_pages", str(pages))
        texts = list(_texts(reader))
    except NotImplementedError:
        # Of encryption alone: by certificates, or by a version of its own.
        raise NotExtracted("encrypted_pdf") from None
    except LimitReachedError:
        raise NotExtracted("file_too_costly") from None
    if not any(map(str.strip, texts)):
        raise NotExtracted("pdf_without_text")
    return Extracted(encoded("".join(f"--- page {n} ---\n{text}" for n, text in enumerate(texts, 1))), pages=pages)


def _texts(reader: PdfReader) -> Iterator[str]:
    chars = 0
    for page in reader.pages:
        text = page.extract_text()
        chars += len(text)
        if chars > TEXT_BYTES_MAX:
            raise NotExtracted("text_too_long")
        yield page_text(text)


def page_text(text: str) -> str:
    """The text of a page in lines; one that begins as the line of a page does is quoted with `> `."""
    lines = (line.translate(_CONTROLS).rstrip() for line in whole_characters(text).splitlines())
    return "".join(f"{'> ' if _begins_with_dashes(line) else ''}{line}\n" for line in lines)


def _begins_with_dashes(line: str) -> bool:
    """Whether the first three characters that a reader sees are dashes of any kind."""
    visible = (mark for mark in line if not mark.isspace() and unicodedata.category(mark) not in ("Cf", "Mn", "Me"))
    beginning = list(islice(visible, 3))
    return len(beginning) == 3 and all(
        unicodedata.category(mark) == "Pd" or mark in _FURTHER_DASHES for mark in beginning
    )
