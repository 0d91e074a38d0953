"""Texts in other encodings than UTF-8: by their byte order mark, as they are declared, or as they are detected."""

import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from pathlib import Path

from app.inputs.extracted import Extracted, NotExtracted, encoded

_BYTE_ORDER_MARKS = (
    (BOM_UTF8, "utf-8"),
    # Before those of UTF-16, with which they begin.
    (BOM_UTF32_LE, "utf-32-le"),
    (BOM_UTF32_BE, "utf-32-be"),
    (BOM_UTF16_LE, "utf-16-le"),
    (BOM_UTF16_BE, "utf-16-be"),
    (b"\x84\x31\x95\x33", "gb18030"),
)
# They are encodings of Python, of host names and of one application, and no text is sent in them.
_OTHER_CODECS = re.compile(r"unicode|raw|idna|punycode|undefined|utf_?7|mbcs|oem|ansi")
# The encodings of files that are detected, the most widespread first.
_DETECTED = (
    *("cp1252", "cp932", "euc_jp", "gb18030", "big5", "cp949", "cp1251", "koi8_r", "cp866", "cp1250", "iso8859_2"),
    *("cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874", "mac_roman", "cp850", "cp437"),
)
# How much less likely than the best one an encoding may be that is chosen because it is more widespread. With less,
# French in cp1252 is taken for Baltic.
_CHAOS_MARGIN = 0.06
_COHERENCE_MARGIN = 0.1
# Controls that stand in no text of a legacy encoding, whose bytes are therefore none.
_BINARY_CONTROLS = re.compile("[\x00-\x07\x0e-\x1a\x1c-\x1f]")


def byte_order_mark(head: bytes) -> tuple[bytes, str]:
    """The byte order mark that data begin with, and its encoding; both empty without one."""
    return next(((mark, name) for mark, name in _BYTE_ORDER_MARKS if head.startswith(mark)), (b"", ""))


def extract(source: Path, charset: str) -> Extracted:
    """The text of a file in UTF-8. Raises NotExtracted where no encoding makes it one."""
    data = source.read_bytes()
    mark, encoding = byte_order_mark(data)
    if mark:
        text = _decoded(data[len(mark) :], encoding)
        if text is None:
            raise NotExtracted("invalid_encoding", encoding.upper())
    else:
        text = _decoded(data, charset) or _decoded(data, "utf-8") or _cut(data) or _detected(data)
    if not text or text.isspace():
        raise NotExtracted("unsupported_file" if text is None else "empty_file")
    return Extracted(encoded(text))


def _decoded(data: bytes, encoding: str) -> str | None:
    """The text by an encoding; None where it is none, does not fit, or finds characters that no text has."""
    if not encoding or _OTHER_CODECS.match(encoding):
        return None
    try:
        text = data.decode(encoding)
    except (LookupError, ValueError):
        return None
    return None if "\0" in text or (not encoding.startswith("utf") and _BINARY_CONTROLS.search(text)) else text


def _cut(data: bytes) -> str | None:
    """The text of a piece of a text in UTF-8, such as the end of a log, which begins or ends within a character."""
    text = data.decode("utf-8", "replace")
    whole = text.strip("\ufffd")
    return None if "\ufffd" in whole or "\0" in whole or whole.isascii() or len(text) - len(whole) > 4 else text


def _detected(data: bytes) -> str | None:
    """The text by the encoding that fits best, or as well as any and is more widespread."""
    # It takes longer to import than most files take to read.
    from charset_normalizer import from_bytes

    matches = from_bytes(data, cp_isolation=list(_DETECTED))
    best = matches.best()
    if best is None:
        return None
    fitting = {
        name
        for match in matches
        if match.chaos <= best.chaos + _CHAOS_MARGIN and match.coherence >= best.coherence - _COHERENCE_MARGIN
        # An encoding that reads this text alike stands below the first of its kind.
        for name in (match.encoding, *match.could_be_from_charset)
    }
    return _decoded(data, next((name for name in _DETECTED if name in fitting), best.encoding))
