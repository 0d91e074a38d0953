"""Searches find the words of tasks, verdicts and answers, the same on SQLite and on PostgreSQL."""

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from app.archive.database import store as store_module
from app.archive.database import texts
from app.archive.database.search_query import Search, SearchTooSlow, parse
from app.archive.database.store import SEARCHES_MAX, Store
from app.archive.database.tables import VERSION_MAX
from app.archive.database.words import BYTES_MAX, filter_word
from app.catalog.entries import BENCH, ListFilter
from tests.integration.archive.archived_stories import EPOCH, records_of, told, written
from tests.integration.archive.searches import APART, ENDLESS, answer, places_of, write
from tests.reported_inputs import REPORTED, reported
from tests.story import NOW, Story


@pytest.mark.parametrize(
    ("q", "places"),
    [
        ("colour", [3, 2, 1, 0]),
        ("COLOUR Cat", [0]),
        ('"the cat"', [0]),
        ('"cat the"', []),
        ("colour -cat", [3, 2, 1]),
        ('colour -"cat sat"', [3, 2, 1]),
        ("cat OR dog", [1, 0]),
        ("ran OR sat dog", [1]),
        ("colo* dog*", [1]),
        ("stra", []),
        ("straß*", [2]),
        ("STRASSE", [2]),
        ("ﬁre", [2]),
        ("東京", [3]),
        ("京東", []),
        ("read-only", [1]),
        ("only-read", []),
        ("nothing", []),
    ],
)
async def test_words_phrases_and_their_absence_are_found(store: Store, q: str, places: list[int]) -> None:
    await write(store, "The cat sat.", "A dog ran: READ_ONLY", "Straße on fire", "東京は雨")

    assert await places_of(store, q) == places


@pytest.mark.parametrize("name", reported("words in other scripts"))
async def test_a_reported_word_of_another_script_is_found(store: Store, name: str) -> None:
    report = REPORTED[name]["input"]
    await write(store, report["request"]["task"], "something else")

    assert await places_of(store, report["then"].partition("?q=")[2]) == [0]


@pytest.mark.parametrize(
    ("text", "q"),
    [
        ("ប្រព័ន្ធស្វែងរកឯកសារ", "ឯកសារ"),
        ("စာရွက်စာတမ်းရှာဖွေခြင်း", "ရှာဖွေ"),
        ("도서관을 찾는 방법", "도서관"),
        ("도서관을 찾는 방법", "도*"),
        ("東京タワー", "タワー*"),
        ("தமிழ் ஆவணங்கள்", "ஆவண*"),
        ("বাংলা নথি খুঁজুন", "নথি"),
        ("हिन्दी में दस्तावेज़ खोजें", "दस्तावेज़"),
        ("हिन्दी में क्\u200dष", "क्ष"),
        ("مُحَمَّد كتب", "محمد"),
        ("کتاب\u200cها را می\u200cخواهم", "می\u200cخواهم"),
        ("שָׁלוֹם עולם", "שלום"),
        ("Поиск документов", "докум*"),
        ("ปี ๒๕๖๗", "๒๕๖๗"),
        ("Tiếng Việt", "Tie\u0302\u0301ng"),
    ],
)
async def test_words_are_found_in_any_script(store: Store, text: str, q: str) -> None:
    await write(store, text, "something else")

    assert await places_of(store, q) == [0]


@pytest.mark.parametrize(("text", "q"), [("서울에서", "울서"), ("เอกสาร", "สารเอก"), ("खोजें", "खाजें"), ("ก่า", "กา")])
async def test_other_words_of_a_script_are_not_found(store: Store, text: str, q: str) -> None:
    await write(store, text)

    assert await places_of(store, q) == []


async def test_no_phrase_reaches_from_one_text_into_the_next(store: Store) -> None:
    await write(store, "green green")

    assert await places_of(store, '"a colour"') == [0]
    assert await places_of(store, '"colour green"') == [] and await places_of(store, '"green green"') == [0]


