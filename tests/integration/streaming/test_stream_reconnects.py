import pytest

from app.client import Frame
from app.log.journal import JetStreamJournal
from benchmarks.reconnects import Viewer, followed
from tests.conftest import NatsServer


async def test_two_hundred_reconnects_over_ten_streams_lose_and_duplicate_nothing(
    nats_server: NatsServer, jetstream_journal: JetStreamJournal
) -> None:
    viewers = await followed(jetstream_journal, nats_server.url, streams=10, reconnects=200, seed=7)
    assert [fault for viewer in viewers for fault in viewer.faults] == []
    assert sum(viewer.reconnects for viewer in viewers) == 200
    assert all(text.finished for viewer in viewers for texts in viewer.texts.values() for text in texts.values())


@pytest.mark.parametrize(
    ("shown", "fault"),
    [
        (["e-1", "e-2", "e-3"], []),
        (["e-1", "e-3"], ["1 events missing, 0 doubled, of 3"]),
        (["e-1", "e-2", "e-2", "e-3"], ["0 events missing, 1 doubled, of 3"]),
        (["e-2", "e-1", "e-3"], ["0 events missing, 0 doubled, of 3"]),
    ],
)
def test_gaps_duplicates_and_a_wrong_order_are_violations(shown: list[str], fault: list[str]) -> None:
    viewer = Viewer(["a"], [], shown=shown, ended=True)
    viewer.judge(["e-1", "e-2", "e-3"])
    assert viewer.faults == fault


def test_a_text_rebuilt_wrongly_is_a_violation() -> None:
    viewer = Viewer(["a"], [])
    about = '"deliberation_id":"a","ts":"2026-01-01T00:00:00Z","call_id":"s1-dev-001","agent_id":"dev-001"'
    delta = f'{{"type":"call.delta",{about},"attempt":1,"offset":0,"text":"re"}}'
    finished = f'{{"type":"call.finished",{about},"role":"DEV","stage":1,"attempt":1,"text":"red","duration_ms":5}}'
    viewer.feed(Frame("call.delta", delta, "e-1"))
    viewer.feed(Frame("call.finished", finished, "e-2"))
    assert viewer.faults == ["a s1-dev-001 was rebuilt otherwise than recorded"]


def test_a_stream_without_an_end_is_a_violation() -> None:
    viewer = Viewer(["a"], [], shown=["e-1"])
    viewer.judge(["e-1"])
    assert viewer.faults == ["the stream had not ended after 1 events"]


def test_a_stream_gap_event_is_a_violation() -> None:
    viewer = Viewer(["a"], [])
    viewer.feed(Frame("stream.gap", "{}"))
    assert viewer.faults == ["stream.gap after 0 events"]
