"""Reads the last number in a text exactly: thousands separators, decimal commas, fractions, powers, magnitudes.

Units, currency and percent signs are ignored: `$18`, `18 dollars` and `18 %` are all 18. Numbers are fractions, so
that 0.1 + 0.2 and 0.3, or 1e3 and 1,000, are one answer.
"""

import re
from fractions import Fraction

# A longer figure or power is no plausible answer and is expensive to compare.
DIGITS_MAX = 400
# Of a longer text the end is read: it states the answer, and each of its characters costs several looks.
READ_CHARS_MAX = 16_384

_SPACES = " \u00a0\u2009\u202f"
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_LATEX = tuple(
    (re.compile(pattern), by)
    for pattern, by in (
        (r"\\[dt]?frac\s?\{\s?(-?[\d.,]{1,40})\s?\}\s?\{\s?([\d.,]{1,40})\s?\}", r"\1/\2"),
        (r"\\times|\\cdot", "×"),
        (r"\{,\}", ","),
        (r"\\[,;!: ]", "\u2009"),
        (r"\\(?=[$%])", ""),
        (r"\^\{(-?\d{1,4})\}", r"^\1"),
        (r"[_^]\{[^{}]{0,40}\}", "^"),
        (r"[−﹣－]", "-"),
        (r"[–—](?=[\d$€£¥₹])", "-"),
        (r"½", " 1/2"),
        (r"¼", " 1/4"),
        (r"¾", " 3/4"),
    )
)
_SUPERSCRIPT = re.compile(r"[⁰¹²³⁴-⁹⁻]+")

# Digits with separators, number or not. The possessive repeat takes all of them, so that a hostile text is read in
# linear time.
_DIGITS = rf"\.?\d(?:[\d_]|[.,'’](?=\d)|[{_SPACES}](?=\d{{3}}(?!\d)))*+"
_TERM = re.compile(
    rf"""(?P<figure>{_DIGITS})
    (?:[{_SPACES}](?P<above>\d{{1,4}})/(?P<below>\d{{1,4}})(?![\d/]))?
    (?:[eE](?P<exponent>[-+]?\d{{1,4}})(?!\w))?
    (?:\s?[×x·⋅*]\s?10(?:\^|\*\*)(?P<ten>[-+]?\d{{1,4}})(?!\d))?
    (?:(?:\^|\*\*)\(?(?P<power>-?\d{{1,4}})(?!\d)\)?)?
    (?:\s?/\s?(?P<divisor>{_DIGITS}))?
    (?:\s(?P<magnitude>thousand|million|billion|trillion)s?\b|\s?(?P<unit>百万|百萬|[万萬億亿兆만억조]))?""",
    re.VERBOSE | re.IGNORECASE,
)
_MAGNITUDES = {
    **{"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "百万": 10**6, "百萬": 10**6},
    **dict.fromkeys("万萬만", 10**4),
    **dict.fromkeys("億亿억", 10**8),
    **dict.fromkeys("兆조", 10**12),
}
# A digit beside letters of an alphabet with spaces is part of a word or a name; other letters only stand beside it.
_NAMING = re.compile(r"[^\W\u0590-\u1dff\u2e80-\U0010ffff]")
_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x066B: ".", 0x066C: ","}
_SIGN = re.compile(r"(?:^|[^\w)\]}%])-[$€£¥₹]?$")

# Shapes of figures, each with its thousands separator and its decimal mark.
_SHAPES = (
    (re.compile(r"\d+(?:\.\d+)?|\.\d+"), "", "."),
    (re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?|[1-9]\d?(?:,\d{2})+,\d{3}(?:\.\d+)?"), ",", "."),
    (re.compile(r"[1-9]\d{0,2}(?:\.\d{3}){2,}(?:,\d+)?|[1-9]\d{0,2}(?:\.\d{3})+,\d+"), ".", ","),
    *(
        (re.compile(rf"[1-9]\d{{0,2}}(?:{mark}\d{{3}})+(?:{decimal}\d+)?"), mark, decimal[-1])
        for mark in (*_SPACES, "'", "’", "_")
        for decimal in (r"\.", ",")
    ),
    (re.compile(r"\d+,\d+"), "", ","),
)


def _figure(digits: str) -> Fraction:
    if len(digits) > DIGITS_MAX:
        raise ValueError("too many digits")
    for shape, thousands, decimal in _SHAPES:
        if shape.fullmatch(digits) is not None:
            plain = digits.replace(thousands, "") if thousands else digits
            return Fraction(plain.replace(decimal, "."))
    # Adjacent numbers look like one number with separators, as in "in 2019 300 people".
    last = re.split(f"[{_SPACES}]", digits)[-1]
    if last == digits:
        raise ValueError("separators without a meaning")
    return _figure(last)


def _power(base: Fraction, exponent: int) -> Fraction:
    digits = len(str(base.numerator)) + len(str(base.denominator))
    if digits * abs(exponent) > DIGITS_MAX:
        raise ValueError("too many digits")
    return base**exponent


def _value(term: re.Match[str]) -> Fraction:
    value = _figure(term["figure"])
    if term["above"]:
        value += Fraction(int(term["above"]), int(term["below"]))
    for exponent in (term["exponent"], term["ten"]):
        if exponent:
            value *= _power(Fraction(10), int(exponent))
    if term["power"]:
        value = _power(value, int(term["power"]))
    if term["divisor"]:
        value /= _figure(term["divisor"])
    if term["magnitude"]:
        value *= _MAGNITUDES[term["magnitude"].lower()]
    if term["unit"]:
        value *= _MAGNITUDES[term["unit"]]
    return value


def _stands_alone(text: str, term: re.Match[str]) -> bool:
    before, after = text[max(0, term.start() - 2) : term.start()], text[term.end() : term.end() + 2]
    if before and (_NAMING.match(before[-1]) or before[-1] == "^"):
        return False
    if re.fullmatch(r"\d[/:]", before) or re.match(r"[/:]\d|\^", after):
        return False
    return not (term["figure"] == "0" and re.match(r"[xX][0-9a-fA-F]", after))


def last_number(text: str) -> Fraction | None:
    text = text[-READ_CHARS_MAX:]
    text = text if text.isascii() else text.translate(_WIDE)
    for pattern, by in _LATEX:
        text = pattern.sub(by, text)
    text = _SUPERSCRIPT.sub(lambda match: "^" + match[0].translate(_SUPERSCRIPTS), text)
    for term in reversed(list(_TERM.finditer(text))):
        if not _stands_alone(text, term):
            continue
        try:
            value = _value(term)
        except (ValueError, ZeroDivisionError):
            continue
        return -value if _SIGN.search(text[max(0, term.start() - 3) : term.start()]) else value
    return None


def shown(number: Fraction) -> str:
    """The one spelling of a number: whole, a terminating decimal, or else a fraction."""
    rest, twos, fives = number.denominator, 0, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    places = max(twos, fives)
    if rest != 1 or places == 0:
        return str(number)
    digits = str(abs(number.numerator) * 10**places // number.denominator).rjust(places + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}"
