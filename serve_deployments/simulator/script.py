"""The instructions of a simulated engine: behaviour, latency, length, faults, keys; they may change while it runs."""

from secrets import compare_digest

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from serve_deployments.simulator.faults import parse_fault
from serve_deployments.simulator.lacks import Lack
from serve_deployments.simulator.writer.outputs import Behaviour

_SLOW_FACTOR = 10.0
_SLOW_EXTRA_S = 1.0


class Script(BaseModel):
    """One set of instructions; unknown fields are refused.

    `duration_ms` is the time of a whole completion, spread evenly over its tokens; it overrides `ttft_ms` and
    `per_token_ms`. `jitter` scales a completion's times by a seeded factor in [1 - jitter, 1 + jitter]. `tokens` fixes
    a completion's length; `chunk_tokens` is the least number per streamed chunk. With `api_keys` every path under /v1
    needs one of them as a bearer token. With `lacks` it is an engine of another kind than vLLM.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    behaviour: Behaviour = Behaviour.NORMAL
    ttft_ms: float = Field(default=0.0, ge=0, le=3_600_000)
    per_token_ms: float = Field(default=0.0, ge=0, le=3_600_000)
    duration_ms: float | None = Field(default=None, ge=0, le=3_600_000)
    jitter: float = Field(default=0.0, ge=0, le=1)
    tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    chunk_tokens: int = Field(default=1, ge=1, le=1_000_000)
    faults: tuple[str, ...] = ()
    api_keys: tuple[SecretStr, ...] = ()
    lacks: tuple[Lack, ...] = ()

    @field_validator("faults")
    @classmethod
    def _readable(cls, faults: tuple[str, ...]) -> tuple[str, ...]:
        for fault in faults:
            parse_fault(fault)
        return faults

    def changed(self, change: "Script") -> "Script":
        """A copy with the fields that were set in `change`."""
        return self.model_copy(update={name: getattr(change, name) for name in change.model_fields_set})

    def admits(self, authorization: str) -> bool:
        """Whether a request with this Authorization header may use the paths under /v1."""
        known = [f"Bearer {key.get_secret_value()}".encode() for key in self.api_keys]
        return not known or any(compare_digest(each, authorization.encode()) for each in known)

    def due_times_s(self, tokens: int, chance: float, *, slow: bool = False) -> list[float]:
        """When each token is due, in seconds after the start: absolute, so that lateness never adds up.

        `chance` in [0, 1) decides the jitter. A `slow` completion takes ten times as long and a second more. An empty
        one has one due time, its end.
        """
        factor = (1.0 + self.jitter * (2.0 * chance - 1.0)) * (_SLOW_FACTOR if slow else 1.0) / 1_000.0
        first_s, step_s = self.ttft_ms * factor, self.per_token_ms * factor
        if self.duration_ms is not None:
            first_s = step_s = self.duration_ms / max(1, tokens) * factor
        first_s += _SLOW_EXTRA_S if slow else 0.0
        return [first_s + token * step_s for token in range(max(1, tokens))]
