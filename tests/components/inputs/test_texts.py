"""Texts are as they are: every encoding becomes UTF-8, and nothing else of them changes."""

import asyncio

import pytest

from app.inputs import reading
from app.inputs.extracted import TEXT_BYTES_MAX
from tests.components.inputs.files import Spool

GERMAN = "Größe und Länge der Straße stehen im Anhang; die Prüfung übernimmt Herr Müller für 20 £.\r\n"
FRENCH = "L'été dernier, les élèves étaient déjà arrivés à l'école avant huit heures; où était la clé ?\n"
POLISH = "Zażółć gęślą jaźń. Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.\n"
RUSSIAN = "Все люди рождаются свободными и равными в своём достоинстве и правах.\n"
JAPANESE = "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。\r\n"
CHINESE = "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。\n"


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a child was started")

    monkeypatch.setattr(reading, "run_child", refuse)


@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize(
    ("text", "name", "declared", "media_type"),
    [
        ("# Title\r\n\r\n\x1b[31mtext\x1b[0m\r", "notes.MD", None, "text/markdown"),
        ('{"a": 1}', "a.json", "text/plain", "application/json"),
        ("<svg/>", "a.svg", "image/svg+xml", "image/svg+xml"),
        ("<p>größer</p>", "a/../b.html", "text/html; charset=utf-8", "text/html"),
        ("MZ BM ID3 are the first bytes of programs", "program.exe", "application/octet-stream", "text/plain"),
        ("%PDF is how a PDF begins", "a.pdf", "application/pdf", "text/plain"),
        ("a: 1", "unknown", "application/vnd.acme+yaml", "application/vnd.acme+yaml"),
        ("fn main() {}", "main.rs", "text/x-rust", "text/x-rust"),
        ("日本語", "\0\n" * 5_000 + ".py", "€" * 300, "text/x-python"),
        ("x", "a", ";" * 200, "text/plain"),
        ("x", "a", "text/rtf", "text/plain"),
    ],
)  # fmt: skip
async def test_a_text_in_utf_8_is_not_copied(
    spool: Spool, text: str, name: str, declared: str | None, media_type: str
) -> None:
    read = await spool.read(text.encode(), name, declared)
    assert (read.media_type, read.kind, read.path, read.bytes) == (media_type, "text", spool.source, len(text.encode()))
    assert read.path.read_bytes() == text.encode()


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (GERMAN, "latin-1"),
        (FRENCH, "cp1252"),
        (POLISH, "cp1250"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "koi8-r"),
        (JAPANESE, "shift_jis"),
        (JAPANESE, "euc-jp"),
        (CHINESE, "gb18030"),
        (CHINESE, "big5"),
    ],
)  # fmt: skip
async def test_an_encoding_is_detected(spool: Spool, text: str, encoding: str) -> None:
    assert await spool.text((text * 3).encode(encoding, "ignore")) == (text * 3).encode(encoding, "ignore").decode(
        encoding
    )


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
async def test_a_byte_order_mark_says_the_encoding_and_is_removed(spool: Spool, encoding: str) -> None:
    text = GERMAN + CHINESE + "\U0001f600"
    marked = text if encoding in ("utf-8-sig", "utf-16", "utf-32") else f"\ufeff{text}"
    assert await spool.text(marked.encode(encoding), declared="text/plain; charset=latin-1") == text


@pytest.mark.parametrize(
    ("text", "encoding", "charset"),
    [
        ("Größe", "latin-1", "ISO-8859-1"),
        ("日本", "shift_jis", '"Shift_JIS"'),
        ("日本語", "iso2022_jp", "iso-2022-jp"),
        ("中文", "gb18030", "gb18030"),
        ("ab", "utf-16-le", "utf-16le"),
        # What is declared and does not fit is no encoding of the text.
        ("größer", "utf-8", "iso-2022-jp"),
        ("größer", "utf-8", "rot13"),
        ("größer", "utf-8", "unicode_escape"),
        ("größer", "utf-8", "../os"),
        ("größer", "utf-16", "latin-1\0"),
        ("größer", "utf-16", "-c"),
    ],
)  # fmt: skip
async def test_a_declared_encoding_is_taken_where_it_fits(spool: Spool, text: str, encoding: str, charset: str) -> None:
    assert await spool.text(text.encode(encoding), declared=f"text/csv; charset={charset}") == text


