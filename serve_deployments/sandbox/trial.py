"""A trial: one program and one test, in a process that is confined already and ends with it.

The verdict is a nonce, written when the test has returned. It is read from a pipe onto the interpreter's evaluation
stack, where no name leads to it, and the warden believes it only from a process that then ended by itself with status
0. What a program prints, what it exits with and what it writes to the pipe prove nothing. In a process that runs the
program's own code nothing can be beyond its reach for good: this makes pretending harder than solving, not impossible.
"""

import ast
import builtins
import os
import sys
import types
from collections.abc import Iterator
from itertools import islice
from typing import Any

NONCE_BYTES = 32
REASON_CHARS_MAX = 500
NOT_LOADED, FAILED = b"L", b"F"
# A test that no honest program passes.
IMPOSSIBLE = "assert False"

_PROGRAM, _TEST = "solution", "test"
_WORDS = {_TEST: "test", _PROGRAM: "program"}
_HONEST = "__honest__"
_ELEMENTS_MAX = 1_000
_DEPTH_MAX = 8
_PLAIN = (int, float, complex, bool, str, bytes, type(None))
_COROUTINE = 0x80


def run(program: str, test: str, verdict_fd: int, nonce_fd: int) -> None:
    """Run a test against a program, tell the verdict, and end the process."""
    # Bound before anything foreign runs: what it rebinds in modules is not looked up any more.
    write, read, leave, why = os.write, os.read, os._exit, _why
    sys.addaudithook(_refuse_tracing)
    loaded: list[str] = []
    try:
        # The nonce stands on the evaluation stack while the test runs, and nowhere else.
        write(verdict_fd, read(nonce_fd, NONCE_BYTES) + _passed(program, test, loaded))
    except BaseException as error:
        try:
            reason = why(error)
        except BaseException:
            # An error is foreign code too, and its text may raise; or there is no memory left to write one.
            reason = b"MemoryError" if isinstance(error, MemoryError) else b"an error that cannot be told"
        write(verdict_fd, (FAILED if loaded else NOT_LOADED) + reason)
    leave(0)


def _refuse_tracing(event: str, _: tuple[object, ...]) -> None:
    # Whoever traces may jump over lines of the test.
    if event in ("sys.settrace", "sys.setprofile"):
        raise PermissionError("tracing is not available here")


def _passed(program: str, test: str, loaded: list[str]) -> bytes:
    """Nothing, when the test returns; else it raises whatever was raised. `loaded` names the program from then on."""
    checks = _compiled(test)
    untouched = dict(vars(builtins))
    execute, called = exec, _called
    module = types.ModuleType(_PROGRAM)
    sys.modules[_PROGRAM] = module
    execute(compile(program, _PROGRAM, "exec", dont_inherit=True), module.__dict__)
    loaded.append(_PROGRAM)
    names = {**module.__dict__, "__name__": _TEST, "__builtins__": untouched, _HONEST: _honest}
    execute(checks, names)
    called(names)
    return b""


def _compiled(test: str) -> types.CodeType:
    tree = _Honesty().visit(ast.parse(test, _TEST))
    return compile(ast.fix_missing_locations(tree), _TEST, "exec", dont_inherit=True)


class _Honesty(ast.NodeTransformer):
    """Lets no operand of an asserted equality be equal to everything."""

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        for each in ast.walk(node.test):
            if isinstance(each, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in each.ops):
                each.left = self._wrapped(each.left)
                each.comparators = [self._wrapped(other) for other in each.comparators]
        return node

    def _wrapped(self, operand: ast.expr) -> ast.expr:
        if isinstance(operand, ast.Constant):
            return operand
        call = ast.Call(ast.Name(_HONEST, ast.Load()), [operand], [])
        return ast.copy_location(call, operand)


def _honest(value: object, depth: int = 0) -> object:
    """`value` itself; AssertionError when it, or something in it, says that it equals whatever it is compared with."""
    if type(value) in _PLAIN or depth > _DEPTH_MAX:
        return value
    if type(value) in (list, tuple, set, frozenset, dict):
        for each in islice(_elements(value), _ELEMENTS_MAX):
            _honest(each, depth + 1)
        return value
    try:
        equal = value == object()
    except (AttributeError, TypeError, ValueError, LookupError, NotImplementedError, AssertionError):
        return value  # it cannot be compared with everything, then
    if equal is True:
        raise AssertionError(f"a {type(value).__name__} claims to equal everything")
    return value


def _elements(container: Any) -> Iterator[object]:  # noqa: ANN401 -- any container
    yield from (container.values() if type(container) is dict else container)


def _called(defined: dict[str, Any]) -> None:
    """Call what a test defines and does not call itself: functions whose names begin with `test`, and test cases."""
    for name, value in defined.items():
        if isinstance(value, types.FunctionType) and name.startswith("test") and value.__code__.co_filename == _TEST:
            if value.__code__.co_flags & _COROUTINE:
                import asyncio  # only where it is needed: it takes longer to load than most tests to run

                asyncio.run(value())
            else:
                value()
        elif isinstance(value, type) and "unittest" in sys.modules and value.__module__ == _TEST:
            _run_cases(value)


def _run_cases(cases: type) -> None:
    import unittest

    if not issubclass(cases, unittest.TestCase):
        return
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(cases).run(result)
    for _, trace in (*result.failures, *result.errors):
        raise AssertionError(trace.strip().rpartition("\n")[2])


def _why(error: BaseException) -> bytes:
    """A sentence about what was raised, and where."""
    if isinstance(error, SyntaxError):
        text = f"SyntaxError: {error.msg} (line {error.lineno} of the {_WORDS.get(error.filename or '', 'text')})"
    else:
        text = f"{type(error).__name__}: {error}".rstrip(": ") + _places(error.__traceback__)
    return text[:REASON_CHARS_MAX].encode("utf-8", "replace")


def _places(trace: types.TracebackType | None) -> str:
    lines: dict[str, int] = {}
    while trace is not None:
        lines[trace.tb_frame.f_code.co_filename] = trace.tb_lineno
        trace = trace.tb_next
    named = [f"line {lines[file]} of the {what}" for file, what in _WORDS.items() if file in lines]
    return f" ({', '.join(named)})" if named else ""
