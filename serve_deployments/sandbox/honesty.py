"""Compiles a test so that no class of the program decides what equals it, and so that a test without checks is seen.

Calls of `compared` replace comparisons of equality and membership, and a call before each checking statement records
that it was reached. Both functions stand among the constants of the test's code, which no name reaches. They look up no
name when they run, because a program may rebind any name.
"""

import ast
import collections
import collections.abc
import fractions
import operator
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

_COMPARED, _REACHED = "\0compared", "\0reached"
_JUDGED = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
_EQUALITIES = (
    *("assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertSetEqual", "assertDictEqual"),
    *("assertCountEqual", "assertSequenceEqual", "assertMultiLineEqual"),
)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPOUND = (ast.If, ast.Match, ast.Try, ast.TryStar, ast.With, ast.AsyncWith, ast.For, ast.AsyncFor, ast.While)
_Place = tuple[str, object, object]

_NATIVE = types.WrapperDescriptorType
# Equality written in Python that is trusted, since it is the standard library's.
_TRUSTED: tuple[object, ...] = (
    *(vars(collections.Counter)[name] for name in ("__eq__", "__ne__")),
    *(vars(kind)["__eq__"] for kind in (collections.UserList, collections.UserString, fractions.Fraction)),
    *(vars(kind)["__eq__"] for kind in (collections.abc.Mapping, collections.abc.Set)),
)
# Tuples, because a program could change mutable objects.
_APPLY: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("Eq", operator.eq),
    ("NotEq", operator.ne),
    ("Lt", operator.lt),
    ("LtE", operator.le),
    ("Gt", operator.gt),
    ("GtE", operator.ge),
    ("Is", operator.is_),
    ("IsNot", operator.is_not),
    ("In", lambda left, right: left in right),
    ("NotIn", lambda left, right: left not in right),
)


def _strange(
    kind: type,
    mro: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__,
    own: Callable[[type], Any] = type.__dict__["__dict__"].__get__,
    native: type = _NATIVE,
    trusted: tuple[object, ...] = _TRUSTED,
    kind_of: Callable[[object], type] = type,
) -> bool:
    """Whether a class defines equality by code of its own."""
    for name in ("__eq__", "__ne__"):
        for base in mro(kind):
            methods = own(base)
            if name in methods:
                found, known = methods[name], False
                for each in trusted:
                    known = known or found is each
                if not known and kind_of(found) is not native:
                    return True
                break
    return False


def _inner(
    left: Any,  # noqa: ANN401 -- any value
    right: Any,  # noqa: ANN401
    mro: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__,
    kind_of: Callable[[object], type] = type,
    sequences: tuple[Any, ...] = (list, tuple),
    sets: tuple[Any, ...] = (set, frozenset),
    mapping: Any = dict,  # noqa: ANN401
    pairs: Any = zip,  # noqa: ANN401
) -> list[_Place]:
    """The pairs of elements that a comparison of two containers compares."""
    lefts, rights = mro(kind_of(left)), mro(kind_of(right))
    for base in sequences:
        if base in lefts and base in rights:
            return [("Eq", one, other) for one, other in pairs(base.__iter__(left), base.__iter__(right))]
    if mapping in lefts and mapping in rights:
        keys = [("Eq", one, other) for one in mapping.__iter__(left) for other in mapping.__iter__(right)][:4_096]
        return keys + [("Eq", mapping.get(left, key), mapping.get(right, key)) for key in mapping.__iter__(left)]
    for base in sets:
        for other in sets:
            if base in lefts and other in rights:
                return [("Eq", a, b) for a in base.__iter__(left) for b in other.__iter__(right)][:4_096]
    return []


