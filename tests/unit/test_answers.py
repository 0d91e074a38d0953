from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.deliberation.answers import TALLY_CHARS_MAX, Normaliser, normalise, requirement, tally
from app.deliberation.choice.numbers import last_number, shown
from tests.reported_inputs import REPORTED, reported


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Blue", "blue"),
        ("Blue.", "  blue\n"),
        ("**Blue**.", "blue"),
        ("`Blue`", "“Blue”"),
        ("'blue'", "blue"),
        ("Blue!", "blue"),
        ("# Blue", "blue"),
        ("- blue", "Blue"),
        ("> blue", "Blue"),
        ("```text\nblue\n```", "Blue"),
        ("the sea,\nthe sky", "The sea; the sky."),
        ("It’s blue", "it's blue"),
        ("a – b", "a - b"),
        ("STRASSE", "straße"),
        ("*very* **blue**", "very blue"),
    ],
)
def test_texts_that_say_the_same_are_one_answer(one: str, other: str) -> None:
    assert normalise(one, "text") == normalise(other, "text")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("C", "C++"),
        ("C", "C#"),
        ("5", "-5"),
        ("1.5", "15"),
        ("5!", "5"),
        ("a < b", "a > b"),
        ("(0, 1]", "[0, 1)"),
        ("a * b", "a b"),
        ("2**3", "23"),
        ("f'(x)", "f(x)"),
        ("__init__", "init"),
        ("well-known", "wellknown"),
    ],
)
def test_texts_that_say_something_else_are_two_answers(one: str, other: str) -> None:
    assert normalise(one, "text") != normalise(other, "text")


def test_the_end_and_the_beginning_of_a_long_text_state_its_choice() -> None:
    long = "*so* " * 20_000
    assert normalise(f"{long}\n**Yes, please.**", "choice", ("yes, please", "no")) == "yes, please"
    assert normalise(f"{long}. The answer is: no", "choice", ("yes, please", "no")) == "no"
    assert normalise(f"No. {long}", "choice", ("yes, please", "no")) == "no"
    assert normalise(f"7 {long} 18 {long[:999]}", "number") == "18"


def test_long_texts_that_differ_in_case_and_white_space_are_one_answer() -> None:
    assert normalise("Very  long " * 9_000, "text") == normalise("very long\n" * 9_000, "text")


def test_marks_alone_are_still_an_answer() -> None:
    assert normalise("...", "text") == "..."
    assert normalise("**", "text") is not None


NUMBERS = {
    "42": (
        "42",
        "The answer is 42.",
        r"$\boxed{42}$",
        "42 (version 1.2.3)",
        "42 at 12:30",
        "42, on 12/05/2024",
        "**42**",
    ),
    "7": ("First 3, then 4: 7", "x_{1} = 7", "x_1 = 7"),
    "18": ("$18", "18 dollars", "18.00 %"),
    "1234567": ("1,234,567", "1 234 567", "12,34,567", "1.234.567"),
    "1234": ("1\u202f234\u00a0m",),
    "1234.5": ("1'234.50",),
    "1000": ("1_000", r"\boxed{1{,}000}", "1e3"),
    "1234.56": ("1.234,56", "1,234.56"),
    "1.234": ("1.234",),
    "3.14": ("3,14",),
    "0.125": ("0,125",),
    "0.5": (".5",),
    "-5": ("-5", "−5", "-$5", "$-5", "(–5)"),
    "5": ("10-5", "3–5", "a - 5", "5 m²", "5 m^2", "5 m2", "5 kg of CO2"),
    "0.75": ("3/4",),
    "1/3": ("1/3",),
    "-1/3": ("-1/3",),
    "2.5": ("2 1/2 cups", "2½"),
    "0.375": (r"\frac{3}{8}",),
    "12500": (r"12\,500",),
    "0.0015": ("1.5E-3",),
    "300000000": ("3 × 10^8 m/s", r"3 \times 10^{8}", "3·10⁸"),
    "1024": ("2^10",),
    "0.25": ("2**-2",),
    "1500000": ("1.5 million",),
    "2000000000": ("2 Billion",),
    "300": ("in 2019 300 people",),
    "0.1": ("0.1",),
    "100": ("100",),
    "0.01": ("1e-2",),
    "0": ("0", "-0"),
}


