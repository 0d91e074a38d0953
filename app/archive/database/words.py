"""The words of texts, split in one way for both databases, and the filters that are kept as words.

A word is a run of letters and digits in NFKC, case folded, with the marks on them. Where writers put no spaces between
words, or join endings to them (Chinese, Japanese, Korean, Thai, Lao, Khmer, Burmese), each character is a word.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator

from app.archive.database.rows import label, labels_of
from app.deliberation.contributions import contributions
from app.deliberation.facts import TERMINAL_STATUS
from app.deliberation.fold import State

WORD_CHARS_MAX = 64
# PostgreSQL holds 1 MiB of words and positions for a row; a position takes up to 6 bytes beside its word.
BYTES_MAX = 1_000_000
_PLACE_BYTES = 6
_UNSIGNED = (1 << 64) - 1
# Stands between texts, so that no phrase reaches from one into the next. No text has this word.
BOUNDARY = "¶"
# Thai, Lao, Burmese, Khmer and their neighbours, of which digits and marks are no letters.
_SOUTHEAST_ASIAN = (
    *(range(0x0E01, 0x0F00), range(0x1000, 0x10A0), range(0x1780, 0x1800), range(0x1950, 0x19E0)),
    *(range(0x1A20, 0x1AB0), range(0x1B00, 0x1B80), range(0xA980, 0xAA00), range(0xAA60, 0xAA80)),
)
# Han, kana, Hangul, and those.
_UNSPACED = (
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua48c"
    "\ua960-\ua97c\uac00-\ud7fb\u1100-\u11ff\uf900-\ufaff\U00020000-\U0003ffff"
) + "".join(chr(code) for codes in _SOUTHEAST_ASIAN for code in codes if chr(code).isalpha())
# The marks that stand on letters: vowels of Indic scripts, tones of Thai. The scripts beyond 16 bits are one range,
# because `re` compares a character with each such entry of a class in turn.
_MARKS_ON_LETTERS = (
    "".join(chr(code) for code in range(0x300, 0x10000) if unicodedata.category(chr(code)) in ("Mn", "Mc"))
    + "\U00011000-\U00011fff"
)
# Find the words of most texts faster than `_WORD` does.
_ASCII = {code: chr(code).lower() if chr(code).isalnum() else " " for code in range(128)}
_PUNCTUATION = re.compile(rf"[^\w\x00-\x7f{_MARKS_ON_LETTERS}]+")
# Vowel points that Arabic and Hebrew mostly leave out, the stretching of a word, and joiners that only shape letters.
_LEFT_OUT = re.compile(
    "[\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u00ad\u200d\u2060]|(?<=[\u0900-\u0dff])\u200c"
)
SINGLE = re.compile(rf"[{_UNSPACED}][{_MARKS_ON_LETTERS}]{{0,8}}")
_WORD = re.compile(
    rf"{SINGLE.pattern}|[^\W_{_UNSPACED}](?:[^\W_{_UNSPACED}]|[{_MARKS_ON_LETTERS}]){{0,{WORD_CHARS_MAX - 1}}}"
)


def split(text: str) -> list[str]:
    return _separated(text).split()


def _separated(text: str) -> str:
    """The words with spaces between; no list of words is made where the text allows it, because that is faster."""
    if not text.isascii():
        # Quotation marks and dashes are all that is not ASCII in most texts.
        text = _PUNCTUATION.sub(" ", _LEFT_OUT.sub("", unicodedata.normalize("NFKC", text)))
    if text.isascii():
        words = text.translate(_ASCII)
        if _all_short(words):
            return words
    return " ".join(_WORD.findall(text.casefold()))


def _all_short(words: str) -> bool:
    space = -1
    while len(words) - space - 1 > WORD_CHARS_MAX:
        space = words.rfind(" ", space + 1, space + WORD_CHARS_MAX + 2)
        if space < 0:
            return False
    return True


def filter_word(tenant: str, parameter: str, value: str) -> str:
    """Returns the word of a parameter's value. No text has it, because `§` is neither letter nor digit."""
    return _marked(label(tenant, parameter, value))


def status_value(status: str) -> str:
    """Returns the word of a status. All statuses before the end share one, so that their changes write no words."""
    return status if status in TERMINAL_STATUS.values() else "active"


def _marked(label: int) -> str:
    return f"§{label & _UNSIGNED:016x}"


def document(tenant: str, state: State) -> str:
    """Returns the words of filters and texts; a repeated text counts once, and words beyond BYTES_MAX are left out."""
    verdict = None if state.end is None else state.end.verdict
    status = status_value(state.status)
    filters = {label(tenant, "tenant", tenant), label(tenant, "status", status), *labels_of(tenant, state)}
    decided = () if verdict is None or verdict.content is None else (verdict.content,)
    answers = (version.text for contribution in contributions(state) for version in contribution.versions)
    distinct = dict.fromkeys((state.specification.task, *decided, *answers))
    texts = (f"{BOUNDARY} {_separated(text)}" for text in distinct)
    words = " ".join((*(_marked(filter_text) for filter_text in sorted(filters)), *texts))
    # Where words have several spaces between them, this is more than their size.
    size_max = len(words.encode()) + _PLACE_BYTES * (1 + words.count(" "))
    return words if size_max <= BYTES_MAX else " ".join(_fitting(words.split()))


def _fitting(words: Iterable[str]) -> Iterator[str]:
    left = BYTES_MAX
    for word in words:
        left -= len(word.encode()) + _PLACE_BYTES
        if left < 0:
            return
        yield word
