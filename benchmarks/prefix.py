"""`python -m benchmarks.prefix [--ideal | --round | --beside REVISION]`: the cached share of prompt tokens.

Without an option: 200 councils over several engines, by the product's routing and by the fewest requests in flight,
beside one engine whose cache has room for all. `--ideal`: each strategy's cached share beside the highest that any
layout of its prompts could reach (`benchmarks.prefill`). `--round`: by strategy on one engine, the prompt tokens of a
deliberation, the share that is cached, and what they cost. `--beside`: the same here and in an earlier revision.

SIMULATED: prompts, seeds and routing are the product's; texts and cache (vLLM's blocks of 16 tokens) the simulator's. A
replica of each role knows its own requests only. Time is virtual: 20,000 uncached prompt tokens a second, and 20 ms for
each written token, half as much again with 16 requests at once. A block counts as cached once its prompt is admitted,
also for prompts that arrive at the same time: vLLM does so when it schedules them (`tests/vllm/test_prefix_cache.py`).
"""

import heapq
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import count
from pydoc_data.topics import topics
from random import Random
from statistics import median, quantiles
from typing import Any

import yaml

from app.deliberation.calls import Ask, Call
from app.deliberation.decider import Outcomes, Strategy
from app.deliberation.facts import CallFinished
from app.deliberation.outputs import CheckOutcome, SandboxReport
from app.deliberation.prompts.form import with_persona
from app.deliberation.roles import Role, parse_roles
from app.deliberation.specification import DEFAULT_RUBRIC, AgentSpec, Constraints, Specification
from app.deliberation.strategies import STRATEGIES
from benchmarks.quality.trials import finished
from serve_deployments.engine.request_body import request_body
from serve_deployments.simulator.server.completion import RenderedPrompt, SimulatorSettings, complete, render
from serve_deployments.simulator.server.engine import PrefixCache
from serve_deployments.simulator.server.requests import parse_chat
from serve_deployments.simulator.writer.tokens import BLOCK_TOKENS, split_blocks

COUNCILS = 200
ROLES = ("DEV", "QA", "ARCHITECT", "DEVOPS", "DATA")
STRATEGIES_SHOWN = {"independent": 3, "council": 3, "debate": 3, "vote": 5, "fuse": 3, "best_of_n": 3, "tournament": 4}
SIZES = {"single": 1, **STRATEGIES_SHOWN, "execute": 3, "auto": 3}
TASK_TOKENS = (200, 2_000, 8_000)
SIMULATOR = SimulatorSettings()
PREFILL_TOKENS_PER_S = 20_000
TOKEN_S = 0.02
BATCH = 32
TASK = """Design the storage of event {number} of a booking system: tickets are sold in many shops at once, payments \
fail now and then, and no seat may be sold twice. Say which tables there are, which transactions, what happens when a \
server stops in the middle of a sale, and how a sold-out event is told to all shops within a second."""