def compared(
    operators: tuple[str, ...],
    values: tuple[Any, ...],
    strange: Callable[[type], bool] = _strange,
    inner: Callable[[object, object], list[_Place]] = _inner,
    apply: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = _APPLY,
    kind_of: Callable[[object], type] = type,
    containers: tuple[type, ...] = (list, tuple, set, frozenset, dict),
    error: type[Exception] = AssertionError,
    pairs: Any = zip,  # noqa: ANN401
) -> object:
    """The result of a chain of comparisons; the values themselves when there are no `operators`.

    Raises AssertionError when a class of the program would decide whether it equals a value of another kind.
    """
    open_places = [*pairs(operators or ("Eq",), values, values[1:])]
    while open_places:
        how, left, right = open_places.pop()
        if how in ("In", "NotIn"):
            if kind_of(right) in containers:
                open_places.extend([("Eq", left, each) for each in right])
        elif how in ("Eq", "NotEq") and left is not right:
            foreign = [each for each in (left, right) if strange(kind_of(each))]
            plain = [each for each in (left, right) if not strange(kind_of(each))]
            if foreign and plain and not (how == "NotEq" and plain[0] is None):
                raise error(f"a {kind_of(foreign[0]).__name__} decides itself that it equals others")
            if not foreign:
                open_places.extend(inner(left, right))
    if not operators:
        return values
    said: object = True
    for how, left, right in pairs(operators, values, values[1:]):
        for name, function in apply:
            if name == how:
                said = function(left, right)
        if not said:
            break
    return said


# Functions whose code must not be replaced: those above, and those that they trust.
GUARDED: tuple[object, ...] = (compared, _strange, _inner, *(function for _, function in _APPLY), *_TRUSTED)


def compiled(test: str, name: str, reached: Callable[[bool], object]) -> types.CodeType:
    """The code of a test; `reached` is called with True before each statement that checks something."""
    tree = ast.parse(test, name)
    imports = [ast.dump(each) for each in ast.walk(tree) if isinstance(each, ast.ImportFrom | ast.Import)]
    tree = _Rewriting(anything=any("mock" in each for each in imports)).visit(tree)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a constant is called
        code = compile(ast.fix_missing_locations(tree), name, "exec", dont_inherit=True)
    return _bound(code, {_COMPARED: compared, _REACHED: reached})


def _bound(code: types.CodeType, values: dict[str, object]) -> types.CodeType:
    constants: list[object] = []
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            constants.append(_bound(each, values))
        else:
            constants.append(values.get(each, each) if isinstance(each, str) else each)
    return code.replace(co_consts=tuple(constants))


class _Rewriting(ast.NodeTransformer):
    """`anything`: the test imports `unittest.mock`, whose ANY it may compare with."""

    def __init__(self, anything: bool) -> None:
        self._anything = anything

    def visit(self, node: ast.AST) -> Any:  # noqa: ANN401 -- as its base has it
        checks = isinstance(node, ast.stmt) and _checks(node)
        visited = super().visit(node)
        if not checks:
            return visited
        call = ast.Call(ast.Constant(_REACHED), [ast.Constant(True)], [])
        return [ast.copy_location(ast.Expr(call), node), visited]

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        operands = [node.left, *node.comparators]
        if not any(isinstance(each, _JUDGED) for each in node.ops) or any(map(self._is_any, operands)):
            return node
        names = _constant(tuple(type(each).__name__ for each in node.ops))
        call = ast.Call(ast.Constant(_COMPARED), [names, ast.Tuple(operands, ast.Load())], [])
        return ast.copy_location(call, node)

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        compared = node.args[:2]
        unfit = len(compared) < 2 or any(isinstance(each, ast.Starred) or self._is_any(each) for each in compared)
        if _called(node) in _EQUALITIES and not unfit:
            pair = ast.Call(ast.Constant(_COMPARED), [_constant(()), ast.Tuple(compared, ast.Load())], [])
            node.args[:2] = [ast.copy_location(ast.Starred(pair, ast.Load()), node)]
        return node

    def _is_any(self, operand: ast.expr) -> bool:
        named = (each.id if isinstance(each, ast.Name) else getattr(each, "attr", "") for each in ast.walk(operand))
        return self._anything and "ANY" in named


def _checks(statement: ast.stmt) -> bool:
    """Whether a test that reaches this statement has checked something, though it may go on behind it."""
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
        or (isinstance(each, ast.Call) and _called(each).lstrip("_").lower().startswith(("assert", "fail", "exit")))
        for each in _within(node)
    )


def _constant(names: Any) -> ast.Constant:  # noqa: ANN401 -- tuples are constants too, which its type does not know
    return ast.Constant(names)


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those below it that run with it."""
    yield node
    for each in ast.iter_child_nodes(node):
        if not isinstance(each, _SCOPES):
            yield from _within(each)
