"""A docx is its text in document order, as Markdown."""

import docx
import pytest
from docx.enum.style import WD_STYLE_TYPE
from docx.opc.constants import CONTENT_TYPE, RELATIONSHIP_TYPE
from docx.opc.packuri import PackURI
from docx.opc.part import Part
from docx.oxml import parse_xml

from app.inputs.word_numbering import numbering_of
from tests.components.inputs.files import Spool, archive, with_member, word, written

NAMESPACES = (
    'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    ' xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
)
TYPE = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


def with_body(*elements: str) -> bytes:
    """A docx with these elements, in the markup of its body."""
    document = docx.Document()
    for element in elements:
        name, _, _ = element[1:].partition(">")
        document.element.body.insert(-1, parse_xml(element.replace(f"<{name}>", f"<{name} {NAMESPACES}>", 1)))
    return written(document)


def paragraph(text: str) -> str:
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


async def test_headings_paragraphs_lists_and_tables_stand_in_order(spool: Spool) -> None:
    document = docx.Document()
    document.add_heading("Title", 0)
    document.add_heading("Part", 2)
    document.add_paragraph("One\ttab\nand a line")
    document.add_paragraph("a", style="List Bullet")
    document.add_paragraph("b", style="List Bullet")
    table = document.add_table(2, 2)
    table.cell(0, 0).text, table.cell(1, 1).text = "x|y", "z\nw"
    document.add_paragraph("end")
    read = await spool.read(written(document), "contract.doc", "application/msword")
    assert (read.media_type, read.kind, read.pages) == (TYPE, "text", None)
    assert read.path.read_text() == (
        "# Title\n\n## Part\n\nOne\ttab\nand a line\n\n- a\n- b\n\n| x\\|y |  |\n| --- | --- |\n|  | z<br>w |\n\nend\n"
    )


async def test_text_counts_once_wherever_it_stands(spool: Spool) -> None:
    data = with_body(
        '<w:p><w:ins w:id="1"><w:r><w:t>inserted</w:t></w:r></w:ins><w:del><w:r><w:delText>x</w:delText></w:r></w:del>'
        "<w:moveFrom><w:r><w:t>moved</w:t></w:r></w:moveFrom></w:p>",
        f"<w:sdt><w:sdtPr><w:alias/></w:sdtPr><w:sdtContent>{paragraph('a control')}</w:sdtContent></w:sdt>",
        "<w:p><w:r><w:t>beside</w:t></w:r><mc:AlternateContent><mc:Choice><w:txbxContent>"
        f"{paragraph('a box')}</w:txbxContent></mc:Choice><mc:Fallback><w:txbxContent>{paragraph('a box')}"
        "</w:txbxContent></mc:Fallback></mc:AlternateContent></w:p>",
        "<w:tbl><w:tr><w:tc><w:tcPr><w:gridSpan w:val='2'/></w:tcPr><w:p/></w:tc></w:tr></w:tbl>",
    )
    assert await spool.text(data) == "inserted\n\na control\n\nbeside\n\na box\n\n|  |  |\n| --- | --- |\n"


def numbered(list_id: int, depth: int, text: str) -> str:
    properties = f"<w:pPr><w:numPr><w:ilvl w:val='{depth}'/><w:numId w:val='{list_id}'/></w:numPr></w:pPr>"
    return paragraph(text).replace("<w:p>", f"<w:p>{properties}", 1)


async def test_paragraphs_have_the_numbers_that_word_shows(spool: Spool) -> None:
    levels = [("decimal", "%1."), ("lowerLetter", "%1.%2)"), ("upperRoman", "(%3)"), ("bullet", "\uf0b7")]
    declared = "".join(
        f"<w:lvl w:ilvl='{depth}'><w:start w:val='{4 if depth == 0 else 1}'/><w:numFmt w:val='{kind}'/>"
        f"<w:lvlText w:val='{text}'/></w:lvl>"
        for depth, (kind, text) in enumerate(levels)
    )
    lists = (
        f"<w:numbering {NAMESPACES}><w:abstractNum w:abstractNumId='7'>{declared}</w:abstractNum>"
        "<w:num w:numId='1'><w:abstractNumId w:val='7'/></w:num><w:num w:numId='2'><w:abstractNumId w:val='7'/></w:num>"
        "<w:num w:numId='3'><w:abstractNumId w:val='7'/><w:lvlOverride w:ilvl='0'/></w:num></w:numbering>"
    )
    depths = [(1, 0), (1, 1), (1, 1), (1, 2), (2, 0), (1, 1), (1, 3), (3, 0), (3, 2), (9, 0)]
    data = with_body(*(numbered(list_id, depth, f"text {n}") for n, (list_id, depth) in enumerate(depths)))
    assert (await spool.text(with_member(data, "word/numbering.xml", lists.encode()))).splitlines() == [
        "4. text 0",
        "   4.a) text 1",
        "   4.b) text 2",
        "      (I) text 3",
        "5. text 4",
        "   5.a) text 5",
        "         - text 6",
        "4. text 7",
        "      (I) text 8",
        "",
        "text 9",
    ]