@pytest.mark.parametrize(("text", "number"), [(text, number) for number, texts in NUMBERS.items() for text in texts])
def test_the_last_number_is_read_exactly(text: str, number: str) -> None:
    assert normalise(text, "number") == number


@pytest.mark.parametrize(
    "text",
    ["none", "forty-two", "1.2.3", "12/05/2024", "12:30", "0x1F", "CO2", "1/0", "1e9999", "9^9999", "9" * 500, "1,2,3"],
)
def test_a_text_without_a_number_is_missing(text: str) -> None:
    assert normalise(text, "number") is None


@given(st.fractions(max_denominator=10**6))
def test_a_shown_number_is_read_back_as_itself(number: Fraction) -> None:
    assert last_number(shown(number)) == number


LETTERS = {
    "B": (
        "B",
        "b",
        "(B)",
        "**B**.",
        "B) Paris",
        "B. Paris",
        "(B) Paris is the capital.",
        "**B.** Paris",
        "The answer is B.",
        "The answer is (B) because A is wrong",
        "Answer: B",
        "**Answer:** B",
        "The correct choice is option B",
        "Answer: B\n\nOption C would need X",
        "Option C would need X, option A too. The final answer is **B**, I think",
    ),
    "C": (
        "I choose C over A.",
        "A) is tempting. But the final answer is C",
        "(C), since (C) alone holds",
        "The answer is A. Wait, that is wrong: the answer is C, as shown",
        "After all this, C",
        "The answer is A? No.\n\n**C**\n",
    ),
    "D": (r"so $\boxed{\text{D}}$", r"\boxed{D}"),
}


@pytest.mark.parametrize(("text", "letter"), [(text, letter) for letter, texts in LETTERS.items() for text in texts])
def test_a_letter_is_read_where_an_answer_states_it(text: str, letter: str) -> None:
    assert normalise(text, "choice") == letter


@pytest.mark.parametrize(
    "text",
    [
        "Paris",
        "I think so",
        "A good question",
        "The answer is A good one",
        "It's in C++",
        "**B** is right; (A) is wrong",
        "It can only be (A) or (C), and (A) fails: (C)",
        "Option B would do, and option C would not.",
        "I choose B, though others would choose C, it seems.",
    ],
)
def test_a_text_that_states_no_letter_is_missing(text: str) -> None:
    assert normalise(text, "choice") is None


LETTERS_IN_OTHER_SCRIPTS = {
    "B": (
        "答案B",
        "选B",
        "我选择B，因为A是错的",
        "首先排除A和C，所以选B。",
        "B。因为地球是圆的",
        "B、因为",
        "B是正确的",
        "（B）",
        "【B】",
        "Ｂ．",
        "Ⓑ",
        "最终答案：**B**",
        "正确答案是选项B。",
        "정답은 B입니다",
        "답은 B입니다.",
        "답: B",
        "答えはBです",
        "答えはBです。理由はAが間違いだからです。",
        "Bが正解です",
        "Ответ: B",
        "Правильный ответ — B, потому что A неверно",
        "الإجابة هي B",
        "الإجابة: B.",
        "คำตอบคือB",
        "उत्तर: B",
        "उत्तर B है",
        "תשובה: B",
        "Đáp án: B",
        "La respuesta es B, porque A no",
        "Die Antwort ist B, denn A ist falsch",
    ),
    None: (
        "答案是A或B",
        "A或B",
        "A or B",
        "The answer is A or B",
        "选A、B",
        "答案:B和C",
        "BとCのどちらか",
        "B不正确",
        "答案不是B",
        "维生素C很重要",
        "卡拉OK",
        "我不知道",
        "É",
        "Bé",
    ),
}


