"""What the simulated engine is told to do: behaviour, latency, length and faults; changeable while it runs."""

from dataclasses import dataclass, field, replace

from pydantic import BaseModel, ConfigDict, Field, field_validator

from serve_deployments.simulator.author import Behaviour
from serve_deployments.simulator.faults import Fault, parse_fault
from serve_deployments.simulator.pacing import Latency


@dataclass(frozen=True, slots=True)
class Script:
    """One set of instructions. `tokens` fixes a completion's length; `chunk_tokens` is the least per streamed chunk.

    `faults` are kept as they were written; `parsed_faults` reads them.
    """

    behaviour: Behaviour = Behaviour.NORMAL
    latency: Latency = field(default_factory=Latency)
    tokens: int | None = None
    chunk_tokens: int = 1
    faults: tuple[str, ...] = ()

    def parsed_faults(self) -> tuple[Fault, ...]:
        """The faults to decide by; FaultSyntaxError when one cannot be read."""
        return tuple(parse_fault(text) for text in self.faults)

    def told(self) -> dict[str, object]:
        """The script as `GET /simulator/script` tells it, in the form that a change takes."""
        return {
            "behaviour": self.behaviour,
            "ttft_ms": self.latency.ttft_ms,
            "per_token_ms": self.latency.per_token_ms,
            "duration_ms": self.latency.duration_ms,
            "jitter": self.latency.jitter,
            "tokens": self.tokens,
            "chunk_tokens": self.chunk_tokens,
            "faults": list(self.faults),
        }


class ScriptChange(BaseModel):
    """Body of `POST /simulator/script`: only the fields that are named change; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid")

    behaviour: Behaviour = Behaviour.NORMAL
    ttft_ms: float = Field(default=0.0, ge=0, le=3_600_000)
    per_token_ms: float = Field(default=0.0, ge=0, le=3_600_000)
    duration_ms: float | None = Field(default=None, ge=0, le=3_600_000)
    jitter: float = Field(default=0.0, ge=0, le=1)
    tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    chunk_tokens: int = Field(default=1, ge=1, le=1_000_000)
    faults: tuple[str, ...] = ()

    @field_validator("faults")
    @classmethod
    def _readable(cls, faults: tuple[str, ...]) -> tuple[str, ...]:
        for fault in faults:
            parse_fault(fault)
        return faults

    def applied_to(self, script: Script) -> Script:
        """`script` with what was named in this change."""
        named = {name: getattr(self, name) for name in self.model_fields_set}
        timing = ("ttft_ms", "per_token_ms", "duration_ms", "jitter")
        latency = replace(script.latency, **{name: named.pop(name) for name in timing if name in named})
        return replace(script, latency=latency, **named)
