"""What is wrong with an engine: the causes, each with its words and its remedy."""

from collections.abc import Iterable, Mapping
from datetime import UTC
from typing import Literal, NamedTuple, get_args

from pydantic import AwareDatetime, Field

from app.deliberation.specification import Value

# In order of gravity. `refused` means a refused connection, and `refusal` a refused request.
TroubleCause = Literal[
    "refused",
    "unresolved",
    "tls",
    "unconnected",
    "key",
    "silent",
    "memory",
    "loading",
    "errors",
    "model",
    "refusal",
    "list",
    "throttled",
]


class CauseKind(NamedTuple):
    """What an engine with this trouble does, without its own words, and the remedy."""

    words: str
    remedy: str


CAUSES: Mapping[TroubleCause, CauseKind] = {
    "refused": CauseKind(
        "cannot be connected to", "Start it, or correct its URL (VLLM_URL, or `engines` of the role)."
    ),
    "unresolved": CauseKind(
        "cannot be connected to", "Correct the host name in its URL (VLLM_URL, or `engines` of the role)."
    ),
    "tls": CauseKind(
        "cannot be connected to", "Renew its certificate, or correct the scheme and the host name of its URL."
    ),
    "unconnected": CauseKind(
        "cannot be connected to",
        "Start it, or correct its URL (VLLM_URL, or `engines` of the role) and the firewall before it.",
    ),
    "key": CauseKind("refuses its key", "Correct its key as `GET /roles` says."),
    "silent": CauseKind("takes connections and does not answer", "Read its own log, and restart it if it hangs."),
    "memory": CauseKind(
        "is out of memory",
        "Restart it with less: a lower `--max-model-len` or `--max-num-seqs`, a smaller model, or a larger GPU.",
    ),
    "loading": CauseKind(
        "is not ready", "Wait until it has loaded its model; if it stays so, read its own log and restart it."
    ),
    "errors": CauseKind("answers with errors", "Read its own log; calls go to other engines of the role meanwhile."),
    "model": CauseKind("does not serve the model", "Name a model that it lists as `model` in the roles file."),
    "refusal": CauseKind(
        "refuses a request",
        "Try the model, the key and `response_format` by hand (`curl`), and name another `model` or engine.",
    ),
    "list": CauseKind(
        "has no usable list of models",
        "Correct it, or give the engine a `model`; with one, calls do without the list.",
    ),
    "throttled": CauseKind(
        "tells its callers to wait", "Wait, or lower `max_in_flight` of the engine and `concurrency` of the role."
    ),
}


class EngineTrouble(Value, frozen=True):
    """What keeps calls from an engine or makes them fail, since when, in its own words where it has some."""

    cause: TroubleCause
    detail: str = Field(description="What it does, and its own words")
    since: AwareDatetime
    remedy: str

    @classmethod
    def of(cls, cause: TroubleCause, since: AwareDatetime, words: str = "", remedy: str = "") -> "EngineTrouble":
        """The trouble of a cause with the engine's `words`; `remedy` replaces the one of the cause."""
        kind = CAUSES[cause]
        detail = f"{kind.words}: {words}" if words else kind.words
        return cls(cause=cause, detail=detail, since=since, remedy=remedy or kind.remedy)

    def __str__(self) -> str:
        return f"{self.detail}, since {self.since.astimezone(UTC):%H:%M:%S} UTC"


def gravest(troubles: Iterable[EngineTrouble | None]) -> EngineTrouble | None:
    """The trouble to show: its cause stands first in `TroubleCause`; of several with this cause it is the oldest."""
    order = get_args(TroubleCause)
    known = [trouble for trouble in troubles if trouble is not None]
    return min(known, key=lambda trouble: (order.index(trouble.cause), trouble.since), default=None)