@pytest.mark.parametrize(
    ("kind", "count", "shown"),
    [
        ("lowerLetter", 28, "bb"),
        ("upperLetter", 3, "C"),
        ("lowerRoman", 1_994, "mcmxciv"),
        ("upperRoman", 999_999, "999999"),
        ("lowerLetter", 999_999, "999999"),
        ("decimalZero", 7, "07"),
        ("none", 7, ""),
        ("decimal", 0, "0"),
        ("hebrew1", 12, "12"),
    ],
)  # fmt: skip
async def test_a_number_is_written_as_its_list_says(kind: str, count: int, shown: str) -> None:
    root = parse_xml(
        f"<w:numbering {NAMESPACES}><w:abstractNum w:abstractNumId='7'><w:lvl w:ilvl='0'><w:start w:val='{count}'/>"
        f"<w:numFmt w:val='{kind}'/><w:lvlText w:val='%1%2'/></w:lvl></w:abstractNum>"
        "<w:num w:numId='1'><w:abstractNumId w:val='7'/></w:num></w:numbering>"
    )
    assert numbering_of(root).label("1", 0) == shown


async def test_notes_stand_where_they_are_referred_to_and_at_the_end(spool: Spool) -> None:
    document = docx.Document()
    notes = "".join(f"<w:footnote w:id='{n}'>{paragraph(f'note {n}')}{paragraph('more')}</w:footnote>" for n in (1, 2))
    blob = f"<w:footnotes {NAMESPACES}>{notes}</w:footnotes>".encode()
    name = PackURI("/word/footnotes.xml")
    document.part.relate_to(
        Part(name, CONTENT_TYPE.WML_FOOTNOTES, blob, document.part.package), RELATIONSHIP_TYPE.FOOTNOTES
    )
    run = document.add_paragraph("claim").add_run()
    for element in ("footnoteReference w:id='2'", "footnoteReference w:id='99'", "endnoteReference w:id='1'"):
        run._r.append(parse_xml(f"<w:{element.replace(' ', f' {NAMESPACES} ', 1)}/>"))
    assert await spool.text(written(document)) == "claim[^2]\n\n[^2]: note 2<br><br>more\n"


async def test_styles_that_are_based_on_each_other_end(spool: Spool) -> None:
    document = docx.Document()
    style = document.styles.add_style("Circle", WD_STYLE_TYPE.PARAGRAPH)
    style.base_style = style
    document.add_paragraph("text", style=style)
    assert await spool.text(written(document)) == "text\n"


async def test_external_entities_are_not_resolved(spool: Spool) -> None:
    secret = spool.directory.parent / "secret"
    secret.write_text("the secret")
    body = f"<w:document {NAMESPACES}><w:body><w:p><w:r><w:t>text &x;</w:t></w:r></w:p></w:body></w:document>"
    doctype = f'<!DOCTYPE w:document [<!ENTITY x SYSTEM "{secret.as_uri()}">]>'
    data = with_member(word("text"), "word/document.xml", f"<?xml version='1.0'?>{doctype}{body}".encode())
    assert await spool.text(data) == "text \n"


async def test_entities_that_multiply_are_refused(spool: Spool) -> None:
    entities = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10 if n else "text"}">' for n in range(12))
    body = f"<w:document {NAMESPACES}><w:body><w:p><w:r><w:t>text &a11;</w:t></w:r></w:p></w:body></w:document>"
    document = f"<!DOCTYPE w:document [{entities}]>{body}".encode()
    assert (await spool.refusal(with_member(word("text"), "word/document.xml", document))).code == "broken_file"


async def test_an_archive_that_inflates_too_far_is_refused(spool: Spool) -> None:
    bomb = b"<w:t>" + bytes(300 << 20)
    refused = await spool.refusal(with_member(word("text"), "word/document.xml", bomb))
    assert refused.code == "file_too_costly"


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (("xl/workbook.xml", "[Content_Types].xml"), "a spreadsheet (xlsx)"),
        (("ppt/presentation.xml",), "a presentation (pptx)"),
        (("META-INF/MANIFEST.MF", "Main.class"), "a Java archive"),
        (("mimetype", "content.xml"), "an OpenDocument file"),
        (("mimetype", "META-INF/container.xml"), "an EPUB book"),
        (("a.txt",), "a zip archive"),
        ((), "an empty archive"),
    ],
)
async def test_another_archive_is_refused_by_its_name(spool: Spool, names: tuple[str, ...], what: str) -> None:
    refused = await spool.refusal(archive(*names), "a.docx", TYPE)
    assert (refused.code, what in refused.detail) == ("unsupported_file", True)


async def test_a_docx_without_text_is_refused(spool: Spool) -> None:
    document = docx.Document()
    document.add_table(2, 2)
    document.add_paragraph(" ", style="List Number")
    assert (await spool.refusal(written(document))).code == "empty_file"


@pytest.mark.parametrize("end", [10, -30])
async def test_a_broken_docx_is_refused(spool: Spool, end: int) -> None:
    assert (await spool.refusal(word("text")[:end])).code == "broken_file"
