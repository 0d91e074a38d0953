"""Model requests: one call, the calls of a stage, and what they cost."""

from collections.abc import Sequence
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal

from pydantic import AwareDatetime, Field

from app.deliberation.outputs import Output, TestCase
from app.deliberation.specification import (
    Amount,
    Currency,
    GitWorkspace,
    InputRef,
    Prices,
    Priority,
    Purpose,
    Token,
    ToolAllowance,
    Value,
)

# An engine may report any number of tokens. Up to this amount a JSON number holds millionths exactly.
AMOUNT_MAX = Decimal(10**9)
_MILLIONTH = Decimal("0.000001")
# More milliseconds than any time of this century has since 1970.
BATCH_AFTER = 10**13


class PlacedInput(Value, frozen=True):
    """An input of a message; a text stands before the character `at` of the message's own text."""

    file: InputRef
    at: int


class ChatMessage(Value, frozen=True):
    """One message of a chat prompt; its replica puts the texts of `inputs` into `content`, and pictures before it.

    `inputs` are in the order of their places. `pictures` are data URLs, which a replica puts in. The transcript of a
    conversation of several `turns` stands for its messages.
    """

    role: Literal["system", "user"]
    content: str
    turns: int = Field(default=1, exclude_if=lambda turns: turns == 1)
    inputs: tuple[PlacedInput, ...] = Field(default=(), exclude_if=lambda inputs: not inputs)
    pictures: tuple[str, ...] = Field(default=(), exclude=True)

    @property
    def size_bytes(self) -> int:
        """The bytes of the whole text; a picture counts as a text of its tokens."""
        return len(self.content.encode()) + sum(placed.file.prompt_bytes for placed in self.inputs)


class Check(Value, frozen=True):
    """A program to be run against tests, with each test's limits; `writers` has the number of each test's writer."""

    code: str
    tests: tuple[TestCase, ...]
    writers: tuple[int, ...] = ()
    timeout_s: int
    memory_mb: int


class Call(Value, frozen=True):
    """One model request, complete but for the engine that will serve it.

    Without a `persona` of the member's own its replica adds the role's. `labels` has the candidate behind each letter
    shown in the prompt; it is recorded and never sent. With a `check` no engine is asked: a sandbox runs that program,
    and its report is the answer. With `tools` the model may use them before it answers.
    """

    call_id: Token
    agent_id: Token
    role: str
    persona: str | None = Field(default=None, exclude_if=lambda persona: persona is None)
    model: str | None = None
    messages: tuple[ChatMessage, ...]
    output: Output
    temperature: float
    top_p: float | None = None
    max_tokens: int
    seed: int
    labels: dict[str, str] = {}
    check: Check | None = None
    tools: ToolAllowance | None = Field(default=None, exclude_if=lambda tools: tools is None)


class StageRequest(Value, frozen=True):
    """Calls of one role in one stage.

    `asked_at` is when the coordinator sent it, since a replica that hangs reads it late. `resumed` says that some calls
    may have been made or recorded before. `accepted_sequence` is the acceptance's place in the stream, and
    `first_agent` the council's first member. With `one_persona` all agents of the council have this role and one
    persona. Calls with a lower `priority` go first. `stage_calls` are all calls of the role in the stage, also those
    with an outcome; they are not sent. `traceparent` names the stage's span, where it is recorded. The workspace
    `files` has its texts in the acceptance alone.
    """

    tenant: str
    deliberation_id: str
    stage: int
    calls: tuple[Call, ...]
    asked_at: AwareDatetime
    deadline_at: AwareDatetime
    resumed: bool
    accepted_sequence: int = 0
    first_agent: str = ""
    one_persona: bool = False
    priority: int = 0
    traceparent: str | None = None
    workspace: GitWorkspace | Literal["files"] | None = None
    stage_calls: tuple[Call, ...] = Field(default=(), exclude=True)


def priority_number(priority: Priority, accepted_at: datetime) -> int:
    """The place of a deliberation's calls at an engine, lowest first: the oldest first, batch work after all other."""
    return int(accepted_at.timestamp() * 1_000) + (BATCH_AFTER if priority == "batch" else 0)


