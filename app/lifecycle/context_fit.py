"""Whether the prompts of a deliberation with inputs fit what its engines take, before it is accepted."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from app.api.problems import ValidationFailed, body_fault
from app.api.schemas import FieldProblem
from app.deliberation.decider import StrategyDefinition
from app.deliberation.ports import Control
from app.deliberation.quote import ASSUMED_BYTES_PER_TOKEN, LeastCall, least_calls
from app.deliberation.roles import Role
from app.deliberation.specification import InputRef, Specification
from app.log.inputs import COUNT, CountedInput

# A replica answers within the time in which its server lets it.
COUNT_TIMEOUT_S = 5.0
COUNTS_KEPT = 1_024
# Texts have two to eight bytes to a token: outside of these, an estimate by four decides.
_SURE = 2


class ContextFit:
    """`context_of` returns the tokens of prompt and answer that a role's engines take, None where that is unknown."""

    def __init__(
        self,
        control: Control,
        roles: Mapping[str, Role],
        strategies: Mapping[str, StrategyDefinition],
        context_of: Callable[[str], int | None],
    ) -> None:
        self._control, self._roles, self._strategies, self._context_of = control, roles, strategies, context_of
        self._counts: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        self._planning = asyncio.Lock()

    async def check(self, tenant: str, asked: Specification) -> None:
        """Raises ValidationFailed where a stage cannot fit, or an engine does not see pictures."""
        inputs = asked.inputs
        if not inputs:
            return
        faults = self._blind(asked)
        contexts = {agent.role: self._context_of(agent.role) for agent in asked.agents}
        if any(contexts.values()):
            definition = self._strategies[asked.strategy]
            # A large council takes up to a second of the processor.
            async with self._planning:
                calls = await asyncio.to_thread(least_calls, asked, definition, self._roles)
            for call in calls:
                if (context := contexts[call.role]) is not None:
                    faults += await self._too_long(tenant, asked, call, context)
        if faults:
            raise ValidationFailed(faults)

    def _blind(self, asked: Specification) -> list[FieldProblem]:
        pictures = [
            place
            for place, evidence in enumerate(asked.evidence)
            if evidence.file is not None and evidence.file.kind == "picture"
        ]
        engines = {name: (*role.engines, *role.fallback) for name, role in self._roles.items()}
        blind = {
            agent.role: engine
            for agent in asked.agents
            for engine in engines[agent.role]
            if engine.sees is not None and "image" not in engine.sees
        }
        return [
            body_fault(
                f"/evidence/{place}/file",
                "unseen_picture",
                f"The engine {engine.label} of role {role} sees no pictures",
                "Give its text, or choose roles whose engines see them.",
            )
            for place in pictures
            for role, engine in blind.items()
        ]

    async def _too_long(self, tenant: str, asked: Specification, call: LeastCall, context: int) -> list[FieldProblem]:
        tokens = call.tokens + sum(map(estimated, asked.inputs))
        if tokens * _SURE <= context:
            return []
        if tokens <= context * _SURE:
            tokens = call.tokens + sum([await self._counted(tenant, call.role, file) for file in asked.inputs])
        if tokens <= context:
            return []
        detail = (
            f"Stage {call.purpose} takes about {tokens:,} tokens with its answer, and the engines of role {call.role} "
            f"take {context:,}"
        )
        remedy = f"Give about {tokens - context:,} tokens less, or choose roles whose engines take more."
        return [body_fault("/task" if asked.task_file else "/evidence", "context_exceeded", detail, remedy)]

    async def _counted(self, tenant: str, role: str, file: InputRef) -> int:
        """The tokens of an input, counted by an engine of the role where it can, and estimated else."""
        key = tenant, role, file.form_sha256
        if file.kind == "text" and key not in self._counts:
            asked = COUNT + CountedInput(tenant=tenant, file=file).model_dump_json().encode()
            replies = await self._control.inquire(f"control.role.{role}", asked, timeout_s=COUNT_TIMEOUT_S)
            tokens: Any = next((reply.get("tokens") for reply in replies), None)
            if isinstance(tokens, int) and 0 <= tokens <= file.form_bytes:
                self._counts[key] = tokens
                if len(self._counts) > COUNTS_KEPT:
                    self._counts.popitem(last=False)
        return self._counts.get(key, estimated(file))


def estimated(file: InputRef) -> int:
    return file.tokens if file.kind == "picture" else file.form_bytes // ASSUMED_BYTES_PER_TOKEN
