"""A trial: one program and one test, in a confined process that ends with it.

The verdict is a nonce, written when the test has returned. It is read from a pipe onto the interpreter's evaluation
stack, which no name reaches. The warden accepts it only from a process that then exits by itself with status 0. A
program's output, its exit status and its writes to the pipe prove nothing. Code in the same process can in the end
reach everything: this makes pretending harder than solving, not impossible.
"""

import builtins
import os
import sys
import types
from collections.abc import Callable, Coroutine
from typing import Any, cast

from serve_deployments.sandbox import honesty

NONCE_BYTES = 32
REASON_CHARS_MAX = 500
NOT_LOADED, FAILED, VOID = b"L", b"F", b"V"
# A test that no honest program passes.
IMPOSSIBLE = "assert False"

_PROGRAM, _TEST = "solution", "test"
_WORDS = {_TEST: "test", _PROGRAM: "program"}


def run(program: str, test: str, verdict_fd: int, nonce_fd: int) -> None:
    """Run a test against a program, write the verdict, and end the process."""
    # Bound before foreign code runs, which may rebind names in modules.
    write, read, leave, why, void = os.write, os.read, os._exit, _why, _Void
    sys.addaudithook(_refuse)
    loaded: list[str] = []
    try:
        # While the test runs, the nonce stands only on the evaluation stack.
        write(verdict_fd, read(nonce_fd, NONCE_BYTES) + _passed(program, test, loaded))
    except void:
        write(verdict_fd, VOID + b"the test checks nothing: no assertion of it was reached")
    except BaseException as error:
        # Foreign code may raise anything, SystemExit too: the test failed, and the error is its reason.
        try:
            reason = why(error)
        except BaseException:
            # An error's text may raise too, or memory is exhausted.
            reason = b"MemoryError" if isinstance(error, MemoryError) else b"an error that cannot be told"
        write(verdict_fd, (FAILED if loaded else NOT_LOADED) + reason)
    leave(0)


class _Void(BaseException):
    """A test returned without an assertion."""


def _refuse(
    event: str,
    arguments: tuple[object, ...],
    guarded: tuple[object, ...] = honesty.GUARDED,
    own: str = __name__,
    attribute: Callable[[object, str, object], object] = getattr,
    refused: type[Exception] = PermissionError,
) -> None:
    # Tracing could jump over lines of the test; other code in a function could jump over its comparisons.
    if event in ("sys.settrace", "sys.setprofile"):
        raise refused("tracing is not available here")
    if event == "object.__setattr__":
        for each in guarded:
            if arguments[0] is each or attribute(arguments[0], "__module__", None) == own:
                raise refused("this function stays as it is")


def _passed(program: str, test: str, loaded: list[str]) -> bytes:
    """Run the test; returns nothing, or raises its error. `loaded` gets the program once it has loaded."""
    reached: set[bool] = set()
    checks = honesty.compiled(test, _TEST, reached.add)
    untouched = dict(vars(builtins))
    execute, called, void = exec, _apart(), _Void
    module = types.ModuleType(_PROGRAM)
    sys.modules[_PROGRAM] = module
    execute(compile(program, _PROGRAM, "exec", dont_inherit=True), module.__dict__)
    loaded.append(_PROGRAM)
    names = {**module.__dict__, "__name__": _TEST, "__builtins__": untouched}
    execute(checks, names)
    called(names)
    if not reached:
        raise void
    return b""


def _apart() -> Callable[[dict[str, Any]], None]:
    """`_called` with names of its own, so that a program cannot rebind them in this module or the builtins."""
    names: dict[str, Any] = {**globals(), "__builtins__": dict(vars(builtins))}
    for each in (_called, _is_test, _finish, _run_methods, _run_cases):
        names[each.__name__] = types.FunctionType(each.__code__, names)
    return names[_called.__name__]


def _called(defined: dict[str, Any]) -> None:
    """Call a test's functions named `test…`, methods of `Test…` and test cases, as test runners do."""
    for name, value in list(defined.items()):
        if _is_test(name, value):
            _finish(value())
        elif isinstance(value, type) and value.__module__ == _TEST:
            unittest = sys.modules.get("unittest")
            if unittest is not None and issubclass(value, unittest.TestCase):
                _run_cases(value)
            elif name.startswith("Test"):
                _run_methods(value)


def _is_test(name: str, value: object) -> bool:
    return isinstance(value, types.FunctionType) and name.startswith("test") and value.__code__.co_filename == _TEST


def _finish(returned: Any) -> None:  # noqa: ANN401 -- whatever a test returns
    if isinstance(returned, types.CoroutineType):
        import asyncio  # only where needed: it takes longer to load than most tests to run

        asyncio.run(cast("Coroutine[object, object, object]", returned))


def _run_methods(cases: type) -> None:
    """Call each method as pytest does: on a new object, between `setup_method` and `teardown_method`."""
    methods = {name: value for base in reversed(cases.__mro__) for name, value in vars(base).items()}
    for name, method in methods.items():
        if _is_test(name, getattr(method, "__func__", method)):
            case = cases()
            if "setup_method" in methods:
                case.setup_method()
            _finish(getattr(case, name)())
            if "teardown_method" in methods:
                case.teardown_method()


def _run_cases(cases: Any) -> None:  # noqa: ANN401 -- a class of unittest, which is not imported here
    import unittest

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(cases).run(result)
    for _, trace in (*result.failures, *result.errors):
        raise AssertionError(trace.strip().rpartition("\n")[2])


def _why(error: BaseException) -> bytes:
    """The error and its lines in the program and the test."""
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
