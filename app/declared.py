"""What an operator chooses of the streams, read by whoever declares them and whoever checks them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.deliberation.errors import InvalidRequest
from app.deliberation.specification import TIMEOUT_S_MAX

DAY_S = 86_400
RETENTION_S_MIN = TIMEOUT_S_MAX
"""An acceptance is what a coordinator's successor is handed: it must outlive the longest deadline."""
RETENTION_S_MAX = 31_536_000
ACK_WAIT_S_MIN = 6.0
"""Three heartbeats of a coordinator: one that is late is not taken for dead."""
ACK_WAIT_S_MAX = 600.0
REPLICAS_MAX = 5
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """How long facts are kept, on how many servers, and after what silence of a coordinator another takes over."""

    retention_s: int = DAY_S
    replicas: int = 1
    ack_wait_s: float = ACK_WAIT_S_MIN


def stream_settings(environment: Mapping[str, str]) -> StreamSettings:
    """What these environment variables choose; raises InvalidRequest naming one that is no number within its bounds.

    Read here and not by the gateway's settings, which take longer to import than all else that `up` does first.
    """
    return StreamSettings(
        retention_s=int(_number(environment, "DELIBERATION_CLEANUP", DAY_S, RETENTION_S_MIN, RETENTION_S_MAX)),
        replicas=int(_number(environment, "STREAM_REPLICAS", 1, 1, REPLICAS_MAX)),
        ack_wait_s=_number(environment, "ACK_WAIT", ACK_WAIT_S_MIN, ACK_WAIT_S_MIN, ACK_WAIT_S_MAX),
    )


def _number(environment: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    given = environment.get(name)
    if not given:
        return default
    if not _NUMBER.fullmatch(given) or not least <= float(given) <= most:
        raise InvalidRequest(f"{name} is a number from {least:g} to {most:g}, not {given!r}", name)
    return float(given)