@pytest.mark.parametrize(
    ("text", "letter"), [(text, letter) for letter, texts in LETTERS_IN_OTHER_SCRIPTS.items() for text in texts]
)
def test_a_letter_is_read_whatever_script_stands_around_it(text: str, letter: str | None) -> None:
    assert normalise(text, "choice") == letter


@pytest.mark.parametrize("name", reported("letters in other scripts"))
def test_a_reported_letter_is_tallied(name: str) -> None:
    answer = REPORTED[name]["input"]["each_agent_answers"]
    count = tally([(agent, normalise(answer, "choice")) for agent in ("dev-1", "dev-2")], 7)
    assert [(each.answer, each.votes) for each in count.tallies] == [(REPORTED[name]["expected"], 2)]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("答案是42", "42"),
        ("答案：42。", "42"),
        ("共42个", "42"),
        ("정답은42입니다", "42"),
        ("٤٢", "42"),
        ("٣٫٥", "3.5"),
        ("４２", "42"),
        ("１，０００", "1000"),
        ("3万", "30000"),
        ("约1.5亿", "150000000"),
        ("α2", None),
    ],
)
def test_a_number_is_read_whatever_script_stands_around_it(text: str, number: str | None) -> None:
    assert normalise(text, "number") == number


@pytest.mark.parametrize(
    ("text", "options", "option"),
    [
        ("同意。", ("同意", "反对"), "同意"),
        ("答案是同意", ("同意", "反对"), "同意"),
        ("同意这个方案", ("同意", "反对"), "同意"),
        ("不同意", ("同意", "反对"), None),
        ("同意不了", ("同意", "反对"), None),
        ("答えは賛成です。", ("賛成", "反対"), "賛成"),
        ("찬성합니다", ("찬성", "반대"), "찬성"),
        ("찬성하지 않습니다", ("찬성", "반대"), None),
        ("Ответ: да, конечно", ("да", "нет"), "да"),
        ("是否同意", ("是", "否"), None),
    ],
)
def test_an_option_is_read_in_its_own_script(text: str, options: tuple[str, ...], option: str | None) -> None:
    assert normalise(text, "choice", options) == option


@pytest.mark.parametrize(
    ("one", "other"), [("１００円", "100円"), ("e\u0301", "é"), ("「青」。", "青"), ("نعم؟", "نعم")]
)
def test_texts_in_other_scripts_that_say_the_same_are_one_answer(one: str, other: str) -> None:
    assert normalise(one, "text") == normalise(other, "text")
    assert normalise("x²", "text") != normalise("x2", "text")


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("approve", "Approve"),
        ("**Approve.**", "Approve"),
        ("Reject, because it leaks.", "Reject"),
        ("It leaks.\n\nReject", "Reject"),
        ("My decision is: approve with changes", "Approve with changes"),
        ("Approve with changes", "Approve with changes"),
        ("I would not approve this", None),
        ("approved", None),
        ("B", None),
    ],
)
def test_an_option_is_read_where_an_answer_states_it(text: str, option: str | None) -> None:
    assert normalise(text, "choice", ("Approve", "Approve with changes", "Reject")) == option


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("The answer is yes. I would choose no only if it rained.", "yes"),
        ("I would choose no if it rained. Answer: yes, then.", "yes"),
        ("I would choose yes today. I would choose no if it rained.", None),
        ("I would choose no. My choice is no, whatever it costs.", "no"),
    ],
)
def test_of_options_that_are_stated_the_one_that_is_the_answer_is_read(text: str, option: str | None) -> None:
    assert normalise(text, "choice", ("yes", "no")) == option


