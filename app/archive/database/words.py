"""The words of a deliberation's texts, split in one way for both databases, and the filters that are kept as words.

A word is a run of letters and digits in NFKC, case folded; a Chinese or Japanese character is a word by itself.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator

from app.archive.database.rows import label, labels_of
from app.catalog.projection import answers
from app.deliberation.fold import State

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
# Finds the words of most texts in a third of the time.
_ASCII = {code: chr(code).lower() if chr(code).isalnum() else " " for code in range(128)}
_WORD = re.compile(rf"[{_SINGLE}]|[^\W_{_SINGLE}]{{1,{WORD_CHARS_MAX}}}")


def split(text: str) -> list[str]:
    """The words of a text in order; one of more than WORD_CHARS_MAX characters becomes several."""
    if text.isascii():
        words = text.translate(_ASCII).split()
        if max(map(len, words), default=0) <= WORD_CHARS_MAX:
            return words
    else:
        text = unicodedata.normalize("NFKC", text)
    return _WORD.findall(text.casefold())


def filter_word(tenant: str, parameter: str, value: str) -> str:
    """What a search finds a deliberation by when a list has this parameter with this value.

    No text has this word, because `§` is neither a letter nor a digit.
    """
    return _marked(label(tenant, parameter, value))


def _marked(label: int) -> str:
    return f"§{label & _UNSIGNED:016x}"


def document(tenant: str, state: State) -> list[str]:
    """All words of a deliberation: its filters, its task, its verdict and every answer, the last words cut if need be.

    A text that is repeated counts once.
    """
    verdict = None if state.end is None else state.end.verdict
    filters = {label(tenant, "tenant", tenant), label(tenant, "status", state.status), *labels_of(tenant, state)}
    words = [_marked(each) for each in sorted(filters)]
    decided = () if verdict is None or verdict.content is None else (verdict.content,)
    for text in dict.fromkeys((state.specification.task, *decided, *answers(state))):
        words += [BOUNDARY, *split(text)]
    return words if _size(words) <= BYTES_MAX else list(_fitting(words))


def _size(words: list[str]) -> int:
    return len("".join(words).encode()) + _PLACE_BYTES * len(words)


def _fitting(words: Iterable[str]) -> Iterator[str]:
    left = BYTES_MAX
    for word in words:
        left -= len(word.encode()) + _PLACE_BYTES
        if left < 0:
            return
        yield word
