"""Whether prompts with inputs fit is known before acceptance: by an estimate where it decides, else by a count."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from app.api.problems import ValidationFailed
from app.api.schemas import FieldProblem
from app.deliberation.quote import ASSUMED_BYTES_PER_TOKEN, least_calls
from app.deliberation.roles import EngineSpec, Role
from app.deliberation.specification import AgentSpec, Evidence, InputKind, InputRef, Specification
from app.deliberation.strategies import STRATEGIES
from app.lifecycle import context_fit
from app.lifecycle.context_fit import ContextFit
from app.log.inputs import COUNT, CountedInput
from tests.unit.facts_of import specification

TEXT_TOKENS = 50_000
TENANT = "t"


def file(letter: str = "a", kind: InputKind = "text", tokens: int = TEXT_TOKENS) -> InputRef:
    size = tokens * ASSUMED_BYTES_PER_TOKEN
    return InputRef(
        sha256=letter * 64,
        name="notes.md",
        media_type="text/markdown",
        bytes=size,
        kind=kind,
        tokens=tokens,
        form_sha256=letter * 64,
        form_bytes=size,
    )


def asked_with(*files: InputRef, **changes: object) -> Specification:
    evidence = tuple(Evidence(id=f"e{place}", title="t", file=file) for place, file in enumerate(files))
    return specification().model_copy(update={"evidence": evidence, **changes})


class Replicas:
    """Replicas that count inputs by role; one of another role does not answer."""

    def __init__(self, **tokens: object) -> None:
        self.tokens: Mapping[str, object] = tokens
        self.asked = list[tuple[str, CountedInput]]()

    async def inquire(
        self, subject: str, data: bytes = b"", *, timeout_s: float, replies_max: int = 1
    ) -> list[dict[str, Any]]:
        role = subject.removeprefix("control.role.")
        self.asked.append((role, CountedInput.model_validate_json(data.removeprefix(COUNT))))
        return [{"tokens": self.tokens[role]}] if role in self.tokens else []

    async def ask(self, subject: str, data: bytes, *, timeout_s: float) -> bytes:
        raise AssertionError(subject)


ROLES: Mapping[str, Role] = {
    "DEV": Role(persona="p", engines=(EngineSpec(url="http://engine"),)),
    "QA": Role(persona="p"),
}


def base_tokens(kind: InputKind = "text") -> int:
    """What the longest call takes beside the inputs."""
    return max(call.tokens for call in least_calls(asked_with(file(kind=kind)), STRATEGIES["council"], ROLES))


def fit(replicas: Replicas, roles: Mapping[str, Role] = ROLES, **contexts: int) -> ContextFit:
    return ContextFit(replicas, roles, STRATEGIES, contexts.get)


async def faults(checked: ContextFit, asked: Specification, tenant: str = TENANT) -> list[FieldProblem]:
    try:
        await checked.check(tenant, asked)
    except ValidationFailed as refused:
        return list(refused.errors)
    return []


async def test_what_has_no_inputs_is_neither_planned_nor_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_fit, "least_calls", None)
    assert await faults(fit(replicas := Replicas(), DEV=64), specification()) == [] and replicas.asked == []


async def test_nothing_is_refused_while_no_engine_says_what_it_takes() -> None:
    replicas = Replicas()
    assert await faults(fit(replicas), asked_with(file(tokens=10**8))) == [] and replicas.asked == []


@pytest.mark.parametrize(
    ("share", "fits"),
    [pytest.param(2.0, True, id="twice the estimate"), pytest.param(0.49, False, id="less than half")],
)
async def test_an_estimate_decides_alone_where_no_count_could_change_it(share: float, fits: bool) -> None:
    replicas, total = Replicas(DEV=1), base_tokens() + TEXT_TOKENS
    refused = await faults(fit(replicas, DEV=int(total * share)), asked_with(file()))
    assert (refused == [], replicas.asked) == (fits, [])


@pytest.mark.parametrize(("over", "fits"), [(0, True), (1, False)])
async def test_a_count_of_the_engines_decides_to_the_token(over: int, fits: bool) -> None:
    counted, context = 30_000, base_tokens() + 30_000
    refused = await faults(fit(Replicas(DEV=counted + over), DEV=context), asked_with(file()))
    assert (refused == []) == fits


async def test_a_refusal_names_the_stage_the_role_and_the_numbers() -> None:
    context = base_tokens() + 1_000
    (fault,) = await faults(fit(Replicas(DEV=TEXT_TOKENS), DEV=context), asked_with(file()))
    assert (fault.pointer, fault.code) == ("/evidence", "context_exceeded")
    assert f"{context + 49_000:,} tokens" in fault.detail and f"role DEV take {context:,}" in fault.detail
    assert fault.detail.startswith("Stage ") and "about 49,000 tokens less" in (fault.remedy or "")
    (fault,) = await faults(fit(Replicas(), DEV=1_000), asked_with(task_file=file()))
    assert fault.pointer == "/task"


async def test_a_file_is_counted_once_for_each_tenant_and_role() -> None:
    agents = [AgentSpec(agent_id=f"{role.lower()}-001", role=role) for role in ROLES]
    asked, context = asked_with(file(), agents=tuple(agents)), base_tokens() + TEXT_TOKENS
    replicas = Replicas(DEV=10, QA=10)
    checked = fit(replicas, DEV=context, QA=context)
    for _ in range(3):
        assert await faults(checked, asked) == []
    assert sorted(role for role, _ in replicas.asked) == ["DEV", "QA"]
    assert all(counted == CountedInput(tenant=TENANT, file=file()) for _, counted in replicas.asked)
    await faults(checked, asked, tenant="other")
    assert [counted.tenant for _, counted in replicas.asked[2:]] == ["other", "other"]


@pytest.mark.parametrize(
    "told",
    [
        pytest.param({}, id="nobody answers"),
        pytest.param({"DEV": None}, id="the engine cannot count"),
        pytest.param({"DEV": -1}, id="fewer than none"),
        pytest.param({"DEV": TEXT_TOKENS * ASSUMED_BYTES_PER_TOKEN + 1}, id="more than the bytes"),
        pytest.param({"DEV": "10"}, id="no number"),
    ],
)
async def test_without_a_usable_count_the_estimate_decides_and_is_not_kept(told: dict[str, object]) -> None:
    replicas, total = Replicas(**told), base_tokens() + TEXT_TOKENS
    assert await faults(fit(replicas, DEV=total), asked_with(file())) == []
    assert len(replicas.asked) == 1
    checked = fit(replicas, DEV=total - 1)
    assert [fault.code for fault in await faults(checked, asked_with(file()))] == ["context_exceeded"]
    replicas.tokens = {"DEV": TEXT_TOKENS - 1}
    assert await faults(checked, asked_with(file())) == []


async def test_a_picture_is_estimated_and_never_counted() -> None:
    replicas, picture, total = Replicas(DEV=1), file(kind="picture"), base_tokens("picture") + TEXT_TOKENS
    assert await faults(fit(replicas, DEV=total), asked_with(picture)) == []
    assert len(await faults(fit(replicas, DEV=total - 1), asked_with(picture))) == 1
    assert replicas.asked == []


async def test_counts_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_fit, "COUNTS_KEPT", 2)
    replicas = Replicas(DEV=10)
    checked = fit(replicas, DEV=base_tokens() + TEXT_TOKENS)
    for letter in "abcba":
        await faults(checked, asked_with(file(letter)))
    assert [counted.file.sha256[0] for _, counted in replicas.asked] == ["a", "b", "c", "a"]


async def test_one_council_is_planned_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    planning = 0

    async def in_a_thread(*_: object) -> list[object]:
        nonlocal planning
        planning += 1
        assert planning == 1
        await asyncio.sleep(0)
        planning -= 1
        return []

    monkeypatch.setattr("app.lifecycle.context_fit.asyncio.to_thread", in_a_thread)
    checked = fit(Replicas(), DEV=1_000)
    await asyncio.gather(*(checked.check(TENANT, asked_with(file())) for _ in range(5)))


async def test_an_engine_that_sees_no_pictures_is_named_for_each_of_them() -> None:
    blind = EngineSpec(name="local", url="http://blind", sees=("text",))
    seeing = EngineSpec(url="http://seeing", sees=("text", "image"))
    roles = {**ROLES, "DEV": Role(persona="p", engines=(seeing,), fallback=(blind,))}
    pictures = asked_with(file("a", "picture"), file("b"), file("c", "picture"))
    refused = await faults(fit(Replicas(), roles), pictures)
    assert [(fault.pointer, fault.code) for fault in refused] == [
        (f"/evidence/{place}/file", "unseen_picture") for place in (0, 2)
    ]
    assert all("local (http://blind) of role DEV" in fault.detail for fault in refused)
    assert await faults(fit(Replicas(), roles), asked_with(file("b"))) == []
    for engines in ((seeing,), (EngineSpec(url="http://unknown"),)):
        assert await faults(fit(Replicas(), {"DEV": Role(persona="p", engines=engines)}), pictures) == []
