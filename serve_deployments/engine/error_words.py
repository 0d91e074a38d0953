"""What the text of an engine's error says: its words on one line, and the cause that status and words tell."""

import re
from typing import Any, cast

from pydantic_core import from_json

from app.deliberation.engine_troubles import TroubleCause

WORDS_MAX = 300
_MEMORY = re.compile(r"out of memory|\bOOM\b|OutOfMemory|not enough memory|insufficient memory", re.IGNORECASE)
_MODEL = re.compile(r"\bmodel\b.{0,200}(?:not (?:exist|found|served|available)|unknown)|model_not_found", re.IGNORECASE)
_NO_TEXT = re.compile("[\x00-\x20\x7f-\xa0\xad\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")
_PAGE = re.compile(r"<title[^>]*>(.{1,300}?)</title>", re.IGNORECASE | re.DOTALL)
# Keys under which servers put the text of an error; the text may stand deeper, as in `error.message` of OpenAI's.
_TEXT_KEYS = ("message", "error", "detail", "msg", "errors", "title")


def cause_of_status(status: int, words: str) -> TroubleCause:
    """The cause that an error's status and text tell."""
    if _MEMORY.search(words):
        return "memory"
    if status in (401, 403):
        return "key"
    if status == 429:
        return "throttled"
    if status == 503:
        return "loading"
    if status >= 500:
        return "errors"
    return "model" if _MODEL.search(words) else "refusal"


def own_words(content: bytes) -> str:
    """The text of an error's body, on one line, without control characters; its reader removes keys, then cuts it."""
    text = content.decode(errors="replace")
    try:
        text = _text_in(from_json(content), depth=4) or text
    except ValueError:
        page = _PAGE.search(text[:4_096])
        text = page[1] if page else text
    return _NO_TEXT.sub(" ", text[: 4 * WORDS_MAX]).strip()


def _text_in(body: Any, depth: int) -> str:  # noqa: ANN401 -- JSON of a stranger
    if isinstance(body, str):
        return body
    if depth and isinstance(body, dict):
        named = cast("dict[str, Any]", body)
        return next((text for key in _TEXT_KEYS if (text := _text_in(named.get(key), depth - 1))), "")
    if depth and isinstance(body, list) and body:
        return _text_in(cast("list[Any]", body)[0], depth - 1)
    return ""
