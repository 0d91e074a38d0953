"""The settings of the streams, read where they are declared and where they are checked."""

from dataclasses import dataclass

from app.deliberation.specification import TIMEOUT_S_MAX

DAY_S = 86_400
RETENTION_S_MIN = TIMEOUT_S_MAX
"""An acceptance must outlive the longest deadline, because it is redelivered when its coordinator fails."""
RETENTION_S_MAX = 31_536_000
ACK_WAIT_S_MIN = 6.0
"""Three heartbeats of a coordinator, so that a late one is not taken for a failure."""
ACK_WAIT_S_MAX = 600.0
REPLICAS_MAX = 5


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """How long facts are kept, on how many servers, and how long a silent coordinator keeps its work."""

    retention_s: int = DAY_S
    replicas: int = 1
    ack_wait_s: float = ACK_WAIT_S_MIN
