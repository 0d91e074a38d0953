"""The text of a docx in document order: headings, lists and tables as Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from zipfile import ZipFile

from docx import Document
from docx.opc.constants import RELATIONSHIP_TYPE
from docx.oxml.parser import parse_xml
from docx.parts.document import DocumentPart

from app.inputs.extracted import TEXT_BYTES_MAX, UNPACKED_BYTES_MAX, Extracted, NotExtracted, encoded
from app.inputs.word_elements import WORD, WordElement, attribute, child_of, number, value
from app.inputs.word_numbering import LEVELS, Numbering, numbering_of

_PARAGRAPH, _TABLE, _ROW, _CELL, _BOX = (f"{WORD}{name}" for name in ("p", "tbl", "tr", "tc", "txbxContent"))
_TEXTS = (f"{WORD}t", "{http://schemas.openxmlformats.org/officeDocument/2006/math}t")
# What was deleted or moved away, properties, and the second form of what stands in a first one.
_LEFT_OUT = {
    *(f"{WORD}{name}" for name in ("del", "moveFrom", "pPr", "rPr", "tblPr", "trPr", "tcPr", "sdtPr", "sectPr")),
    "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback",
}
_CHARACTERS = {f"{WORD}tab": "\t", f"{WORD}br": "\n", f"{WORD}cr": "\n", f"{WORD}noBreakHyphen": "-"}
# The references to notes of each kind, and the prefix that tells their numbers apart.
_NOTES = {
    f"{WORD}footnoteReference": (RELATIONSHIP_TYPE.FOOTNOTES, ""),
    f"{WORD}endnoteReference": (RELATIONSHIP_TYPE.ENDNOTES, "e"),
}
_SPAN_MAX = 63
_BASES_MAX = 16
# What another archive is, by the beginning of a member's name.
_ARCHIVES = (
    ("xl/", "a spreadsheet (xlsx)"),
    ("ppt/", "a presentation (pptx)"),
    ("META-INF/MANIFEST.MF", "a Java archive"),
    ("META-INF/container.xml", "an EPUB book"),
    ("content.xml", "an OpenDocument file"),
    ("", "a zip archive"),
)


@dataclass(frozen=True, slots=True)
class _Style:
    """What a style says of paragraphs: its name, the style it is based on, and its properties of paragraphs."""

    name: str
    base: str
    properties: WordElement | None


@dataclass(slots=True)
class _Notes:
    """The texts of a document's notes by kind and number, and those that its text refers to, in order."""

    part: DocumentPart
    of_kind: dict[str, dict[str, WordElement]] = field(default_factory=dict[str, dict[str, WordElement]])
    referred: dict[str, WordElement] = field(default_factory=dict[str, WordElement])

    def mark(self, reference: WordElement) -> str:
        """What stands in the text for a reference; empty where there is no such note."""
        relationship, prefix = _NOTES[str(reference.tag)]
        if relationship not in self.of_kind:
            self.of_kind[relationship] = self._read(relationship)
        number = attribute(reference, "id")
        note = self.of_kind[relationship].get(number)
        if note is None:
            return ""
        self.referred[f"[^{prefix}{number}]"] = note
        return f"[^{prefix}{number}]"

    def _read(self, relationship: str) -> dict[str, WordElement]:
        root = _part(self.part, relationship)
        return {} if root is None else {attribute(note, "id"): note for note in root}


def extract(source: Path, _charset: str) -> Extracted:
    """The text of a docx. Raises NotExtracted for other archives, for one that inflates too far, and without text."""
    with ZipFile(source) as archive:
        members = archive.infolist()
    if not any(member.filename.startswith("word/document") for member in members):
        names = [member.filename for member in members]
        raise NotExtracted(
            "unsupported_file",
            next(
                (what for start, what in _ARCHIVES if any(name.startswith(start) for name in names)), "an empty archive"
            ),
        )
    # The library inflates every part, and no part beyond the size that stands here.
    if sum(member.file_size for member in members) > UNPACKED_BYTES_MAX:
        raise NotExtracted("file_too_costly")
    try:
        part = Document(str(source)).part
    except ValueError:
        raise NotExtracted("unsupported_file", "a Word document with macros, or a template") from None
    styles = _styles(cast(WordElement, part.styles.element))
    numbering = numbering_of(_part(part, RELATIONSHIP_TYPE.NUMBERING))
    writer = _Writer(styles, numbering, _Notes(part))
    text = writer.document(cast(WordElement, part.element))
    if writer.is_blank:
        raise NotExtracted("empty_file")
    return Extracted(encoded(text))


def _styles(root: WordElement) -> dict[str, _Style]:
    return {
        attribute(style, "styleId"): _Style(
            value(style, "name").lower(), value(style, "basedOn"), child_of(style, "pPr")
        )
        for style in root
        if style.tag == f"{WORD}style"
    }


def _part(document: DocumentPart, relationship: str) -> WordElement | None:
    """The root of a part that the library does not read; None without one."""
    try:
        return cast(WordElement, parse_xml(document.part_related_by(relationship).blob))
    except KeyError:
        return None


