"""Finds the letter that an answer states as its choice, in any language.

Only a letter or digit of an alphabet with spaces joins a letter into a word: `答案是B` states B, and `Bob` nothing.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from app.deliberation.choice.numbers import READ_CHARS_MAX

JOINING = r"0-9A-Za-z_\u00aa\u00b5\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0300-\u036f\u0370-\u03ff\u1e00-\u1fff"
"""What joins with a Latin letter or a digit beside it into one word, for a class of characters."""

# The nouns of an answer, and other words that state an answer; only words of alphabets with spaces end at a boundary.
_ANSWER_NOUNS = (
    r"(?:\b(?:answer|respuesta|r[ée]ponse|antwort|risposta|resposta|cevap|yanıt|odpowiedź|odpověď|svar|svaret|antwoord|"
    r"jawaban|đáp án|câu trả lời|ответ|ответом|відповідь|απάντηση|válasz|vastaus|răspuns|răspunsul)\b"
    r"|答案|答え|回答|正解|解答|答(?=[:\s])|정답|대답|답(?=[:은이\s])|الإجابة|إجابة|الجواب|جواب|תשובה|उत्तर|जवाब|উত্তর|பதில்|"
    r"సమాధానం|คำตอบ|ຄຳຕອບ|ចម្លើយ|အဖြေ)"
)
_CHOICE_WORDS = (
    r"(?:\b(?:choice|option|decision|verdict|vote|choose|pick|select|opción|elección|elijo|choix|choisis|wahl|wähle|"
    r"entscheidung|scelta|opzione|scelgo|opção|escolha|escolho|seçenek|wybór|wybieram|keuze|pilihan|lựa chọn|chọn|"
    r"вариант|выбор|выбираю|выбрать|варіант|обираю|επιλογή|επιλέγω)\b"
    r"|[选選](?:择|擇|项|項|的是)?|選択肢?|決定|决定|선택|보기|الخيار|خيار|اختيار|أختار|בוחר|אפשרות|विकल्प|ตัวเลือก|เลือก|ข้อ)"
)
_COPULAS = (
    r"(?:(?:is|are|for|would be|should be|es|est|ist|sind|è|é|ser[íi]a|serait|wäre|jest|je|är|er|là|adalah|это|есть|є|"
    r"це|είναι|هو|هي|הוא|היא|है|हैं|হল|ແມ່ນ)(?!\w)"
    r"|应该是|應該是|应当是|应为|應為|是|为|為|乃|は|が|은|는|이|가|คือ|เป็น|ข้อ)"
)
_SIGNS = r"\s*:=_\"'`\u2013\u2014"
STATED = rf"(?i:{_ANSWER_NOUNS}|{_CHOICE_WORDS})"
ANSWER = rf"(?i:{_ANSWER_NOUNS})"
IS = rf"[{_SIGNS}]{{0,6}}(?i:{_COPULAS})?[{_SIGNS}(\[$「『【《“‘«]{{0,6}}"

_OPEN, _CLOSE = r"\s*_`\"'(\[$「『【《〈“‘«", r"\s*_`\"')\].:!$」』】》〉”’»。、،।"
# The words "A" and "I" before another word are no letters.
_LETTER = rf"(?:(?![AI]\s+[a-z])[A-Z])(?![{JOINING}'’+#])"
_LETTER_ALONE = re.compile(rf"(?<![{JOINING}'’])[A-Z](?![{JOINING}'’+#])")
_ALONE = re.compile(rf"[{_OPEN}]*([A-Za-z])[{_CLOSE}]*")
_BOXED = re.compile(rf"\\boxed\{{\s{{0,4}}(?:\\text\{{)?\(?([A-Z])(?![{JOINING}])")
_NOUN = r"(?i:(?:option|choice|letter|opción|вариант|选项|選項|選択肢)\s{0,4})?[\s*(\[]{0,4}"
_STATEMENT = re.compile(rf"{STATED}{IS}{_NOUN}({_LETTER})")
# "Answer: B", "the final answer is B": a statement about the answer itself, with more than a space between the noun
# and the letter.
_SAYS = rf"(?=[\s*_\"'`]{{0,6}}(?:[:=\u2013\u2014]|(?i:{_COPULAS})))"
_ANSWER = re.compile(rf"{ANSWER}{_SAYS}{IS}{_NOUN}({_LETTER})")
# "B是正确的", "Bが正解です": the noun follows in languages whose verb does.
_CALLED_RIGHT = re.compile(
    rf"(?<![{JOINING}'’])({_LETTER})[{_CLOSE}]{{0,3}}(?:选项|選項)?(?:是|为|為|が|は|이|가|은|는)?\s?"
    r"(?:正确|正確|正解|正しい|对的|對的|答案|答え|정답|맞습니다|맞다)"
)
# What names another letter beside one, so that neither is stated.
_OTHER = re.compile(
    rf"[{_CLOSE}]{{0,3}}(?i:,|、|/|&|\bor\b|\band\b|\bo\b|\bou\b|\boder\b|\bund\b|\bили\b|\bи\b|或者?|和|与|與|及|または|"
    rf"か|や|と|또는|이나|나|와|과|หรือ|และ|أو|या|और)[{_OPEN}]{{0,3}}({_LETTER})"
)
_LABEL = re.compile(r"[\s*_`(\[【「]*([A-Z])[*_`]{0,3}[).:\]】」、。][*_`]{0,3}(?=\s|[^\x00-\u024f])")
_MARKED = re.compile(r"\(([A-Z])\)|\[([A-Z])\]|\*\*([A-Z])\*\*|[【「『《]([A-Z])[】」』》]")
_LAST_WORD = re.compile(
    rf"(?<![{JOINING}'’])(?<!不是)(?<!不选)(?<!不選)({_LETTER})[{_CLOSE}]*"
    rf"(?:です|だ|である|を選びます|を選ぶ|입니다|이다|예요|이에요|है|ครับ|ค่ะ)?[{_CLOSE}]*$"
)


def stated_choices(statements: Iterable[re.Match[str]]) -> list[str]:
    """The last group of each match: the choice that the statement names."""
    return [statement[statement.lastindex or 0] for statement in statements]


def settled(stated: Sequence[str], explicit: Sequence[str]) -> str | None:
    """What all statements agree on, else the last one explicitly called the answer, else None."""
    if len(set(stated)) == 1:
        return stated[0]
    return explicit[-1] if explicit else None


def stated_letter(text: str) -> str | None:
    """The letter that a text states as its choice; None without one.

    In this order: the letter that is all of the text or of its last line, a boxed one, a stated one, one that labels
    the beginning (`B) …`), a marked one, or the last word.

    Statements or marks that differ give none, unless one statement calls itself the answer. A statement that names two
    letters states neither.
    """
    end = unicodedata.normalize("NFKC", text[-READ_CHARS_MAX:])
    beginning = end if len(text) <= READ_CHARS_MAX else unicodedata.normalize("NFKC", text[:READ_CHARS_MAX])
    alone = _ALONE.fullmatch(end) or _ALONE.fullmatch(end[end.rstrip().rfind("\n") + 1 :])
    if alone is not None:
        return alone[1].upper()
    if boxed := stated_choices(_BOXED.finditer(end)):
        return boxed[-1]
    statements = [*_STATEMENT.finditer(end), *_CALLED_RIGHT.finditer(end)]
    others = {statement.end(1): other[1] for statement in statements if (other := _beside(end, statement))}
    if stated := [*stated_choices(statements), *others.values()]:
        explicit = [answer[1] for answer in _ANSWER.finditer(end) if answer.end(1) not in others]
        return settled(stated, explicit)
    label = _LABEL.match(beginning)
    if label is not None:
        return label[1]
    if marked := stated_choices(_MARKED.finditer(end)):
        return settled(marked, ())
    return _last_word(end[-64:].rstrip())


def _beside(text: str, letter: re.Match[str]) -> re.Match[str] | None:
    """A second letter that a text names together with the first."""
    other = _OTHER.match(text, letter.end(letter.lastindex or 0))
    return other if other is not None and other[1] != letter[letter.lastindex or 0] else None


def _last_word(end: str) -> str | None:
    last = _LAST_WORD.search(end)
    if last is None:
        return None
    others = (_beside(end, letter) for letter in _LETTER_ALONE.finditer(end))
    return None if any(other is not None and other.end(1) == last.end(1) for other in others) else last[1]