@pytest.mark.parametrize("normaliser", ["number", "choice", "json"])
def test_a_form_not_readable_from_any_text_adds_a_requirement(normaliser: Normaliser) -> None:
    assert requirement(normaliser)
    assert requirement("choice", ("yes", "no")) != requirement("choice")
    assert "yes; no" in (requirement("choice", ("yes", "no")) or "")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": [true, null]}', '{"b":[true,null],"a":1.0}'),
        ('{"a": 1e2}', 'Here it is:\n```json\n{"a": 100}\n```\nas asked'),
        ('{"a": "x"}', 'so {"a": "x"} it is'),
        ("[1, 2]", "[1,2.00]"),
        ('"\\u00e9"', '"é"'),
    ],
)
def test_documents_with_the_same_content_are_one_answer(one: str, other: str) -> None:
    assert normalise(one, "json") == normalise(other, "json") is not None


@pytest.mark.parametrize(
    ("one", "other"), [("1", '"1"'), ("[1, 2]", "[2, 1]"), ("0.1", "0.10000000000000001"), ("true", "1")]
)
def test_documents_with_other_content_are_two_answers(one: str, other: str) -> None:
    assert normalise(one, "json") != normalise(other, "json")


@pytest.mark.parametrize(
    "text", ["no", '{"a": 1, "a": 2}', "NaN", "1e999999999", '"\\ud800"', "[" * 100_000, "{", '{"a": 1'], ids=repr
)
def test_a_text_without_a_document_is_missing(text: str) -> None:
    assert normalise(text, "json") is None


HOSTILE = [
    "1,",
    "1 ",
    "1/",
    "1.1",
    "111 ",
    "*a ",
    "'a",
    "`",
    "a.",
    "(A",
    "answer is ",
    "\\frac{1",
    "```",
    "{",
    "**",
    "[1",
    "1^",
]


@pytest.mark.parametrize("pattern", HOSTILE)
@pytest.mark.parametrize("normaliser", ["text", "number", "choice", "json", "exact"])
def test_a_hostile_text_is_read_or_missing_at_once(pattern: str, normaliser: Normaliser) -> None:
    answer = normalise(pattern * (60_000 // len(pattern)), normaliser, ())
    assert answer is None or answer


@settings(max_examples=60)
@given(st.text(max_size=80), st.sampled_from(["text", "number", "json"]))
def test_normalising_twice_changes_nothing(text: str, normaliser: Normaliser) -> None:
    once = normalise(text, normaliser)
    if once is not None and normaliser != "text":
        assert normalise(once, normaliser) == once
    assert once != ""


def test_a_count_holds_votes_shares_and_voters() -> None:
    count = tally([("a", "x"), ("b", "y"), ("c", None), ("d", "x"), ("e", "x")], seed=1)
    assert [(group.answer, group.votes, group.agents) for group in count.groups] == [
        ("x", 3, ("a", "d", "e")),
        ("y", 1, ("b",)),
    ]
    assert (count.votes, count.first, count.second, count.tie) == (4, 3, 1, False)
    assert (count.agreement, count.margin) == (0.75, 0.5)
    assert [row.model_dump() for row in count.tallies] == [
        {"answer": "x", "votes": 3, "final": None, "agents": ("a", "d", "e")},
        {"answer": "y", "votes": 1, "final": None, "agents": ("b",)},
    ]


def test_a_long_answer_is_cut_in_the_tally() -> None:
    (row,) = tally([("a", "x" * 2_000)], seed=1).tallies
    assert len(row.answer) == TALLY_CHARS_MAX


@settings(max_examples=30)
@given(st.permutations(["x", "x", "y", "y", "z"]), st.integers(0, 2**31))
def test_the_seed_and_the_first_voters_order_ties(answers: list[str], seed: int) -> None:
    votes = [(f"a{place}", answer) for place, answer in enumerate(answers)]
    count = tally(votes, seed)
    assert count.tie
    renamed = tally([(agent, {"x": "q", "y": "p", "z": "o"}[answer]) for agent, answer in votes], seed)
    assert [group.agents for group in renamed.groups] == [group.agents for group in count.groups]