def _below(parent: WordElement, tag: str) -> Iterator[WordElement]:
    """The nearest elements of a kind below another: controls of content may stand between."""
    for child in parent:
        if child.tag == tag:
            yield child
        elif child.tag not in _LEFT_OUT:
            yield from _below(child, tag)


def _joined(blocks: Sequence[tuple[str, bool]]) -> Iterator[str]:
    """The blocks of a text with a blank line between them, but for the items of a list."""
    was_item = False
    for index, (text, is_item) in enumerate(blocks):
        if index:
            yield "\n" if was_item and is_item else "\n\n"
        yield text
        was_item = is_item


@dataclass(slots=True)
class _Writer:
    """Writes a document's text; `chars` and `is_blank` say how much of it there is so far."""

    styles: Mapping[str, _Style]
    numbering: Numbering
    notes: _Notes
    chars: int = 0
    is_blank: bool = True

    def document(self, body: WordElement) -> str:
        blocks = list(self._blocks(body))
        # A note may refer to further ones.
        told: set[str] = set()
        while pending := [(mark, note) for mark, note in self.notes.referred.items() if mark not in told]:
            for mark, note in pending:
                told.add(mark)
                blocks.append((f"{mark}: {self._line(note)}", True))
        return "".join((*_joined(blocks), "\n"))

    def _blocks(self, parent: WordElement) -> Iterator[tuple[str, bool]]:
        """The paragraphs and tables below an element; whether each is an item of a list."""
        for child in parent:
            if child.tag == _PARAGRAPH:
                yield from self._paragraph(child)
            elif child.tag == _TABLE:
                yield "\n".join(self._rows(child)), False
            elif child.tag not in _LEFT_OUT:
                yield from self._blocks(child)

    def _paragraph(self, paragraph: WordElement) -> Iterator[tuple[str, bool]]:
        boxes: list[WordElement] = []
        text = "".join(self._characters(paragraph, boxes)).strip("\n")
        # One without text counts in its list all the same.
        prefix, is_item = self._prefix(child_of(paragraph, "pPr"))
        if text.strip():
            self.is_blank = False
            yield f"{prefix}{text}", is_item
        for box in boxes:
            yield from self._blocks(box)

    def _characters(self, parent: WordElement, boxes: list[WordElement]) -> Iterator[str]:
        for child in parent:
            if child.tag in _TEXTS:
                self.chars += len(child.text or "")
                if self.chars > TEXT_BYTES_MAX:
                    raise NotExtracted("text_too_long")
                yield child.text or ""
            elif child.tag in _CHARACTERS:
                yield _CHARACTERS[str(child.tag)]
            elif child.tag in _NOTES:
                yield self.notes.mark(child)
            elif child.tag == _BOX:
                boxes.append(child)
            elif child.tag not in _LEFT_OUT:
                yield from self._characters(child, boxes)

    def _prefix(self, properties: WordElement | None) -> tuple[str, bool]:
        """What makes a paragraph a heading or an item of a list in Markdown, and whether it is an item."""
        names: list[str] = []
        outline = list_id = depth = ""
        for name, stated in self._chain(properties):
            names.append(name)
            outline = outline or value(stated, "outlineLvl")
            numbers = child_of(stated, "numPr")
            list_id, depth = list_id or value(numbers, "numId"), depth or value(numbers, "ilvl")
        indent = number(depth, 0, LEVELS - 1)
        label = self.numbering.label(list_id, indent)
        heading = next((name.removeprefix("heading ") for name in names if name.startswith("heading ")), "")
        level = 1 if "title" in names else number(heading, 0, 6) or number(outline, 9, 9) + 1
        if level < 10:
            return f"{'#' * min(level, 6)} {label}{' ' * (label != '')}", False
        return (f"{'   ' * indent}{label} ", True) if label else ("", False)

    def _chain(self, properties: WordElement | None) -> Iterator[tuple[str, WordElement | None]]:
        """What a paragraph, its style and the styles below that say, the nearest first, each with its style's name."""
        yield "", properties
        style_id = value(properties, "pStyle")
        # Bases may form a circle.
        for _ in range(_BASES_MAX):
            style = self.styles.get(style_id)
            if style is None:
                return
            yield style.name, style.properties
            style_id = style.base

    def _rows(self, table: WordElement) -> Iterator[str]:
        for index, row in enumerate(_below(table, _ROW)):
            cells: list[str] = []
            for cell in _below(row, _CELL):
                span = number(value(child_of(cell, "tcPr"), "gridSpan"), 1, _SPAN_MAX)
                cells += [self._line(cell).replace("|", "\\|"), *[""] * (span - 1)]
            yield f"| {' | '.join(cells)} |"
            if index == 0:
                yield f"|{' --- |' * len(cells)}"

    def _line(self, parent: WordElement) -> str:
        return "<br>".join("".join(_joined(list(self._blocks(parent)))).split("\n"))
