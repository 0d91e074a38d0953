"""Model requests: one call, the calls of a stage, and what they cost."""

from typing import Literal

from pydantic import Field

from app.deliberation.outputs import Output, TestCase
from app.deliberation.specification import Purpose, Token, Value


class ChatMessage(Value, frozen=True):
    """One message of a chat prompt, as the engine's API takes it."""

    role: Literal["system", "user"]
    content: str


class Check(Value, frozen=True):
    """A program to be run against tests, with each test's limits; `writers` has the number of each test's writer."""

    code: str
    tests: tuple[TestCase, ...]
    writers: tuple[int, ...] = ()
    timeout_s: int
    memory_mb: int


class Call(Value, frozen=True):
    """One model request, complete but for the engine that will serve it.

    `labels` has the candidate behind each letter shown in the prompt; it is recorded and never sent. With a `check` no
    engine is asked: a sandbox runs that program, and its report is the answer.
    """

    call_id: Token
    agent_id: Token
    role: str
    model: str | None = None
    messages: tuple[ChatMessage, ...]
    output: Output
    temperature: float
    top_p: float | None = None
    max_tokens: int
    seed: int
    labels: dict[str, str] = {}
    check: Check | None = None


class Cost(Value, frozen=True):
    """Engine requests and tokens: spent by closed stages, or predicted for later ones."""

    calls: int = 0
    tokens: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(calls=self.calls + other.calls, tokens=self.tokens + other.tokens)


class Ask(Value, frozen=True):
    """A strategy's next stage: calls that run at once, and how many answers make a quorum.

    `stages_left` counts this stage and those that may follow; it divides the time that is left.
    `reserve` is for stages without which this one would be of no use, or the choice could not be paid for any more.
    """

    purpose: Purpose
    round: int
    calls: tuple[Call, ...] = Field(min_length=1)
    quorum: int = Field(ge=1)
    stages_left: int = Field(ge=1)
    reserve: Cost = Cost()


class Usage(Value, frozen=True):
    """Tokens and requests as the engine reported them, summed over attempts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    calls: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            calls=self.calls + other.calls,
        )

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens


class FactProblem(Value, frozen=True):
    """An error as a fact records it: a stable code, a sentence, and whether trying again may help."""

    code: str
    detail: str
    retryable: bool