async def test_a_deliberation_is_found_by_its_task_while_it_runs(store: Store) -> None:
    running, records = Story("7"), records_of(Story("7"), told(Story("7"), answer("violet")))
    await store.write(EPOCH, [written(records_of(running, told(running)[:2]))])
    before = await places_of(store, "colour"), await places_of(store, "violet")
    await store.write(EPOCH, [written(records)])
    await store.write(EPOCH, [written(records[:1])])

    assert before == ([7], [])
    assert await places_of(store, "violet") == [7] and await places_of(store, "colour") == [7]


async def test_no_other_tenant_is_found(store: Store) -> None:
    await write(store, "violet")

    assert await places_of(store, "violet", tenant="umbrella") == []
    own = filter_word("umbrella", "tenant", "umbrella")
    await write(store, f"violet {own}")
    assert await places_of(store, "violet", tenant="umbrella") == []


async def test_labels_that_are_equal_by_chance_show_no_other_tenant(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.archive.database.words.label", lambda *_: 1)
    await write(store, "violet")

    assert await places_of(store, "violet") == [0]
    assert await places_of(store, "violet", tenant="umbrella") == []


async def test_another_tenants_hits_take_no_place_of_a_page(store: Store) -> None:
    ids = [f"{place:026d}" for place in range(3)]
    mine, *theirs = (
        written(records_of(Story(id), told(Story(id), answer("violet")), 1 + APART * place))
        for place, id in enumerate(ids)
    )
    await store.write(EPOCH, [mine, *(replace(each, tenant="umbrella") for each in theirs)])

    entries, _ = await store.page("acme", ListFilter(), parse("violet"), limit=1)

    assert [entry.id for _, entry in entries] == [ids[0]]


async def test_filters_are_words_that_no_text_has(store: Store) -> None:
    await write(store, "violet completed DEV independent " + filter_word("acme", "status", "failed"))

    done, failed = ListFilter(statuses=frozenset(["completed"])), ListFilter(statuses=frozenset(["failed"]))
    passing = [done, ListFilter(role="DEV"), ListFilter(strategy="independent")]
    others = [failed, ListFilter(role="QA"), ListFilter(metadata={"k": "v"})]
    hits = [(await store.page("acme", asked, parse("violet"), limit=5))[0] for asked in (*passing, *others)]
    assert [len(each) for each in hits] == [1, 1, 1, 0, 0, 0]


async def test_a_search_leaves_out_what_a_benchmark_asked(store: Store) -> None:
    stories, marks = [Story(str(place)) for place in range(3)], [{}, dict([BENCH]), {"bench": "mine"}]
    for place, (story, metadata) in enumerate(zip(stories, marks, strict=True)):
        facts = [story.accepted(metadata=metadata), *told(story)[1:]]
        await store.write(EPOCH, [written(records_of(story, facts, 1 + APART * place))])

    assert await places_of(store, "colour") == [2, 1, 0]
    assert await places_of(store, "colour", bench=False) == [2, 0]


async def test_times_bound_what_is_found(store: Store) -> None:
    stories = [Story(str(place)) for place in range(3)]
    for place, story in enumerate(stories):
        facts = told(story)
        facts[0] = story.accepted().model_copy(update={"ts": NOW + timedelta(hours=place)})
        await store.write(EPOCH, [written(records_of(story, facts, 1 + APART * place))])

    assert await places_of(store, "colour", created_after=NOW) == [2, 1]
    assert await places_of(store, "colour", created_before=NOW + timedelta(hours=2)) == [1, 0]
    assert await places_of(store, "colour", created_after=NOW + timedelta(hours=2)) == []
    assert await places_of(store, "colour", created_before=NOW) == []


async def test_pages_follow_each_other(store: Store) -> None:
    await write(store, *["violet"] * 7)
    found, before = list[str](), VERSION_MAX
    while page := (await store.page("acme", ListFilter(), parse("violet"), limit=3, before=before))[0]:
        found += [entry.id for _, entry in page]
        before = page[-1][0]

    assert found == [f"{place:026d}" for place in range(6, -1, -1)]


async def test_deletion_and_retention_remove_the_words(store: Store) -> None:
    await write(store, "violet", "violet", "violet")
    await store.delete("acme", f"{1:026d}", NOW)
    after_deletion = await places_of(store, "violet")
    await store.expire(NOW + timedelta(seconds=1))

    assert after_deletion == [2, 0]
    assert await places_of(store, "violet") == []


async def test_the_words_of_very_long_answers_are_cut(store: Store) -> None:
    story = Story("long", size=16)
    long = [" ".join(f"w{number:03x}{agent:02x}" for number in range(16_000)) for agent in range(16)]
    answers = [story.finished(agent, answer(each)) for agent, each in zip(story.agents, long, strict=True)]
    facts = [story.accepted(), story.opened(), *answers, story.closed(), story.completed()]
    await store.write(EPOCH, [written(records_of(story, facts))])
    search = [
        (await store.page("acme", ListFilter(), parse(q), limit=5))[0] for q in ("w00100", "w00101", "w0010f", "colour")
    ]

    assert sum(map(len, long)) > BYTES_MAX
    assert [len(hits) for hits in search] == [1, 1, 0, 1]


HOSTILE = [
    "'; DROP TABLE texts; --",
    '" OR 1=1',
    '""" cat',
    "cat'",
    "words:cat",
    "NEAR(cat dog)",
    "{words} : cat",
    "^cat + dog",
    "cat AND NOT",
    "(((cat",
    "cat | !dog & <-> :*",
    r"cat \ ' \' %s :x $1",
    "cat\x00dog\x01",
    "a " * 128,
    "ab -cd " * 36,
    "x OR " * 51 + "y",
    '"' + "a " * 127,
    "𝒄𝒂𝒕 \u202e \ufeff",
    "§ ¶ cat",
]


@pytest.mark.parametrize("q", HOSTILE)
async def test_hostile_text_is_a_search_like_any_other(store: Store, q: str) -> None:
    await write(store, "The cat sat.")

    assert await places_of(store, q) in ([], [0])
    assert await places_of(store, "cat") == [0]


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for `endless` takes seconds."""
    real = texts.selection

    def selection(dialect: str, tenant: str, search: Search, *rest: Any, **more: Any) -> Any:
        slow = search.required[0][0].words == ("endless",)
        return ENDLESS if slow else real(dialect, tenant, search, *rest, **more)

    monkeypatch.setattr(texts, "selection", selection)
    monkeypatch.setattr(store_module, "SEARCH_S", 0.2)


@pytest.mark.usefixtures("endless")
async def test_a_search_that_takes_too_long_is_interrupted(store: Store) -> None:
    await write(store, "The cat sat.")
    with pytest.raises(SearchTooSlow, match=r"takes longer than 0\.2 s") as slow:
        await places_of(store, "endless")

    assert slow.value.field == "q" and "created_after" in str(slow.value.remedy)
    # Its connection serves again, without the limit.
    again = [await places_of(store, "cat") for _ in range(3)]
    assert again == [[0]] * 3


@pytest.mark.usefixtures("endless")
async def test_slow_searches_of_one_tenant_leave_others_theirs(store: Store) -> None:
    await write(store, "The cat sat.")
    hostile = [asyncio.create_task(places_of(store, "endless", tenant="evil")) for _ in range(16)]
    async with asyncio.timeout(10):
        others = [await places_of(store, "cat") for _ in range(3)]
        ended = await asyncio.gather(*hostile, return_exceptions=True)

    assert others == [[0]] * 3
    assert {type(each) for each in ended} == {SearchTooSlow}
    words = Counter(str(each).partition(" ")[0] for each in ended)
    assert words["The"] >= SEARCHES_MAX and words["Other"] >= 16 - 2 * SEARCHES_MAX
    assert await places_of(store, "cat", tenant="evil") == []
