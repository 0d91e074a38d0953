"""Attacks on the sandbox: no program fakes a verdict or leaves its process, and the honest program wins."""

import asyncio
import json
import platform
import sys
import textwrap

import pytest

from app.deliberation.calls import Call, FactProblem
from app.deliberation.strategies.steps.programs import ProgramParameters
from app.testing import Reply
from serve_deployments.sandbox.checks import Sandbox
from tests.attack.forgeries import AGAINST, ESCAPES, HONEST, STATEMENT, SYSTEM_CALLS, TESTS, VERDICTS
from tests.integration.sandbox.sandboxed import WITHIN_S, altered, check
from tests.unit.facts_of import run, specification

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is the Linux kernel's")

# A zygote that has loaded what calls any machine code, as an exploit of the interpreter would.
WITH_MACHINE_CODE = (
    "import os, serve_deployments.sandbox.child as k, serve_deployments.sandbox.confinement as c; grant = c._grant; "
    "c._grant = lambda l, d: (grant(l, d), l.allow([os.path.dirname(os.__file__)], c.READ)); "
    "k._COMMAND = (*k._COMMAND[:-1], 'import ctypes' + k._COMMAND[-1]); "
)
RAW = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def f(number):
    ctypes.set_errno(0)
    returned = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(0)] * 6)
    return returned, ctypes.get_errno()
"""
REFUSED = "in ((-1, 1), (-1, 38))"


async def test_the_honest_program_passes_every_test() -> None:
    report = await Sandbox().report(check(HONEST, *TESTS.values()), WITHIN_S)
    assert [outcome.reason for outcome in report.outcomes] == [""] * len(TESTS)
    assert report.tried == ()


@pytest.mark.parametrize("program", VERDICTS.values(), ids=VERDICTS)
async def test_no_program_fakes_a_verdict(program: str) -> None:
    report = await Sandbox().report(check(program, *TESTS.values(), timeout_s=1), WITHIN_S)
    assert [outcome.name for outcome in report.outcomes if outcome.passed] == []
    assert all(outcome.reason for outcome in report.outcomes)


@pytest.mark.parametrize(("program", "test"), AGAINST.values(), ids=AGAINST)
async def test_a_test_that_meets_the_program_halfway_is_not_forged(program: str, test: str) -> None:
    report = await Sandbox().report(check(program, test), WITHIN_S)
    assert not report.outcomes[0].passed and report.outcomes[0].reason


@pytest.mark.parametrize(("program", "named"), ESCAPES.values(), ids=ESCAPES)
async def test_no_program_leaves_its_process_and_the_report_names_the_attempt(program: str, named: str) -> None:
    report = await Sandbox().report(check(program, STATEMENT, "f(21)\nassert True", timeout_s=2), WITHIN_S)
    assert [outcome.passed for outcome in report.outcomes] == [False, False], report
    assert any(each.startswith(named) for each in report.tried) or not named, report.tried


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="numbers of other machines")
async def test_the_kernel_refuses_raw_system_calls_whatever_is_loaded() -> None:
    place = 0 if platform.machine() == "x86_64" else 1
    tests = [f"assert f({numbers[place]}) {REFUSED}, f({numbers[place]})" for numbers in SYSTEM_CALLS.values()]
    allowed = f"assert f({(39, 172)[place]})[0] > 0"
    with altered(WITH_MACHINE_CODE):
        report = await Sandbox().report(check(RAW, *tests, allowed, timeout_s=5), WITHIN_S)
    assert len(tests) >= 60
    assert [o.reason for o in report.outcomes[:-1]] == [""] * len(tests), "a call was let through"
    assert report.outcomes[-1].passed, "raw calls do reach the kernel: getpid() answers"


async def test_the_interpreter_of_a_program_has_loaded_no_way_out() -> None:
    test = """
        loaded = f()
        assert not {'ctypes', '_ctypes', 'socket', '_socket', 'subprocess', '_posixsubprocess'} & {*loaded}
        assert not [each for each in loaded if 'sandbox' in each or 'serve' in each]
    """
    report = await Sandbox().report(
        check("import sys\ndef f(): return sorted(sys.modules)", textwrap.dedent(test)), WITHIN_S
    )
    assert report.outcomes[0].passed, report


async def test_the_test_is_not_in_the_programs_process() -> None:
    """Neither its text nor the expected value is among the objects there, and no descriptor leads to it."""
    program = """
import gc, os
def f(secret):
    marker = str(4_000 + int('711'))
    seen = [each for each in gc.get_objects() for each in gc.get_referents(each)]
    texts = [each for each in seen if isinstance(each, (str, bytes)) and marker in str(each) and each != marker]
    read = []
    for fd in range(3, 64):
        try: read.append(os.pread(fd, 100_000, 0))
        except OSError: pass
    return texts + [each for each in read if each]
"""
    test = "expected = 4711\nassert f(None) == []"
    report = await Sandbox().report(check(program, test, test), WITHIN_S)
    assert [outcome.reason for outcome in report.outcomes] == ["", ""]


FORGERS = {
    "machine code and equality": (
        "import sys\ntry: import _ctypes\nexcept ImportError: pass\n" + VERDICTS["a verdict while it loads"],
        VERDICTS["a mapping proxy of what equals everything"],
    ),
    "equality in agreement": (VERDICTS["equals everything"], VERDICTS["a proxy of what equals everything"]),
    "verdicts in agreement": (VERDICTS["a verdict on every descriptor"], VERDICTS["another side of the wire"]),
}


@pytest.mark.parametrize("forgers", FORGERS.values(), ids=FORGERS)
@pytest.mark.parametrize("given", [[{"name": "given", "code": STATEMENT}], []], ids=["given test", "written tests"])
def test_the_honest_program_wins_a_council_of_one_honest_and_two_forgers(
    forgers: tuple[str, str], given: list[dict[str, str]]
) -> None:
    """The engine's own steps over the real sandbox."""
    programs = {"dev-001": forgers[0], "dev-002": HONEST, "dev-003": forgers[1]}
    written = [{"name": name, "code": code} for name, code in TESTS.items()]

    def reply(call: Call) -> Reply:
        if call.check is not None:
            report = asyncio.run(Sandbox().report(call.check, WITHIN_S))
            return Reply(text=report.model_dump_json())
        if call.output.kind == "tests":
            return Reply(text=json.dumps({"reasoning": "r", "tests": written}))
        if call.output.kind == "program":
            return Reply(text=json.dumps({"reasoning": "r", "code": programs[call.agent_id], "confidence": 50}))
        return Reply(problem=FactProblem(code="unknown", detail="no such call", retryable=False))

    parameters = ProgramParameters.model_validate({"tests": given, "test_writers": 2, "timeout_s": 2})
    asked = specification(3, strategy="execute", rounds=1)
    ended = run(asked.model_copy(update={"parameters": parameters.model_dump(mode="json")}), reply)
    verdict = ended.completed.verdict
    assert verdict is not None and verdict.content.strip() == HONEST
    scores = {each.agent_id: each.score for each in verdict.ranking}
    assert scores["dev-002"] and scores["dev-002"] > max(scores["dev-001"] or 0, scores["dev-003"] or 0)
    if given:
        assert not scores["dev-001"] and not scores["dev-003"]
