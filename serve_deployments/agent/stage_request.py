"""The request of a coordinator to a role: the calls of one stage."""

from pydantic import AwareDatetime

from app.deliberation.calls import Call
from app.deliberation.specification import Value


class StageRequest(Value, frozen=True):
    """Calls of one role in one stage.

    `asked_at` is when the coordinator sent it, since a replica that hangs reads it late. `resumed` says that some calls
    may have been made or recorded before. `accepted_sequence` is the acceptance's place in the stream.
    """

    tenant: str
    deliberation_id: str
    stage: int
    calls: tuple[Call, ...]
    asked_at: AwareDatetime
    deadline_at: AwareDatetime
    resumed: bool
    accepted_sequence: int = 0
