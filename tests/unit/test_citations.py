import time

import pytest

from app.deliberation.citations import CITATIONS_MAX, PLACES_MAX, Citation, citations
from app.deliberation.specification import Evidence
from tests.unit.facts_of import input_ref

GIVEN = (
    Evidence(id="contract", title="The contract", file=input_ref().model_copy(update={"pages": 12})),
    Evidence(id="log.1", title="The log", text="12:00 boom"),
    Evidence(id="12", title="A number", text="x"),
)


@pytest.mark.parametrize(
    ("answer", "cited"),
    [
        ("It ends in May [contract, p. 3].", [("contract", (3,), None)]),
        ("[contract p. 3] and [contract pages 5-7] and (contract, pp. 2, 4)", [("contract", (2, 3, 4, 5, 6, 7), None)]),
        ("[log.1] says boom, so does [contract; log.1]", [("log.1", (), None), ("contract", (), None)]),
        ("As evidence log.1. says; Evidence `contract` too.", [("log.1", (), None), ("contract", (), None)]),
        ("[evidence contract]", [("contract", (), None)]),
        ("[contract, p. 3\u20134]", [("contract", (3, 4), None)]),
        ("[12]", [("12", (), None)]),
        ("[contract, p. 99]", [("contract", (), None), ("contract", (99,), "unknown_page")]),
        ("[log.1, p. 1]", [("log.1", (), None), ("log.1", (1,), "unknown_page")]),
        ("[evidence annex] (evidence annex, p. 2)", [("annex", (), "unknown_evidence")]),
        ("[contract, p. 0]", [("contract", (), None)]),
    ],
)
def test_evidence_and_pages_are_held_to_what_was_given(
    answer: str, cited: list[tuple[str, tuple[int, ...], str | None]]
) -> None:
    assert [(citation.evidence, citation.pages, citation.fault) for citation in citations(answer, GIVEN)] == cited


@pytest.mark.parametrize(
    "answer",
    [
        "The contract ends in May (see page 3).",
        "[1] [a] (contract) f(contract) [see contract]",
        "[contract\n, p. 3]",
        "This is evidence of a fault; the evidence shows it.",
        "",
    ],
)
def test_other_words_cite_nothing(answer: str) -> None:
    assert citations(answer, GIVEN) == ()


def test_nothing_is_read_without_evidence() -> None:
    assert citations("[evidence contract]", ()) == ()


def test_citations_are_bounded_and_those_that_hold_come_first() -> None:
    answer = "".join(f"[evidence x{number}]" for number in range(500)) + "[contract]"
    cited = citations(answer, GIVEN)
    assert len(cited) == CITATIONS_MAX and cited[0] == Citation(evidence="contract")


def test_the_places_that_are_read_are_bounded() -> None:
    assert citations("[x]" * (PLACES_MAX - 1) + "[contract]", GIVEN) == (Citation(evidence="contract"),)
    assert citations("[x]" * PLACES_MAX + "[contract]", GIVEN) == ()


def test_pages_are_bounded() -> None:
    (held, beyond) = citations("[contract, p. 1-9999]", GIVEN)
    assert held.pages == tuple(range(1, 13)) and beyond.pages == tuple(range(13, 101))


@pytest.mark.parametrize(
    "piece", ["[contract, p. 1-9999]", "[", "(a[", "[a,", "evidence ", "evidence [p. 1-", "[contract p.1]", "p" * 64]
)
def test_the_time_grows_with_the_answer_alone(piece: str) -> None:
    def seconds(chars: int) -> float:
        begun = time.process_time()
        citations(piece * (chars // len(piece)), GIVEN)
        return time.process_time() - begun

    seconds(20_000)
    assert min(seconds(200_000) for _ in range(3)) < 40 * min(seconds(20_000) for _ in range(3)) + 0.05
