"""References to objects of the other process. Every use of a reference asks the other process.

A test decides on plain values alone. So a reference refuses each use that would let the program's object decide a
verdict.
"""

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from serve_deployments.sandbox.values import has_form

if TYPE_CHECKING:
    from serve_deployments.sandbox.peer import Peer

_UNARY = ("__abs__", "__invert__", "__neg__", "__pos__")
_BINARY = ("add", "and", "floordiv", "lshift", "matmul", "mod", "mul", "or", "pow", "rshift", "sub", "truediv", "xor")
_COMPARISONS = ("__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__")
_PLAIN_ASKED = ("__bool__", "__call__", "__delitem__", "__enter__", "__getitem__", "__hash__", "__iter__", "__len__")
_ASKED = (*_PLAIN_ASKED, "__next__", "__repr__", "__setitem__", "__str__")
INSTANCE = ("__instancecheck__", "__subclasscheck__")
# Methods that answer yes or no on plain types. An object of the program must not answer for them.
_YES_OR_NO = frozenset(
    name
    for kind in (str, bytes, float, frozenset[object])
    for name in dir(kind)
    if name.startswith(("is", "starts", "ends"))
)


class ProcessGone(BaseException):
    """The other process has ended."""


class Refused(Exception):
    """The test needs a value that the program must not give. It fails, even if it catches this error."""


class Remote:
    """An object of the other process."""

    __slots__ = ("__weakref__", "sandbox_label", "sandbox_peer", "sandbox_place")
    sandbox_peer: "Peer"
    sandbox_place: int
    sandbox_label: str

    def __init__(self, peer: "Peer", place: int, label: str) -> None:
        for name, value in (("peer", peer), ("place", place), ("label", label)):
            object.__setattr__(self, f"sandbox_{name}", value)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- as any object's
        if self.sandbox_peer.strict and name in _YES_OR_NO:
            self.sandbox_peer.refuse(f"{self.sandbox_label} is no plain value: it would answer {name}() itself")
        return self.sandbox_peer.ask("getattr", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        self.sandbox_peer.ask("setattr", self, name, value)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        suppressed = bool(self.sandbox_peer.ask("__exit__", self, error))
        # A context manager of the program does not swallow a failure of the test.
        return suppressed and not (
            self.sandbox_peer.strict and isinstance(error, (AssertionError, Refused, ProcessGone))
        )

    def __await__(self) -> Any:  # noqa: ANN401
        return waiting(self).__await__()

    def __mro_entries__(self, bases: object) -> Any:  # noqa: ANN401
        return self.sandbox_peer.refuse(f"a test cannot derive from {self.sandbox_label}, a class of the program")


def _asked(name: str) -> Callable[..., object]:
    def method(self: Remote, *arguments: object, **named: object) -> object:
        return self.sandbox_peer.ask(name, self, *arguments, **named)

    return method


def _compared(name: str) -> Callable[[Remote, object], object]:
    def method(self: Remote, other: object) -> object:
        peer = self.sandbox_peer
        if not peer.strict or type(other) is Remote:
            return peer.ask(name, self, other)
        if other is None and name in ("__eq__", "__ne__"):
            return name == "__ne__"
        if not has_form(other):
            return NotImplemented
        return peer.refuse(f"{self.sandbox_label} is no plain value: it decides itself what it equals or exceeds")

    return method


def _computed(name: str, swapped: bool = False) -> Callable[..., object]:
    def method(self: Remote, *others: object) -> object:
        peer = self.sandbox_peer
        result = peer.ask(name, *((*others, self) if swapped else (self, *others)))
        if peer.strict and type(result) is not Remote:
            peer.refuse(f"{self.sandbox_label} is no plain value: it decides itself what {name} gives")
        return result

    return method


for _name in _ASKED + INSTANCE:
    setattr(Remote, _name, _asked(_name))
for _name in _COMPARISONS:
    setattr(Remote, _name, _compared(_name))
for _name in _UNARY:
    setattr(Remote, _name, _computed(_name))
for _name in _BINARY:
    setattr(Remote, f"__{_name}__", _computed(f"__{_name}__"))
    setattr(Remote, f"__r{_name}__", _computed(f"__{_name}__", swapped=True))


async def waiting(remote: Remote) -> object:
    """The result of a coroutine of the other process."""
    return remote.sandbox_peer.ask("await", remote)


def _call(target: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 -- any objects, here and below
    return target(*arguments, **named)


def _enter(target: Any) -> Any:  # noqa: ANN401
    return cast(Any, type(target)).__enter__(target)


def _leave(target: Any, error: BaseException | None) -> Any:  # noqa: ANN401
    return cast(Any, type(target)).__exit__(target, error and type(error), error, None)


def _is_instance(kind: Any, value: object) -> bool:  # noqa: ANN401
    return isinstance(value, kind)


def _is_subclass(kind: Any, other: Any) -> bool:  # noqa: ANN401
    return issubclass(other, kind)


def _awaited(awaitable: Any) -> object:  # noqa: ANN401
    import asyncio  # only where needed: it takes longer to load than most tests to run

    async def one() -> object:
        return await awaitable

    return asyncio.run(one())


# The object's owner runs one of these functions for each request.
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in (*_UNARY, *_COMPARISONS, *(f"__{name}__" for name in _BINARY))},
    "__bool__": bool,
    "__call__": _call,
    "__delitem__": operator.delitem,
    "__enter__": _enter,
    "__exit__": _leave,
    "__getitem__": operator.getitem,
    "__hash__": hash,
    "__instancecheck__": _is_instance,
    "__iter__": iter,
    "__len__": len,
    "__next__": next,
    "__repr__": repr,
    "__setitem__": operator.setitem,
    "__str__": str,
    "__subclasscheck__": _is_subclass,
    "await": _awaited,
    "getattr": getattr,
    "setattr": setattr,
}
