"""Marks a test's checking statements, so that a test that reaches none of them is seen to check nothing.

Says also which text is no more than an expression of plain values.
"""

import ast
import types
from collections.abc import Iterator
from typing import Any

# The name of the function that is called before each checking statement.
REACHED = "__reached__"

_VALUES = (
    *(ast.Expression, ast.Constant, ast.Name, ast.expr_context, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.IfExp),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPOUND = (ast.If, ast.Match, ast.Try, ast.TryStar, ast.With, ast.AsyncWith, ast.For, ast.AsyncFor, ast.While)


def compiled(test: str, name: str) -> types.CodeType:
    """The code of a test. Raises SyntaxError, or ValueError for a null byte."""
    tree = ast.parse(test, name)
    _Marking().visit(tree)
    return compile(ast.fix_missing_locations(tree), name, "exec", dont_inherit=True)


def only_values(text: str) -> bool:
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
        return [ast.copy_location(ast.Expr(ast.Call(ast.Name(REACHED, ast.Load()), [], [])), node), visited]


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


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those below it that run with it."""
    yield node
    for each in ast.iter_child_nodes(node):
        if not isinstance(each, _SCOPES):
            yield from _within(each)
