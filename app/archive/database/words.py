"""The words of texts, split in one way for both databases, and the filters that are kept as words.

A word is a run of letters and digits in NFKC, case folded; a Chinese or Japanese character is a word by itself.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator

from app.archive.database.rows import label, labels_of
from app.deliberation.facts import TERMINAL_STATUS
from app.deliberation.fold import State
from app.deliberation.works import works

WORD_CHARS_MAX = 64
# PostgreSQL holds 1 MiB of words and positions for a row; a position takes up to 6 bytes beside its word.
BYTES_MAX = 1_000_000
_PLACE_BYTES = 6
_UNSIGNED = (1 << 64) - 1
# Stands between texts, so that no phrase reaches from one into the next. No text has this word.
BOUNDARY = "¶"
_SINGLE = (
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# Find the words of most texts faster than `_WORD` does.
_ASCII = {code: chr(code).lower() if chr(code).isalnum() else " " for code in range(128)}
_MARKS = re.compile(r"[^\w\x00-\x7f]+")
_WORD = re.compile(rf"[{_SINGLE}]|[^\W_{_SINGLE}]{{1,{WORD_CHARS_MAX}}}")


def split(text: str) -> list[str]:
    return _separated(text).split()


def _separated(text: str) -> str:
    """The words with spaces between them; without a list of them where the text allows it, because that is faster."""
    if not text.isascii():
        # Quotation marks and dashes are all that is not ASCII in most texts.
        text = _MARKS.sub(" ", unicodedata.normalize("NFKC", text))
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
    answers = (version.text for work in works(state) for version in work.versions)
    found = dict.fromkeys((state.specification.task, *decided, *answers))
    texts = (f"{BOUNDARY} {_separated(text)}" for text in found)
    words = " ".join((*(_marked(each) for each in sorted(filters)), *texts))
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
