"""What a file is, by its first bytes, then by the suffix of its name, then by what its sender declares."""

import re
from collections.abc import Mapping

from python_multipart.multipart import parse_options_header

PDF = "application/pdf"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
ZIP = "application/zip"
PICTURES = ("image/png", "image/jpeg", "image/webp", "image/gif")

HEAD_BYTES = 1_024
"""How many of a file's first bytes say what it is."""

_DECLARED_CHARS_MAX = 255
_SUFFIX_CHARS_MAX = 16
_TEXT_SUFFIXES: Mapping[str, str] = {
    "css": "text/css",
    "csv": "text/csv",
    "htm": "text/html",
    "html": "text/html",
    "ipynb": "application/x-ipynb+json",
    "js": "text/javascript",
    "json": "application/json",
    "jsonl": "application/jsonl",
    "md": "text/markdown",
    "markdown": "text/markdown",
    "mjs": "text/javascript",
    "ndjson": "application/x-ndjson",
    "py": "text/x-python",
    "rst": "text/x-rst",
    "sh": "application/x-sh",
    "sql": "application/sql",
    "svg": "image/svg+xml",
    "tex": "text/x-tex",
    "toml": "application/toml",
    "tsv": "text/tab-separated-values",
    "xhtml": "application/xhtml+xml",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
}
_TEXT_TYPE = re.compile(
    r"text/(?!rtf$)[a-z0-9!#$&^_.+-]{1,64}|(application|image|model|message)/[a-z0-9.-]{1,64}\+(json|xml|yaml)"
)
_CHARSET = re.compile(r"[a-z0-9][a-z0-9_.:+-]{0,39}")
_FURTHER_TEXT_TYPES = frozenset(
    {
        *(media_type for media_type in _TEXT_SUFFIXES.values() if not media_type.startswith("text/")),
        *("application/javascript", "application/ecmascript", "application/typescript", "application/x-yaml"),
        *("application/x-httpd-php", "application/x-python", "application/graphql", "application/x-tex"),
    }
)

# What binary data are that agents cannot read: the first bytes, or those at an offset, and what a refusal calls them.
_BINARY: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"BZh", "a bzip2 archive"),
    (0, b"\xfd7zXZ\0", "an xz archive"),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (0, b"Rar!\x1a\x07", "a RAR archive"),
    (257, b"ustar", "a tar archive"),
    (0, b"\x7fELF", "a program"),
    (0, b"MZ", "a program for Windows"),
    (0, b"\xcf\xfa\xed\xfe", "a program for macOS"),
    (0, b"\xca\xfe\xba\xbe", "compiled Java or a program for macOS"),
    (0, b"\0asm", "a WebAssembly module"),
    (0, b"SQLite format 3\0", "an SQLite database"),
    (0, b"PAR1", "a Parquet file"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an encrypted or old document of Office"),
    (0, b"ID3", "MP3 audio"),
    (0, b"\xff\xfb", "MP3 audio"),
    (0, b"OggS", "Ogg audio or video"),
    (0, b"fLaC", "FLAC audio"),
    (8, b"WAVE", "WAV audio"),
    (8, b"AVI ", "AVI video"),
    (4, b"ftypavif", "an AVIF picture"),
    (4, b"ftyphei", "a HEIC picture"),
    (4, b"ftypmif1", "a HEIC picture"),
    (4, b"ftypM4A", "MPEG-4 audio"),
    (4, b"ftyp", "MPEG-4 video"),
    (0, b"\x1a\x45\xdf\xa3", "Matroska or WebM video"),
    (0, b"II*\0", "a TIFF picture"),
    (0, b"MM\0*", "a TIFF picture"),
    (0, b"BM", "a BMP picture"),
    (0, b"\0\0\1\0", "an icon"),
    (0, b"8BPS", "a Photoshop picture"),
    (0, b"\0\0\0\x0cjP  ", "a JPEG 2000 picture"),
    (0, b"\0\0\0\x0cJXL ", "a JPEG XL picture"),
    (0, b"\xff\x0a", "a JPEG XL picture"),
    (0, b"\0\1\0\0\0", "a font"),
    (0, b"OTTO", "a font"),
    (0, b"wOF", "a font"),
    (0, b"{\\rtf", "an RTF document"),
)


def signature(head: bytes) -> str | None:
    """The media type of a file that is no text, by its first bytes; None where they are of no type that is taken."""
    if head.startswith(b"RIFF"):
        return "image/webp" if head[8:12] == b"WEBP" else None
    # Some programs write a byte order mark or lines before it.
    if head.lstrip(b"\xef\xbb\xbf\0 \t\r\n").startswith(b"%PDF-"):
        return PDF
    signatures = (
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF87a", "image/gif"),
        (b"GIF89a", "image/gif"),
        (b"PK\x03\x04", ZIP),
        (b"PK\x05\x06", ZIP),
    )
    return next((media_type for start, media_type in signatures if head.startswith(start)), None)


def is_rtf(head: bytes) -> bool:
    """Whether it is an RTF document: ASCII alone, and yet no text that a reader could read."""
    return head.startswith(b"{\\rtf")


def name_of_binary(head: bytes) -> str:
    """What a refusal calls data that are no text."""
    return next(
        (name for offset, start, name in _BINARY if head.startswith(start, offset)),
        "binary data of no type that is read",
    )


def text_type(name: str, declared: str | None) -> str:
    """The media type of a file that is a text."""
    suffix = name[-_SUFFIX_CHARS_MAX - 1 :].rpartition(".")[2].lower()
    if suffix in _TEXT_SUFFIXES:
        return _TEXT_SUFFIXES[suffix]
    media_type = _options(declared)[0]
    return media_type if _TEXT_TYPE.fullmatch(media_type) or media_type in _FURTHER_TEXT_TYPES else "text/plain"


def declared_charset(declared: str | None) -> str:
    """The charset parameter of a declared media type; empty without one."""
    charset = _options(declared)[1]
    # It becomes an argument of a command, which takes no NUL.
    return charset if _CHARSET.fullmatch(charset) else ""


def _options(declared: str | None) -> tuple[str, str]:
    if declared is None or len(declared) > _DECLARED_CHARS_MAX or not declared.isascii():
        return "", ""
    media_type, options = parse_options_header(declared)
    return media_type.decode("latin-1").lower(), options.get(b"charset", b"").decode("latin-1").lower()
