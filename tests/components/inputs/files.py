"""Files as clients upload them, written here byte by byte or by the libraries of their types."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from struct import pack
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import docx
from docx.document import Document
from PIL import Image

from app.inputs.reading import InputRefused, ReadInput, read_input


@dataclass(frozen=True, slots=True)
class Spool:
    """A directory with one uploaded file, which is read as the gateway reads it."""

    directory: Path

    @property
    def source(self) -> Path:
        return self.directory / "spooled"

    async def read(self, data: bytes, name: str = "file", declared: str | None = None) -> ReadInput:
        self.source.write_bytes(data)
        return await read_input(self.source, name, declared, self.directory)

    async def text(self, data: bytes, name: str = "file", declared: str | None = None) -> str:
        read = await self.read(data, name, declared)
        text = read.path.read_bytes()
        assert (read.kind, read.bytes) == ("text", len(text))
        return text.decode()

    async def refusal(self, data: bytes, name: str = "file", declared: str | None = None) -> InputRefused:
        """The refusal of a file, which leaves nothing but the file itself."""
        try:
            read = await self.read(data, name, declared)
        except InputRefused as refused:
            assert list(self.directory.iterdir()) == [self.source]
            assert refused.detail.endswith(".") and refused.remedy.endswith(".")
            assert "{" not in refused.detail
            return refused
        raise AssertionError(f"it was read: {read}")


def pdf_of(objects: Sequence[bytes]) -> bytes:
    """A PDF of these objects, whose first one is the catalogue."""
    written, offsets = b"%PDF-1.7\n", list[int]()
    for number, content in enumerate(objects, 1):
        offsets.append(len(written))
        written += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    trailer = b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, len(written))
    return written + b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1) + table + trailer


def pdf_of_streams(streams: Sequence[bytes]) -> bytes:
    """A PDF with a page for each stream object."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * index) for index in range(len(streams)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(streams)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for index, stream in enumerate(streams):
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >>"
            b" /Contents %d 0 R >>" % (5 + 2 * index),
            stream,
        ]
    return pdf_of(objects)


def pdf(*pages: Sequence[str]) -> bytes:
    """A PDF with the lines of each page."""
    return pdf_of_streams(
        [stream(b"".join(map(_line, lines)).join((b"BT /F1 12 Tf 14 TL 72 720 Td ", b"ET"))) for lines in pages]
    )


def _line(text: str) -> bytes:
    escaped = text.encode("cp1252").replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")
    return b"(%s) Tj T* " % escaped


def stream(data: bytes, further: bytes = b"") -> bytes:
    return b"<< /Length %d%s >>\nstream\n%s\nendstream" % (len(data), further, data)


def deflated_spaces(size_bytes: int) -> bytes:
    """Spaces that inflate more than a hundredfold."""
    piece, checksum = b" " * (1 << 20), 1
    packer = zlib.compressobj(9)
    first = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    # What follows a full flush inflates alike wherever it stands.
    further = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    for _ in range(size_bytes >> 20):
        checksum = zlib.adler32(piece, checksum)
    return first + further * ((size_bytes >> 20) - 1) + b"\x03\x00" + checksum.to_bytes(4, "big")


def written(document: Document) -> bytes:
    output = BytesIO()
    document.save(output)
    return output.getvalue()


def word(*paragraphs: str) -> bytes:
    document = docx.Document()
    for paragraph in paragraphs:
        document.add_paragraph(paragraph)
    return written(document)


def with_member(archive: bytes, name: str, data: bytes) -> bytes:
    """The archive with one member replaced or added."""
    output = BytesIO()
    with ZipFile(BytesIO(archive)) as before, ZipFile(output, "w", ZIP_DEFLATED) as after:
        for member in before.infolist():
            if member.filename != name:
                after.writestr(member, before.read(member))
        after.writestr(name, data)
    return output.getvalue()


def archive(*names: str) -> bytes:
    output = BytesIO()
    with ZipFile(output, "w") as made:
        for name in names:
            made.writestr(name, "<x/>")
    return output.getvalue()


def picture(kind: str, mode: str = "RGB", size: tuple[int, int] = (64, 48), **options: Any) -> bytes:
    """A picture with a gradient from left to right and a red upper left corner."""
    image = Image.linear_gradient("L").rotate(90).resize(size).convert("RGB")
    image.paste((255, 0, 0), (0, 0, size[0] // 4, size[1] // 4))
    output = BytesIO()
    image.convert(mode).save(output, kind, **options)
    return output.getvalue()


def png_header(width: int, height: int) -> bytes:
    """The beginning of a PNG that claims these pixels."""
    header = b"IHDR" + pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + pack(">I", 13) + header + pack(">I", zlib.crc32(header)) + pack(">I", 9) + b"IDAT"
