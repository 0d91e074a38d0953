"""Use the generated Python client: create, wait, list, read events, cancel, and handle typed errors.

`python roundtrip.py URL KEY` prints the results as JSON.
"""

import json
import sys

from deliberation_client import AuthenticatedClient
from deliberation_client.api.deliberations import (
    cancel_deliberation,
    create_deliberation,
    get_deliberation,
    list_deliberations,
)
from deliberation_client.api.events import read_deliberation_events
from deliberation_client.models import (
    CancelRequest,
    Completed,
    Deliberation,
    DeliberationPage,
    DeliberationRequest,
    DeliberationRequestMetadata,
    DeliberationRequestStrategy,
    DeliberationStatus,
    EventPage,
    ListDeliberationsMetadata,
    Problem,
)

MARK = "python"
ENDED = {
    DeliberationStatus.COMPLETED,
    DeliberationStatus.FAILED,
    DeliberationStatus.CANCELLED,
    DeliberationStatus.TIMEOUT,
}


def request(strategy: DeliberationRequestStrategy) -> DeliberationRequest:
    """A request's body."""
    metadata = DeliberationRequestMetadata()
    metadata["sdk"] = MARK
    return DeliberationRequest(
        task="Merge two sorted lists.", num_agents=2, strategy=strategy, seed=7, metadata=metadata
    )


def created(client: AuthenticatedClient, body: DeliberationRequest, key: str | None = None) -> Deliberation:
    """A new deliberation, or the earlier one with this key."""
    answer = (
        create_deliberation.sync(client=client, body=body)
        if key is None
        else create_deliberation.sync(client=client, body=body, idempotency_key=key)
    )
    assert isinstance(answer, Deliberation), answer
    return answer


def waited(client: AuthenticatedClient, id: str) -> Deliberation:
    """The deliberation, after it has ended."""
    while True:
        found = get_deliberation.sync(id, client=client, prefer="wait=30")
        assert isinstance(found, Deliberation), found
        if found.status in ENDED:
            return found


def events_of(client: AuthenticatedClient, id: str) -> tuple[int, str | None]:
    """The number of events without deltas, and the winner in the last one."""
    after, count, winner = "0", 0, None
    while True:
        page = read_deliberation_events.sync(id, client=client, after=after, deltas=False, limit=5)
        assert isinstance(page, EventPage), page
        count += len(page.items)
        for event in page.items:
            if isinstance(event, Completed) and event.verdict is not None and event.verdict:
                winner = event.verdict.winner
        if page.ended:
            return count, winner
        after = page.next_


def refusals(client: AuthenticatedClient) -> list[list[object]]:
    """Status, code and first field of two errors."""
    body = request(DeliberationRequestStrategy.SINGLE)
    body.role = "NOBODY"
    invalid = create_deliberation.sync(client=client, body=body)
    unknown = get_deliberation.sync("nothing-here", client=client)
    assert isinstance(invalid, Problem) and isinstance(unknown, Problem)
    return [
        [invalid.status, invalid.code, invalid.errors[0].pointer],
        [unknown.status, unknown.code, None],
    ]


def main(url: str, key: str) -> None:
    """Run all steps and print the results."""
    # Accept selects pages of JSON instead of event streams.
    headers = {"Accept": "application/json"}
    with AuthenticatedClient(url, key, headers=headers, raise_on_unexpected_status=True) as client:
        first = created(client, request(DeliberationRequestStrategy.BEST_OF_N), f"sdk-{MARK}")
        again = created(client, request(DeliberationRequestStrategy.BEST_OF_N), f"sdk-{MARK}")
        ended = waited(client, first.id)
        metadata = ListDeliberationsMetadata()
        metadata["metadata.sdk"] = MARK
        listed = list_deliberations.sync(client=client, metadata=metadata, limit=10, after=ended.last_event_id)
        assert isinstance(listed, DeliberationPage), listed
        count, winner = events_of(client, first.id)
        doomed = created(client, request(DeliberationRequestStrategy.COUNCIL))
        stopping = cancel_deliberation.sync(doomed.id, client=client, body=CancelRequest(reason="changed my mind"))
        assert isinstance(stopping, Deliberation), stopping
        stopped = waited(client, doomed.id)
        results = {
            "id": first.id,
            "again": again.id,
            "status": ended.status.value,
            "winner": ended.verdict.winner if ended.verdict else None,
            "listed": [item.id for item in listed.items],
            "events": count,
            "event_winner": winner,
            "cancelled": stopped.status.value,
            "reason": stopped.status_reason,
            "refusals": refusals(client),
        }
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
