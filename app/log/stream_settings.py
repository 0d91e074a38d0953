"""What an operator chooses of the streams, read by whoever declares them and whoever checks them."""

from dataclasses import dataclass

from app.deliberation.specification import TIMEOUT_S_MAX

DAY_S = 86_400
RETENTION_S_MIN = TIMEOUT_S_MAX
"""An acceptance is what a coordinator's successor is handed: it must outlive the longest deadline."""
RETENTION_S_MAX = 31_536_000
ACK_WAIT_S_MIN = 6.0
"""Three heartbeats of a coordinator: one that is late is not taken for dead."""
ACK_WAIT_S_MAX = 600.0
REPLICAS_MAX = 5


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """How long facts are kept, on how many servers, and after what silence of a coordinator another takes over."""

    retention_s: int = DAY_S
    replicas: int = 1
    ack_wait_s: float = ACK_WAIT_S_MIN
