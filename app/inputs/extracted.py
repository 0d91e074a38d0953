"""What a child extracts of a file, or why it does not, and the limits of both."""

from dataclasses import dataclass

TEXT_BYTES_MAX = 16 << 20
"""The longest text of a file, in UTF-8: more than the context of any model."""

SOURCE_BYTES_MAX = 4 * TEXT_BYTES_MAX
"""The longest text in another encoding, none of which takes more than four times the bytes of UTF-8."""

PAGES_MAX = 2_000
PICTURE_BYTES_MAX = 8 << 20
PIXELS_MAX = 40_000_000

UNPACKED_BYTES_MAX = 256 << 20
"""What the parts of a docx take together once they are inflated."""


@dataclass(frozen=True, slots=True)
class Extracted:
    """The text in UTF-8, or the picture; the pages of a PDF, and the pixels of a picture."""

    data: bytes
    pages: int | None = None
    width: int | None = None
    height: int | None = None


class NotExtracted(Exception):
    """The code of a refusal; `detail` is what its sentence names."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.detail = detail


def encoded(text: str) -> bytes:
    """The text in UTF-8. Raises NotExtracted where it is too long."""
    data = text.encode()
    if len(data) > TEXT_BYTES_MAX:
        raise NotExtracted("text_too_long")
    return data