@pytest.mark.parametrize("data", [b"", b" \r\n\t\n", b"\xef\xbb\xbf", "\ufeff \n".encode("utf-16-le")])
async def test_a_blank_file_is_refused(spool: Spool, data: bytes) -> None:
    assert (await spool.refusal(data)).code == "empty_file"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x7fELF\2\1\1\0", "a program"),
        (b"MZ\x90\0\3", "a program for Windows"),
        (b"ID3\4\0\0", "MP3 audio"),
        (b"\xff\xfb\x90\x64\0", "MP3 audio"),
        (b"RIFF\4\0\0\0WAVEfmt ", "WAV audio"),
        (b"\0\0\0\x18ftypmp42", "MPEG-4 video"),
        (b"\0\0\0\x18ftypheic", "a HEIC picture"),
        (b"\x1f\x8b\x08\0", "a gzip archive"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0\0", "an encrypted or old document of Office"),
        (b"{\\rtf1\\ansi text}", "an RTF document"),
        (b"text\0text", "binary data of no type that is read"),
        (b"\xff\xfe\x00\xd8a\0", None),
        (b"\xff\xfea\0\0\0", None),
        (bytes(range(1, 256)) * 8, "binary data of no type that is read"),
    ],
)  # fmt: skip
async def test_what_is_no_text_is_refused_by_its_name(spool: Spool, data: bytes, what: str | None) -> None:
    refused = await spool.refusal(data, "text.txt", "text/plain; charset=latin-1")
    assert refused.code == ("unsupported_file" if what else "invalid_encoding")
    assert (what or "UTF-16-LE") in refused.detail


@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize("before", [0, 1 << 20], ids=["at the beginning", "behind a text"])
async def test_a_text_has_no_nul(spool: Spool, before: int) -> None:
    refused = await spool.refusal(b"a" * before + b"text\0text")
    assert (refused.code, "binary data" in refused.detail) == ("unsupported_file", True)


@pytest.mark.usefixtures("no_child")
async def test_a_text_that_no_model_reads_is_refused(spool: Spool) -> None:
    longest = "ä".encode() * (TEXT_BYTES_MAX // 2)
    assert (await spool.read(longest)).bytes == TEXT_BYTES_MAX
    assert (await spool.refusal(longest + b"a")).code == "text_too_long"
    assert (await spool.refusal(longest + b"a" * TEXT_BYTES_MAX + b"\xff")).code == "text_too_long"


async def test_a_long_text_is_checked_across_its_pieces(spool: Spool) -> None:
    data = b"a" + "ä".encode() * 300_000
    assert (await spool.read(data)).path == spool.source
    assert (await spool.text(data[:-1] + b"\xe4", declared="text/plain; charset=cp1252"))[-1] == "ä"


async def test_a_piece_of_a_text_in_utf_8_is_read_as_such(spool: Spool) -> None:
    data = CHINESE.encode()
    assert await spool.text(data[2:-2]) == f"\ufffd{CHINESE[1:-2]}\ufffd"


async def test_a_text_of_another_encoding_is_bounded_in_utf_8(spool: Spool) -> None:
    data = ("\ufeff" + "文" * (TEXT_BYTES_MAX // 3 + 1)).encode("utf-16-le")
    assert (await spool.refusal(data)).code == "text_too_long"


async def test_the_loop_goes_on_while_a_text_is_checked(spool: Spool) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(turn())
    await spool.read("語".encode() * (TEXT_BYTES_MAX // 3))
    task.cancel()
    assert turns > 10