def task(number: int, tokens: int) -> str:
    """A task of about so many tokens: the question, then Python's own help from another place for each number."""
    helped = "\n".join(topics.values())
    _, blocks = split_blocks(f"{TASK.format(number=number)}\n\n{helped[number * 1_009 % 10_000 :][: 12 * tokens]}")
    return "".join(blocks[: tokens // BLOCK_TOKENS])


def specification(
    number: int, strategy: str, size: int, roles: Sequence[str], task_tokens: int | None = None
) -> Specification:
    """The specification of one council; no two tasks are alike."""
    agents = (AgentSpec(agent_id=f"a-{place:03d}", role=roles[place % len(roles)]) for place in range(size))
    return Specification(
        task=task(number, task_tokens) if task_tokens else TASK.format(number=number),
        agents=tuple(agents),
        strategy=strategy,
        strategy_version=STRATEGIES[strategy].version,
        rounds=1,
        constraints=Constraints(rubric=DEFAULT_RUBRIC, timeout_seconds=300),
        quorum=max(2, (size + 1) // 2),
        seed=number,
    )


@cache
def personas() -> dict[str, str]:
    """The packaged roles' personas."""
    roles: dict[str, Role] = dict(parse_roles(yaml.safe_load((files("app") / "roles.yaml").read_text("utf-8"))))
    return {name: role.persona for name, role in roles.items()}


@cache
def _answered(body: bytes) -> tuple[RenderedPrompt, str, int]:
    request, conversation = parse_chat(body)
    prompt = render(conversation)
    (choice,) = complete(SIMULATOR, request, prompt, SIMULATOR.script, None)
    return prompt, choice.text, len(choice.tokens)


def as_sent(call: Call, *, one_role: bool = False) -> Call:
    """A call as its role's replica sends it."""
    return with_persona(call, personas()[call.role], shared=one_role)


def answered(call: Call, *, one_role: bool = False) -> tuple[RenderedPrompt, str, int]:
    """The prompt of a call as an engine reads it, and the simulator's answer with its tokens."""
    return _answered(request_body(as_sent(call, one_role=one_role), SIMULATOR.model, call.seed, stream=False))


def checked(call: Call) -> str:
    """A simulated sandbox's report on a call with a check: each program fails about a quarter of the tests."""
    assert call.check is not None
    draws = Random(call.check.code)
    fails = [draws.random() < 0.25 for _ in call.check.tests]
    outcomes = (
        CheckOutcome(name=test.name, passed=not failed, reason="returned null" if failed else "", duration_ms=1)
        for test, failed in zip(call.check.tests, fails, strict=True)
    )
    return SandboxReport(outcomes=tuple(outcomes)).model_dump_json()


@dataclass(frozen=True, slots=True)
class Sent:
    """A call that was sent to an engine, and the tokens of its answer."""

    call: Call
    prompt: RenderedPrompt
    completion_tokens: int


def stages(asked: Specification) -> Iterator[list[Sent]]:
    """A deliberation's calls to engines by stage, each answered by the simulator."""
    strategy = STRATEGIES[asked.strategy].run(asked)
    ask, stage = next(strategy), 1
    one_role = len({agent.role for agent in asked.agents}) == 1
    while True:
        sent: list[Sent] = []
        seen: dict[str, CallFinished] = {}
        for call in ask.calls:
            if call.check is not None:
                text = checked(call)
            else:
                prompt, text, tokens = answered(call, one_role=one_role)
                sent.append(Sent(as_sent(call, one_role=one_role), prompt, tokens))
            seen[call.call_id] = finished(call, stage, text)
        if sent:
            yield sent
        try:
            ask = strategy.send(Outcomes(seen))
        except StopIteration:
            return
        stage += 1


@dataclass(eq=False)
class ReplicaView:
    """An engine as one replica knows it: by its own requests."""

    place: int
    address: str
    in_flight: int = 0


SANDBOX = ReplicaView(-1, "sandbox")
Route = Callable[[str, Sequence[ReplicaView]], ReplicaView]


@dataclass
class Council:
    """A council under way; `strategy` waits for the outcomes of `ask`."""

    number: int
    strategy: Strategy
    ask: Ask
    began_s: float
    stage: int = 1
    seen: dict[str, CallFinished] = field(default_factory=dict[str, CallFinished])


@dataclass
class Fleet:
    """Councils over engines in virtual time; `route` chooses as a replica does, `sent` receives each prompt.

    With `personas_last` the persona ends each prompt, also where all agents share it.
    """

    route: Route
    engines: int
    strategy: str = "council"
    size: int = 3
    roles: Sequence[str] = ROLES[:3]
    personas_last: bool = False
    blocks_max: int = 65_536
    task_tokens: int | None = None
    sent: Callable[[int, int, str], None] | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    requests: Counter[int] = field(default_factory=Counter[int])
    seconds: list[float] = field(default_factory=list[float])

    def run(self, councils: int, in_flight: int) -> "Fleet":
        """Run so many councils, so many at once; the figures are in the fields."""
        self._caches = [PrefixCache(self.blocks_max) for _ in range(self.engines)]
        self._views = {
            role: [ReplicaView(place, f"http://engine-{place}:8000") for place in range(self.engines)]
            for role in self.roles
        }
        self._due: list[tuple[float, int, Council, Call, str, ReplicaView]] = []
        self._order = count()
        waiting = iter(range(councils))
        for number in [next(waiting) for _ in range(min(councils, in_flight))]:
            self._begin(number, 0.0)
        while self._due:
            now_s, _, council, call, text, view = heapq.heappop(self._due)
            view.in_flight -= 1
            council.seen[call.call_id] = finished(call, council.stage, text)
            if len(council.seen) < len(council.ask.calls):
                continue
            try:
                council.ask = council.strategy.send(Outcomes(council.seen))
            except StopIteration:
                self.seconds.append(now_s - council.began_s)
                if (number := next(waiting, None)) is not None:
                    self._begin(number, now_s)
            else:
                council.stage, council.seen = council.stage + 1, {}
                self._ask(council, now_s)
        return self

    def _begin(self, number: int, now_s: float) -> None:
        asked = specification(number, self.strategy, self.size, self.roles, self.task_tokens)
        strategy = STRATEGIES[self.strategy].run(asked)
        self._ask(Council(number, strategy, next(strategy), now_s), now_s)

    def _ask(self, council: Council, now_s: float) -> None:
        for call in council.ask.calls:
            if call.check is not None:
                heapq.heappush(self._due, (now_s, next(self._order), council, call, checked(call), SANDBOX))
                continue
            view = self.route(f"default.{council.number}", self._views[call.role])
            prompt, text, tokens = answered(call, one_role=len(set(self.roles)) == 1 and not self.personas_last)
            hits = self._caches[view.place].admit(prompt.blocks, prompt.tokens, None)
            if self.sent is not None:
                self.sent(council.number, council.stage, prompt.rendered)
            self.prompt_tokens += prompt.tokens
            self.cached_tokens += hits
            self.requests[view.place] += 1
            view.in_flight += 1
            beside = sum(views[view.place].in_flight for views in self._views.values())
            ends_s = now_s + (prompt.tokens - hits) / PREFILL_TOKENS_PER_S + tokens * TOKEN_S * (1 + beside / BATCH)
            heapq.heappush(self._due, (ends_s, next(self._order), council, call, text, view))

    @property
    def cached_share(self) -> float:
        """The share of prompt tokens that were in a cache."""
        return self.cached_tokens / self.prompt_tokens

    @property
    def busiest(self) -> float:
        """The requests of the busiest engine over the mean."""
        return max(self.requests.values()) * self.engines / sum(self.requests.values())


def least_in_flight(_: str, engines: Sequence[ReplicaView]) -> ReplicaView:
    """The alternative: the engine with the fewest of the replica's requests."""
    return min(engines, key=lambda engine: engine.in_flight)


def round_() -> dict[str, float]:
    """By strategy: a deliberation's prompt tokens, the share that is cached, the rest, and what all of them cost.

    Agents have a role each, or one role; that also with the persona at the end of each prompt, for comparison. The cost
    is in full-price tokens, where a cached token costs 10 or 50 % of that.
    """
    found: dict[str, float] = {}
    for strategy, size in STRATEGIES_SHOWN.items():
        for name, roles, personas_last in (
            (strategy, ROLES[:size], False),
            (f"{strategy}, one role", ROLES[:1], False),
            (f"{strategy}, one role, persona last", ROLES[:1], True),
        ):
            fleet = Fleet(least_in_flight, 1, strategy, size, roles, personas_last).run(councils=50, in_flight=10)
            cached, computed = fleet.cached_tokens / 50, (fleet.prompt_tokens - fleet.cached_tokens) / 50
            found[f"{name}: tokens"] = cached + computed
            found[f"{name}: cached %"] = 100 * fleet.cached_share
            found[f"{name}: computed"] = computed
            for price in (10, 50):
                found[f"{name}: cost, cached at {price} %"] = computed + cached * price / 100
    return found


def prefix_first(deliberation: str, engines: Sequence[ReplicaView]) -> ReplicaView:
    """The product's routing."""
    from serve_deployments.engine.pool import engine_for

    chosen = engine_for(deliberation, engines)
    assert chosen is not None
    return chosen


def ideals(councils: int = 20) -> Iterator[tuple[str, ...]]:
    """By strategy, length of task and number of engines: tokens of a deliberation, and the achieved shares' ratios.

    A ratio is the achieved cached share over 1 - floor ÷ prompt tokens. `auto` has the figures of `council`.
    """
    from benchmarks.prefill import Floors

    for task_tokens in (min(TASK_TOKENS), max(TASK_TOKENS)):
        for strategy, size in {**STRATEGIES_SHOWN, "execute": 3}.items():
            achieved: list[float] = []
            for engines in (1, 4):
                floors = Floors()
                roles = ROLES[:size]
                fleet = Fleet(
                    prefix_first, engines, strategy, size, roles, task_tokens=task_tokens, sent=floors.add
                ).run(councils, in_flight=10)
                achieved.append(fleet.cached_share)
            computed = (1 - achieved[0]) * fleet.prompt_tokens
            tokens = (fleet.prompt_tokens, computed, floors.once, floors.in_order)
            ratios = (
                [f"{share / (1 - floor / fleet.prompt_tokens):.3f}" for share in achieved]
                for floor in (floors.once, floors.in_order)
            )
            yield (
                f"{strategy}, {size}",
                f"{task_tokens:,}",
                *(f"{each / councils:,.0f}" for each in tokens),
                *(f"{share:.3f}" for share in achieved),
                *(ratio for pair in ratios for ratio in pair),
            )


def print_routing() -> None:
    """Print the routing's figures beside the alternative's."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "council",
        "engines",
        "at once",
        "routing",
        "cached",
        "of one engine's",
        "busiest / mean",
        "p50 s",
        "p95 s",
        title=f"SIMULATED: {COUNCILS} councils, strategy council, times in virtual seconds",
    )
    routes: dict[str, Route] = {"fewest in flight": least_in_flight, "prefix first": prefix_first}
    for roles in (ROLES[:3], ROLES[:1] * 3):
        for engines, in_flight in ((4, 8), (4, 200), (8, 100)):
            council: dict[str, Any] = {"size": len(roles), "roles": roles}
            one = Fleet(least_in_flight, 1, blocks_max=sys.maxsize, **council).run(COUNCILS, in_flight).cached_share
            for name, route in routes.items():
                fleet = Fleet(route, engines, **council).run(COUNCILS, in_flight)
                table.add_row(
                    f"{len(roles)} agents, {len(set(roles))} roles",
                    str(engines),
                    str(in_flight),
                    name,
                    f"{fleet.cached_share:.3f}",
                    f"{fleet.cached_share / one:.3f}",
                    f"{fleet.busiest:.2f}",
                    f"{median(fleet.seconds):.1f}",
                    f"{quantiles(fleet.seconds, n=20)[-1]:.1f}",
                )
    Console(width=max(140, Console().width)).print(table)


def print_ideals() -> None:
    """Print the achieved shares beside the ideal ones."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "strategy, agents",
        "task",
        "prompt tokens",
        "computed",
        "each once",
        "in order",
        "share, 1 engine",
        "4 engines",
        "÷ ideal once, 1",
        "4",
        "÷ ideal in order, 1",
        "4",
        title="SIMULATED: tokens of a deliberation on one engine, and achieved ÷ ideal cached share",
    )
    for row in ideals():
        table.add_row(*row)
    Console(width=max(140, Console().width)).print(table)


if __name__ == "__main__":
    if "--round" in sys.argv:
        print(json.dumps(round_()))
    elif "--ideal" in sys.argv:
        print_ideals()
    elif sys.argv[1:]:
        from benchmarks.beside import compare

        compare(__file__, __doc__, rounds=1)
    else:
        print_routing()
