import asyncio
import json
import platform
import sys

import pytest

from app.deliberation.calls import Call, FactProblem
from app.deliberation.strategies.execute import ProgramParameters
from tests.attack.forgeries import ESCAPES, HONEST, STATEMENT, SYSTEM_CALLS, TESTS, VERDICTS
from tests.fakes import Reply
from tests.integration.sandbox.sandboxed import WITHIN_S, altered, calls, check, reported
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
    return "refused" if returned == -1 and ctypes.get_errno() in (1, 38) else returned > 0
"""


async def test_the_honest_program_passes_every_test() -> None:
    report = await reported(check(HONEST, *TESTS.values()), WITHIN_S)
    assert [outcome.reason for outcome in report.outcomes] == [""] * len(TESTS)
    assert report.tried == ()


@pytest.mark.parametrize("program", VERDICTS.values(), ids=VERDICTS)
async def test_no_program_fakes_a_verdict(program: str) -> None:
    report = await reported(check(program, *TESTS.values(), timeout_s=1), WITHIN_S)
    assert [outcome.name for outcome in report.outcomes if outcome.passed] == []
    assert all(outcome.reason for outcome in report.outcomes)


@pytest.mark.parametrize(("program", "named"), ESCAPES.values(), ids=ESCAPES)
async def test_no_program_leaves_its_process_and_the_report_names_the_attempt(program: str, named: str) -> None:
    report = await reported(check(program, STATEMENT, calls("f", 21), timeout_s=2), WITHIN_S)
    assert [outcome.passed for outcome in report.outcomes] == [False, False], report
    assert any(each.startswith(named) for each in report.tried) or not named, report.tried


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="numbers of other machines")
async def test_the_kernel_refuses_raw_system_calls_whatever_is_loaded() -> None:
    place = 0 if platform.machine() == "x86_64" else 1
    tests = [calls("f", numbers[place], expected="refused") for numbers in SYSTEM_CALLS.values()]
    allowed = calls("f", (39, 172)[place], expected=True)
    with altered(WITH_MACHINE_CODE):
        report = await reported(check(RAW, *tests, allowed, timeout_s=5), WITHIN_S)
    assert len(tests) >= 60
    assert [o.reason for o in report.outcomes[:-1]] == [""] * len(tests), "a call was let through"
    assert report.outcomes[-1].passed, "raw calls do reach the kernel: getpid() answers"


async def test_the_interpreter_of_a_program_has_loaded_no_way_out() -> None:
    program = """
import sys
def f(names): return [each for each in sys.modules if each in names or 'sandbox' in each or 'serve' in each]
"""
    names = ["ctypes", "_ctypes", "socket", "_socket", "subprocess", "_posixsubprocess"]
    report = await reported(check(program, calls("f", names, expected=[])), WITHIN_S)
    assert report.outcomes[0].passed, report


# So long that no address of an object has it by chance.
HIDDEN = 4_716_293_081


async def test_no_expected_value_is_in_the_programs_process() -> None:
    """Neither this test's nor another's is among the objects there, and no descriptor leads to it."""
    program = """
import gc, os
def f(_):
    marker = str(4_711_000_000 + int('5293081'))
    seen = [each for each in gc.get_objects() for each in gc.get_referents(each)]
    texts = [each for each in seen if isinstance(each, (str, bytes, int)) and marker in str(each) and each != marker]
    read = []
    for fd in range(64):
        try: read.append(os.pread(fd, 100_000, 0).decode('utf-8', 'replace'))
        except OSError: pass
    return [str(each) for each in texts] + [each for each in read if marker in each]
"""
    tests = [calls("f", 0, expected=[]), calls("f", 1, expected=HIDDEN), calls("f", 2, expected=[])]
    report = await reported(check(program, *tests), WITHIN_S)
    assert [outcome.reason for outcome in report.outcomes] == ["", f"returned [], not {HIDDEN}", ""]


FORGERS = {
    "machine code and equality": (
        "import sys\ntry: import _ctypes\nexcept ImportError: pass\n" + VERDICTS["a verdict while it loads"],
        VERDICTS["a mapping proxy of what equals everything"],
    ),
    "equality in agreement": (VERDICTS["equals everything"], VERDICTS["a proxy of what equals everything"]),
    "verdicts in agreement": (VERDICTS["a verdict on every descriptor"], VERDICTS["another side of the wire"]),
}


@pytest.mark.parametrize("forgers", FORGERS.values(), ids=FORGERS)
@pytest.mark.parametrize("given", [[STATEMENT.model_dump()], []], ids=["given test", "written tests"])
def test_the_honest_program_wins_a_council_of_one_honest_and_two_forgers(
    forgers: tuple[str, str], given: list[dict[str, object]]
) -> None:
    """The engine's own steps over the real sandbox."""
    programs = {"dev-001": forgers[0], "dev-002": HONEST, "dev-003": forgers[1]}
    written = [{"name": name, **test.data} for name, test in TESTS.items()]

    def reply(call: Call) -> Reply:
        if call.check is not None:
            report = asyncio.run(reported(call.check, WITHIN_S))
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
    assert verdict is not None and verdict.content == HONEST
    scores = {each.agent_id: each.score for each in verdict.ranking}
    assert scores["dev-002"] and scores["dev-002"] > max(scores["dev-001"] or 0, scores["dev-003"] or 0)
    if given:
        assert not scores["dev-001"] and not scores["dev-003"]
