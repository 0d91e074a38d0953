"""Which characters are control characters: what a terminal or a parser obeys, and no mark, joiner or space of a script.

`str.isprintable` is another rule: it also refuses the ideographic space, joiners, direction marks and private letters.
"""

import unicodedata

# https://www.unicode.org/reports/tr9/#Explicit_Directional_Embeddings, and the isolates.
REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def is_control(character: str) -> bool:
    """Whether it is a control character, half of a surrogate pair, or a separator of lines or paragraphs.

    Characters that change the order of what follows them count too: in a name or a reason they show another one.
    """
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in REORDERING


def whole_characters(text: str) -> str:
    """The text with its surrogate pairs joined; half of a pair, which no fact or message can hold, is replaced."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def has_control(text: str) -> bool:
    return not (text.isascii() and text.isprintable()) and any(map(is_control, text))
