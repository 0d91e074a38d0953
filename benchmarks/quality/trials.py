"""Trials: registered strategies with simulated agents, run to their conclusion in one process.

The strategy engine replays a strategy on every decision, which survives a crash but costs most of its time. Nothing
crashes here, so a trial runs a strategy once and sends it the outcomes of each stage as the engine does. A test
compares both conclusions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from app.deliberation.calls import Ask, Call, FactProblem, Usage
from app.deliberation.decider import Conclusion, Outcomes
from app.deliberation.facts import CallFinished
from app.deliberation.specification import (
    Actions,
    ActionTool,
    AgentSpec,
    Constraints,
    Criterion,
    Purpose,
    Sampling,
    Specification,
)
from app.deliberation.strategies import STRATEGIES
from benchmarks.quality.simulated_agents import ACTION_TOOL, RIGHT, AgentModel, SimulatedAgents, chance

ROLE = "DEV"
_RUBRIC = (Criterion(id="right", description="Is it right?"),)
_SAMPLING = Sampling(max_tokens=100)
_COST = Usage(prompt_tokens=100, completion_tokens=50, calls=1)
_FAILED = FactProblem(code="engine_unavailable", detail="planted", retryable=True)
_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The setting of a trial: a strategy, its council, and the model of its agents."""

    strategy: str
    agents: int
    model: AgentModel = field(default_factory=AgentModel)
    rounds: int = 1
    # The share of members that must want an action; None where answers are texts.
    agreement_min: float | None = None
    parameters: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class TrialCall:
    """One call of a trial with its stage's purpose and its answer, None for a failed call."""

    purpose: Purpose
    call: Call
    text: str | None


@dataclass(frozen=True, slots=True)
class Trial:
    """One concluded deliberation."""

    seed: int
    conclusion: Conclusion
    trial_calls: tuple[TrialCall, ...]

    @property
    def calls(self) -> int:
        """Number of engine requests; checks go to a sandbox."""
        return sum(each.call.check is None for each in self.trial_calls)

    @property
    def right(self) -> bool:
        """Whether the verdict is right."""
        action = self.conclusion.action
        if action is None:
            return self.conclusion.content == RIGHT
        return [str(call.arguments["value"]) for call in action.calls] == [RIGHT]

    def of(self, purpose: Purpose) -> list[TrialCall]:
        """The calls of all stages with this purpose, in order."""
        return [each for each in self.trial_calls if each.purpose == purpose]


def agent_ids(count: int) -> list[str]:
    """The agents' ids as the gateway numbers them."""
    return [f"{ROLE.lower()}-{number:03d}" for number in range(1, count + 1)]


def specification(setting: Setting, seed: int) -> Specification:
    """The specification that the gateway would accept for the setting."""
    agents = tuple(AgentSpec(agent_id=each, role=ROLE, sampling=_SAMPLING) for each in agent_ids(setting.agents))
    return Specification(
        task="What is six times seven?",
        agents=agents,
        strategy=setting.strategy,
        strategy_version=STRATEGIES[setting.strategy].version,
        parameters=dict(setting.parameters),
        rounds=setting.rounds,
        constraints=_constraints(setting),
        quorum=1 if setting.agents == 1 else max(2, (setting.agents + 1) // 2),
        seed=seed,
    )


def _constraints(setting: Setting) -> Constraints:
    if setting.agreement_min is None:
        return Constraints(rubric=_RUBRIC, timeout_seconds=300)
    schema = {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}
    return Constraints(
        rubric=_RUBRIC,
        timeout_seconds=300,
        actions=Actions(tools=(ActionTool(name=ACTION_TOOL, parameters=schema),), calls_max=1),
        agreement_min=setting.agreement_min,
        on_disagreement="reply",
    )


def finished(call: Call, stage: int, text: str | None) -> CallFinished:
    """The fact that a replica would record for a call."""
    return CallFinished(
        deliberation_id="trial",
        ts=_MOMENT,
        call_id=call.call_id,
        agent_id=call.agent_id,
        role=call.role,
        stage=stage,
        attempt=1,
        text=text,
        problem=_FAILED if text is None else None,
        usage=_COST,
        duration_ms=0,
    )


def deliberate(setting: Setting, seed: int) -> Trial:
    """Runs one deliberation to its conclusion. Errors of the strategy propagate."""
    agents = SimulatedAgents(setting.model, seed)
    strategy = STRATEGIES[setting.strategy].run(specification(setting, seed))
    calls: list[TrialCall] = []
    stage = 1
    try:
        ask: Ask = next(strategy)
        while True:
            answers = [TrialCall(ask.purpose, call, agents.answer(call, ask.purpose)) for call in ask.calls]
            calls += answers
            ask = strategy.send(Outcomes({a.call.call_id: finished(a.call, stage, a.text) for a in answers}))
            stage += 1
    except StopIteration as stop:
        return Trial(seed, stop.value, tuple(calls))


def trials(setting: Setting, base: int, name: str, runs: int) -> list[Trial]:
    """`runs` trials of one setting, seeded by the name of the experiment, so that experiments are independent."""
    return [deliberate(setting, int(chance(base, name, run) * 2**62)) for run in range(runs)]
