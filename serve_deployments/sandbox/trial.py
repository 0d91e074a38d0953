"""The test's side: runs one test on values, and writes the verdict. No code of the program runs in this process.

The test calls the program through `peer`. A verdict is one line of JSON for the warden, which takes it from this
process alone.
"""

import ast
import builtins
import contextlib
import importlib
import json
import os
import sys
import types
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

from serve_deployments.sandbox.peer import HEARD_BYTES_MAX, Peer
from serve_deployments.sandbox.protocol import FAILED, GONE, LOADED, PASSED, PROGRAM, TEST, VOID
from serve_deployments.sandbox.remote import Remote
from serve_deployments.sandbox.values import strings

REASON_CHARS_MAX = 500
# The name of the function that is called before each checking statement.
_REACHED = "__reached__"

_VALUES = (
    *(ast.Expression, ast.Constant, ast.Name, ast.expr_context, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.IfExp),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPOUND = (ast.If, ast.Match, ast.Try, ast.TryStar, ast.With, ast.AsyncWith, ast.For, ast.AsyncFor, ast.While)
_WORD_CHARS_MAX = 3
_WORDS = {TEST: "test", PROGRAM: "program"}


def run(test: str, incoming: int, outgoing: int, verdict: int) -> None:
    """Run a test against the program behind the pipes, and write the verdict."""
    write = os.write  # a test may rebind names in modules
    peer = Peer(incoming, outgoing, strict=True)
    reached: list[bool] = []
    try:
        names = _Names(peer, *peer.ask("load"))
        write(verdict, LOADED + b"\n")
        names |= {"__name__": TEST, "__builtins__": _guarded(peer), _REACHED: lambda: reached.append(True)}
        exec(_compiled(test, TEST), names)
        _called(names)
        said = (PASSED, "") if reached else (VOID, "the test checks nothing: no assertion of it was reached")
    except BaseException as error:
        # A test may raise anything, SystemExit too: it failed, and the error is its reason.
        said = (FAILED, _why(error))
    if peer.gone:
        said = (GONE, "")
    elif peer.refusals:
        said = (FAILED, peer.refusals[0])
    write(verdict, json.dumps([said[0], said[1][:REASON_CHARS_MAX]]).encode() + b"\n")


def _guarded(peer: Peer) -> dict[str, Any]:
    """The builtins of a test that may not run a text of the program, which would be the program's code here."""

    def check(text: object) -> None:
        if isinstance(text, bytes | bytearray):
            text = text.decode("utf-8", "replace")
        if isinstance(text, str) and not _only_values(text) and _came_from(peer, text):
            peer.refuse("the test would run a text of the program")

    def hook(event: str, _: object) -> None:
        if event == "pickle.find_class":
            peer.refuse("the test would load a pickle that names code")

    def run_in_its_names(run: Callable[..., object]) -> Callable[..., object]:
        def guarded(text: object, *names: Any, **options: Any) -> object:  # noqa: ANN401
            check(text)
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            return run(text, *(names or (frame.f_globals, frame.f_locals)), **options)

        return guarded

    def compiled(text: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        check(text)
        return cast(Any, compile)(text, *arguments, **options)

    sys.addaudithook(hook)
    own = {"eval": run_in_its_names(eval), "exec": run_in_its_names(exec), "compile": compiled}
    return vars(builtins) | own


def _came_from(peer: Peer, text: str) -> bool:
    """Whether a text contains one that the program has given; words do not count."""
    said = {each for message in peer.heard for each in strings(message)}
    fragments = [each for each in said if len(each) > _WORD_CHARS_MAX and not each.isidentifier()]
    return peer.heard_bytes > HEARD_BYTES_MAX or any(each in text for each in fragments)


class _Names(dict[str, Any]):
    """A test's names, behind them the program's as they are now, and the modules that the program has imported.

    The program's imports are repeated here: a module of the program could change the values that the test sees.
    """

    def __init__(self, peer: Peer, module: Remote, names: dict[str, Any], imported: list[str]) -> None:
        super().__init__(names)
        self._peer, self._module, self._imported = peer, module, imported
        solution = sys.modules[PROGRAM] = types.ModuleType(PROGRAM)
        vars(solution).update(names, __getattr__=self._current)

    def _current(self, name: str) -> Any:  # noqa: ANN401 -- any value
        if name in self._imported and name in sys.stdlib_module_names:
            return importlib.import_module(name)
        return self._peer.ask("getattr", self._module, name)

    def __missing__(self, name: str) -> Any:  # noqa: ANN401
        if name not in vars(builtins) and not name.startswith("__"):
            with contextlib.suppress(AttributeError):
                return self._current(name)
        raise KeyError(name)


def _called(defined: dict[str, Any]) -> None:
    """Call a test's functions named `test…`, methods of `Test…` and test cases, as test runners do."""
    for name, value in list(defined.items()):
        if _is_test(name, value):
            _finish(value())
        elif isinstance(value, type) and value.__module__ == TEST:
            unittest = sys.modules.get("unittest")
            if unittest is not None and issubclass(value, unittest.TestCase):
                _run_cases(value)
            elif name.startswith("Test"):
                _run_methods(value)


def _is_test(name: str, value: object) -> bool:
    return isinstance(value, types.FunctionType) and name.startswith("test") and value.__code__.co_filename == TEST


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


def _why(error: BaseException) -> str:
    """The error and its lines in the program and the test."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} (line {error.lineno} of the {_WORDS.get(error.filename or '', 'text')})"
    lines = {PROGRAM: vars(error).get("_sandbox_line", 0)}
    trace = error.__traceback__
    while trace is not None:
        lines[trace.tb_frame.f_code.co_filename] = trace.tb_lineno
        trace = trace.tb_next
    named = [f"line {lines[file]} of the {what}" for file, what in _WORDS.items() if lines.get(file)]
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    return f"{text[:REASON_CHARS_MAX]} ({', '.join(named)})" if named else text


def _compiled(test: str, name: str) -> types.CodeType:
    """The code of a test, with a call before each checking statement. Raises SyntaxError or ValueError."""
    tree = ast.parse(test, name)
    _Marking().visit(tree)
    return compile(ast.fix_missing_locations(tree), name, "exec", dont_inherit=True)


def _only_values(text: str) -> bool:
    """Whether a text is an expression that calls nothing and reaches no attribute."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(isinstance(each, _VALUES) for each in ast.walk(tree))


class _Marking(ast.NodeTransformer):
    def visit(self, node: ast.AST) -> Any:  # noqa: ANN401 -- as its base has it
        checks = isinstance(node, ast.stmt) and _checks(node)
        visited = super().visit(node)
        if not checks:
            return visited
        return [ast.copy_location(ast.Expr(ast.Call(ast.Name(_REACHED, ast.Load()), [], [])), node), visited]


def _checks(statement: ast.stmt) -> bool:
    """Whether a test that reaches this statement has checked something, even if the test continues after it."""
    if isinstance(statement, _SCOPES):
        return False
    if not isinstance(statement, _COMPOUND):
        return _decides(statement)
    match statement:
        case ast.Try() | ast.TryStar():
            return _decides(statement)
        case ast.If():
            by_name = any(isinstance(each, ast.Name) and each.id == "__name__" for each in ast.walk(statement.test))
            return not by_name and _decides(statement, ast.Raise, ast.Return)
        case ast.Match():
            return _decides(statement, ast.Raise, ast.Return)
        case ast.With() | ast.AsyncWith():
            return any(_decides(each) for each in statement.items)
        case ast.For() | ast.AsyncFor() | ast.While():
            return any(_decides(each) for each in statement.orelse)
        case _:
            return False


def _decides(node: ast.AST, *kinds: type[ast.AST]) -> bool:
    return any(
        isinstance(each, kinds or (ast.Assert, ast.Raise))
        or (isinstance(each, ast.Call) and _callee(each).lstrip("_").lower().startswith(("assert", "fail", "exit")))
        for each in _within(node)
    )


def _callee(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those below it that run with it."""
    yield node
    for each in ast.iter_child_nodes(node):
        if not isinstance(each, _SCOPES):
            yield from _within(each)