class Cost(Value, frozen=True):
    """Engine requests, tokens, their price and uses of tools: spent by closed stages, or predicted for later ones."""

    calls: int = 0
    tokens: int = 0
    amount: Amount = Decimal(0)
    tool_uses: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            calls=self.calls + other.calls,
            tokens=self.tokens + other.tokens,
            amount=self.amount + other.amount,
            tool_uses=self.tool_uses + other.tool_uses,
        )


class Ask(Value, frozen=True):
    """A strategy's next stage: calls that run at once, and how many answers make a quorum.

    `stages_left` counts this stage and those that may follow; it divides the time that is left. `reserve` is kept for
    stages without which this stage would be of no use, and for the choice.
    """

    purpose: Purpose
    round: int
    calls: tuple[Call, ...] = Field(min_length=1)
    quorum: int = Field(ge=1)
    stages_left: int = Field(ge=1)
    reserve: Cost = Cost()


class Money(Value, frozen=True):
    """An amount, and its currency."""

    amount: Amount
    currency: Currency

    @property
    def millionths(self) -> int:
        return int(self.amount.scaleb(6).to_integral_value())

    def __str__(self) -> str:
        return f"{self.amount.normalize():f} {self.currency}"


class UsageCost(Money, frozen=True):
    """The cost of requests at their engines' prices. `unpriced_calls` counts requests without a price."""

    unpriced_calls: int = 0

    def __str__(self) -> str:
        left_out = f", without {self.unpriced_calls} unpriced call{'s' * (self.unpriced_calls != 1)}"
        return super().__str__() + (left_out if self.unpriced_calls else "")


def price_of(prices: Prices, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> Decimal:
    """The price of so many tokens, of which `cached_tokens` are part of the prompt, rounded half up to a millionth."""
    cached = min(max(cached_tokens, 0), max(prompt_tokens, 0))
    each_cached = prices.prompt if prices.cached is None else prices.cached
    # Prices per million tokens are millionths per token.
    millionths = (
        (max(prompt_tokens, 0) - cached) * prices.prompt
        + cached * each_cached
        + max(completion_tokens, 0) * prices.completion
    )
    return min(millionths, AMOUNT_MAX / _MILLIONTH).quantize(Decimal(1), ROUND_HALF_UP) * _MILLIONTH


class Usage(Value, frozen=True):
    """Tokens as the engine reported them, requests, and their cost, summed over attempts.

    A request for several choices counts once for each; the call that ends last has its prompt's tokens.

    `cost` is null where no request has a price. Requests in another currency than the first one's count as unpriced.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    calls: int = 0
    tool_uses: int = Field(default=0, exclude_if=lambda uses: not uses)
    cost: UsageCost | None = None

    @staticmethod
    def total(spent: Sequence["Usage"]) -> "Usage":
        prompt_tokens = completion_tokens = cached_tokens = calls = tool_uses = 0
        for usage in spent:
            prompt_tokens += usage.prompt_tokens
            completion_tokens += usage.completion_tokens
            cached_tokens += usage.cached_tokens
            calls += usage.calls
            tool_uses += usage.tool_uses
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cached_tokens=cached_tokens,
            calls=calls,
            tool_uses=tool_uses,
            cost=_total_cost(spent),
        )

    def __add__(self, other: "Usage") -> "Usage":
        return Usage.total((self, other))

    def at(self, prices: Prices | None) -> "Usage":
        if prices is None:
            return self.model_copy(update={"cost": None})
        amount = price_of(prices, self.prompt_tokens, self.completion_tokens, self.cached_tokens)
        return self.model_copy(update={"cost": UsageCost(amount=amount, currency=prices.currency)})

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


def _total_cost(spent: Sequence[Usage]) -> UsageCost | None:
    currency = next((usage.cost.currency for usage in spent if usage.cost is not None), None)
    if currency is None:
        return None
    amount, unpriced = Decimal(0), 0
    for usage in spent:
        if usage.cost is None or usage.cost.currency != currency:
            unpriced += usage.calls
        else:
            amount, unpriced = amount + usage.cost.amount, unpriced + usage.cost.unpriced_calls
    return UsageCost(amount=amount, currency=currency, unpriced_calls=unpriced)


class FactProblem(Value, frozen=True):
    """An error as a fact records it: a stable code, a sentence, and whether trying again may help."""

    code: str
    detail: str
    retryable: bool
