import pytest

from app.deliberation.facts import encode
from app.deliberation.ports import Record
from app.streaming.frames import EventFrame, EventSelection, FrameBatcher, Ring, frame_of
from tests.story import Story


def frame(sequence: int, size: int = 10, kind: str = "call.delta") -> EventFrame:
    return EventFrame(sequence, kind, b"x" * size, "a")


@pytest.mark.parametrize(
    ("sizes", "frames_max", "bytes_max", "kept", "floor"),
    [
        ([10, 10], 3, 100, [12, 13], 11),
        ([10, 10, 10, 10], 3, 100, [13, 14, 15], 12),
        ([60, 60], 3, 100, [13], 12),
        ([60, 30, 60], 3, 100, [13, 14], 12),
        ([500], 3, 100, [12], 11),
        ([10, 500], 3, 100, [13], 12),
    ],
)
def test_a_ring_keeps_the_newest_frames_within_both_bounds_above_its_floor(
    sizes: list[int], frames_max: int, bytes_max: int, kept: list[int], floor: int
) -> None:
    ring = Ring(11, frames_max, bytes_max)
    for place, size in enumerate(sizes):
        ring.push(frame(12 + place, size))
    assert [each.sequence for each in ring.after(floor)] == kept
    assert (ring.floor, ring.last, len(ring)) == (floor, 11 + len(sizes), len(kept))
    assert [each.sequence for each in ring.after(kept[0])] == kept[1:]


def test_a_frame_is_id_and_type_before_the_stored_bytes() -> None:
    data = encode(Story("a").delta("dev-001", 3, "line\nbreak \u2028 ü"))
    made = frame_of("ab12", Record("deliberations.default.a.call.c.delta", 41, data))
    assert made is not None
    assert made.data == b"id: ab12-41\nevent: call.delta\ndata: " + data + b"\n\n"
    assert made.data.count(b"\n") == 4 and not made.ends and made.deliberation_id == "a"
    end = frame_of("ab12", Record("deliberations.default.a.end", 42, encode(Story("a").completed())))
    assert end is not None and end.ends


@pytest.mark.parametrize("data", [b"", b"{}", b"hello", b'{"type":"call.delta', b'{"type":"call.delta",\n"x":1}'])
def test_bytes_that_are_not_an_event_give_no_frame(data: bytes) -> None:
    assert frame_of("e", Record("deliberations.default.a.accepted", 1, data)) is None


@pytest.mark.parametrize(
    ("kinds", "selection", "sent"),
    [
        (["call.delta", "stage.opened"], EventSelection(), ["call.delta", "stage.opened"]),
        (["call.delta", "stage.opened"], EventSelection(deltas=False), ["stage.opened"]),
        (["stage.opened", "call.delta"], EventSelection(deltas=False), ["stage.opened", "id: e-1"]),
        (["call.delta"] * 5, EventSelection(deltas=False), ["id: e-4"]),
        (["call.delta"], EventSelection(deltas=False, types=frozenset({"call.delta"})), ["id: e-0"]),
        (["call.delta", "stage.opened"], EventSelection(types=frozenset({"call.delta"})), ["call.delta", "id: e-1"]),
        ([], EventSelection(), []),
    ],
)
def test_skipped_events_update_the_cursor_once(kinds: list[str], selection: EventSelection, sent: list[str]) -> None:
    frames = [EventFrame(place, kind, kind.encode() + b"\n\n", "a") for place, kind in enumerate(kinds)]
    batcher = FrameBatcher(selection.takes, "e")
    sent_bytes = b"".join(batcher.chunks(frames)) + batcher.cursor_update() + batcher.cursor_update()
    assert sent_bytes.decode().split("\n\n")[:-1] == sent
