"""A kill at every step between the first byte of an upload and the verdict, and at every step of a deletion.

What was answered is not lost, nothing is read half, and what nobody needs goes after its life, which is shortened here.
Nothing of an upload is in the log before its first step, so that a kill during its body equals one before that step.
"""

from datetime import timedelta
from functools import cache
from typing import get_args

import pytest

from app.deliberation.roles import AgentRunner
from tests.crash import input_runs
from tests.crash.input_runs import InputRan, InputScript
from tests.crash.points import Point
from tests.crash.runs import Kill, Victim

# The erasure of facts, which other tests kill too.
ERASURE_EVERY = 12


@pytest.fixture(autouse=True)
def short_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.lifecycle.files.read_input", input_runs.read_at_once)
    monkeypatch.setattr("app.lifecycle.files.SWEEP_S", input_runs.SWEEP_S)
    monkeypatch.setattr("app.lifecycle.files.YOUNG", timedelta(seconds=input_runs.YOUNG_S))
    monkeypatch.setattr("app.lifecycle.files.UNUSED_FOR", timedelta(seconds=input_runs.UNUSED_S))
    monkeypatch.setattr("app.log.inputs.CHUNK_BYTES", input_runs.CHUNK_BYTES)


@cache
def undisturbed(agents: AgentRunner = "ray") -> InputRan:
    ran = InputScript(agents=agents).run()
    assert ran.faults == []
    return ran


def until_acceptance() -> list[Point]:
    """From the first write of the upload to the answer to the acceptance."""
    ran = undisturbed()
    first = next(point.number for point in ran.reached if point.step == "request inputs.used")
    return ran.reached[first - 2 : ran.answered_at["acceptance"]]


def of_reading(agents: AgentRunner = "ray") -> list[Point]:
    """From the acceptance to the first prompts that reach the engine."""
    ran = undisturbed(agents)
    engine = [point.number for point in ran.reached if point.step == "engine request"]
    return ran.reached[ran.answered_at["acceptance"] : engine[1]]


def of_deletion() -> list[Point]:
    ran = undisturbed()
    steps = [point for point in ran.reached[ran.answered_at["end"] :] if point.process == "gateway"]
    places = {point.step: place for place, point in enumerate(steps)}
    begin, erased = places["request deliberations.deleted"], places["request orchestration.erased"]
    return [*steps[begin:erased:ERASURE_EVERY], *steps[erased:]]


def faults_of(points: list[Point], victim: Victim, *, gives_up: bool = False, agents: AgentRunner = "ray") -> list[str]:
    assert points
    faults = list[str]()
    for point in points:
        ran = InputScript(Kill(point.number, "after", victim), gives_up=gives_up, agents=agents).run()
        faults += [f"{victim} dies after {undisturbed(agents).step(point.number)}: {fault}" for fault in ran.faults]
    return faults


def test_a_run_writes_and_reads_an_input_in_several_steps() -> None:
    upload = [point.step for point in until_acceptance()]
    assert upload.count("request inputs.original") == 3 and upload.count("request inputs.form") == 3
    named = [upload.index(f"request {step}") for step in ("inputs.file", "deliberations.accepted")]
    assert named == sorted(named) and upload[named[0] :].count("request inputs.used") == 2
    assert {("agent", "publish DIRECT.GET.INPUTS"), ("coordinator", "ask the agent")} <= {
        (point.process, point.step) for point in of_reading()
    }
    assert "request inputs.removed" in [point.step for point in of_deletion()]


@pytest.mark.parametrize("victim", ["process", "machine"])
def test_what_a_client_repeats_until_it_is_answered_is_never_lost(victim: Victim) -> None:
    assert faults_of(until_acceptance(), victim) == []


def test_what_a_client_gives_up_is_there_whole_or_goes() -> None:
    assert faults_of(until_acceptance(), "process", gives_up=True) == []


@pytest.mark.parametrize("agents", get_args(AgentRunner))
def test_calls_read_their_inputs_whole_whoever_dies_meanwhile(agents: AgentRunner) -> None:
    assert faults_of(of_reading(agents), "process", agents=agents) == []


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_deletion_leaves_nothing_of_a_file_however_it_is_cut(gives_up: bool) -> None:
    assert faults_of(of_deletion(), "process", gives_up=gives_up) == []
