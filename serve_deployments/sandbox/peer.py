"""Calls between a program's process and a test's, over two pipes. Both sides run this code.

A message is a value of `values`. A value that is not plain stays in its process: the other process gets a `Remote` and
asks through it. The test's side is strict: no object of the program takes part in a verdict. The program may only call
the test's functions and use public attributes of its objects. A forged message can only carry another value.
"""

import _thread
import builtins
import importlib
import io
import operator
import os
import sys
import types
from collections.abc import Callable
from typing import Any, cast

from serve_deployments.sandbox.protocol import PROGRAM, TEST
from serve_deployments.sandbox.remote import INSTANCE, OPERATIONS, ProcessGone, Refused, Remote, waiting
from serve_deployments.sandbox.values import BYTES_MAX, Encoder, NotPlain, decoder, has_form

OBJECTS_MAX = 100_000
HEARD_BYTES_MAX = 16 << 20
TEXT_CHARS_MAX = 500

_LENGTH_BYTES = 4
_DATA_TYPES = (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, object)
# An object of a subclass of these types crosses as its base value. Each function reads that value without the
# subclass's code.
_HELD: dict[type, Callable[[Any], object]] = {
    int: int.__index__,
    float: float.__float__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    tuple: lambda value: tuple(cast("Any", tuple).__iter__(value)),
}
_CHANGING = (list, dict, set, bytearray)
_CLOSED = (types.ModuleType, types.FrameType, types.CodeType, types.TracebackType, types.CoroutineType)
# They end loops and tasks silently, also those of the test.
_CONTROL = (StopIteration, StopAsyncIteration)
_OF_A_FUNCTION = ("__name__", "__qualname__", "__doc__", "__module__")


class Peer:
    """One side. `strict` is the test's; `operations` are what the other side may ask for besides the common ones.

    `refusals` lists why the test cannot pass; `gone` is true once the other process has ended. `heard` keeps the
    messages that the test's side has received, up to HEARD_BYTES_MAX in all.
    """

    def __init__(self, incoming: int, outgoing: int, *, strict: bool) -> None:
        self.strict = strict
        self.refusals: list[str] = []
        self.gone = False
        self.heard: list[bytes] = []
        self.heard_bytes = 0
        self.operations = dict(OPERATIONS)
        self._ends = incoming, outgoing
        self._objects: list[object] = []
        self._places: dict[int, int] = {}
        self._proxies: dict[int, object] = {}
        self._origins: dict[int, int] = {}
        self._decode = decoder(self._resolved)
        self._lock = _thread.RLock()
        # The other side listens while it waits for an answer of this one; the program's side always does.
        self._listens = int(strict)

    # Asking

    def ask(self, operation: str, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 -- any operation
        """The result of an operation in the other process. Raises the error that the operation raised there."""
        with self._lock:
            if not self._listens:
                raise RuntimeError("the test waits for no call now")
            captured = self.strict and sys.stdout is not sys.__stdout__
            try:
                self._send(["ask", operation, list(arguments), named, captured])
            except NotPlain as reason:
                return self.refuse(f"the test passes {reason}")
            while (message := self._received())[0] == "ask":
                self.answer(*message[1:])
        return self._result((operation, (*arguments, *named.values())), *message)

    def _result(self, asked: tuple[Any, ...], kind: str, value: Any, changed: Any, printed: str) -> Any:  # noqa: ANN401
        operation, passed = asked
        if printed:
            sys.stdout.write(printed)
        if changed is not None:
            for old, new in zip(passed, changed, strict=True):
                _restore(old, new)
        if kind == "refused":
            return self.refuse(value)
        if kind == "raised":
            if isinstance(value, _CONTROL) or not isinstance(value, (Exception, SystemExit, KeyboardInterrupt)):
                if operation != "__next__" or not isinstance(value, StopIteration):
                    raise RuntimeError(f"raised {type(value).__name__}")
            raise value
        return value

    def refuse(self, reason: str) -> Any:  # noqa: ANN401 -- never returns, in place of a value
        """Fail the test for this reason. Always raises Refused."""
        self.refusals.append(reason)
        raise Refused(reason)

    # Answering

    def serve(self) -> None:
        """Answer until the other process ends. Raises ProcessGone then."""
        while True:
            _, *asked = self._received()
            self.answer(*asked)

    def answer(self, operation: str, arguments: list[Any], named: dict[str, Any], captured: bool) -> None:
        """Do what the other side asks for, and send it the result or the error."""
        changing = any(type(each) in _CHANGING for each in (*arguments, *named.values()))
        before = self._encoder().text([arguments, named]) if changing else b""
        with self._lock:
            self._listens += 1
        out, printed = sys.stdout, io.StringIO()
        sys.stdout = printed if captured else out
        try:
            kind, value = "value", self._operated(operation, arguments, named)
        except BaseException as error:
            # Foreign code may raise anything, SystemExit too.
            kind, value = "raised", error
        sys.stdout = out
        with self._lock:
            changed = [*arguments, *named.values()] if changing else None
            try:
                if changing and self._encoder().text([arguments, named]) == before:
                    changed = None
                self._send([kind, value, changed, printed.getvalue()])
            except NotPlain as reason:
                self._send(["refused", f"it gives {reason}", None, ""])
            self._listens -= 1

    def _operated(self, operation: str, arguments: list[Any], named: dict[str, Any]) -> object:
        if self.strict and not self._opens(operation, arguments):
            raise AttributeError("this is not open to the program")
        try:
            return self.operations[operation](*arguments, **named)
        except AssertionError as error:
            if self.strict:
                self.refusals.append(f"an assertion failed in what the program called: {error}"[:TEXT_CHARS_MAX])
            raise

    def _opens(self, operation: str, arguments: list[Any]) -> bool:
        """Whether the program may ask this of the test: a function must not lead to its module's names."""
        if operation not in ("getattr", "setattr"):
            return operation not in ("await", *INSTANCE)
        target, name = arguments[:2]
        if isinstance(target, types.FunctionType):
            return operation == "getattr" and name in _OF_A_FUNCTION
        return type(target).__module__ == TEST and not name.startswith("_")

    # Messages

    def _encoder(self) -> Encoder:
        return Encoder(self._refer)

    def _send(self, message: list[Any]) -> None:
        text = self._encoder().text(message)
        data = memoryview(len(text).to_bytes(_LENGTH_BYTES, "big") + text)
        try:
            while data:
                data = data[os.write(self._ends[1], data) :]
        except BrokenPipeError:
            self._lost()

    def _received(self) -> Any:  # noqa: ANN401
        length = int.from_bytes(self._read(_LENGTH_BYTES), "big")
        if length > BYTES_MAX:
            self._lost()
        text = self._read(length)
        try:
            message = self._decode(text)
        except NotPlain as reason:
            return self.refuse(str(reason))
        if self.strict and self.heard_bytes <= HEARD_BYTES_MAX:
            self.heard.append(text)
            self.heard_bytes += length
        if type(message) is not list or len(cast("list[Any]", message)) not in (4, 5):
            return self.refuse("a message that is none")
        return cast("list[Any]", message)

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = os.read(self._ends[0], count - len(data))
            if not piece:
                self._lost()
            data += piece
        return bytes(data)

    def _lost(self) -> None:
        self.gone = True
        raise ProcessGone

    # What is not plain

    def _refer(self, value: object, encoder: Encoder) -> dict[str, Any]:
        if type(value) is Remote:
            return {"yours": value.sandbox_place}
        if id(value) in self._origins:
            return {"yours": self._origins[id(value)]}
        if isinstance(value, type):
            return self._refer_class(cast("type[object]", value))
        if isinstance(value, BaseException):
            return {"error": self._described(value, encoder)}
        if self.strict and (found := _named(value)):
            return {"named": found}
        name = type(value).__name__
        if self.strict and issubclass(type(value), _CLOSED):
            raise NotPlain(f"a {name}")
        for base, held in _HELD.items():
            if not self.strict and base in type(value).__mro__:
                parts = [self._place(value), name, base.__name__, encoder.tree(held(value))]
                return {"kind": parts}
        form = "coroutine" if name == "coroutine" else "object"
        return {form: [self._place(value), f"an object of class {name}"]}

    def _refer_class(self, kind: type[object]) -> dict[str, Any]:
        if any(kind is each for each in _DATA_TYPES) or vars(builtins).get(kind.__name__) is kind:
            return {"type": kind.__name__}
        if issubclass(kind, BaseException):
            names = [[each.__module__, each.__name__] for each in kind.__mro__[:-1]]
            return {"error class": [self._place(kind), names]}
        if self.strict and (found := _named(kind)):
            return {"named": found}
        return {"object": [self._place(kind), kind.__name__]}

    def _described(self, error: BaseException, encoder: Encoder) -> list[Any]:
        """An error as its class, arguments, text, line in the program and plain attributes."""
        try:
            text = str(error)[:TEXT_CHARS_MAX]
        except Exception as unreadable:
            # The error's class may be foreign: its `__str__` may raise anything, and the error must cross all the same.
            text = f"an error without a text: {type(unreadable).__name__}"
        arguments = [each if has_form(each) and type(each) not in _CHANGING else text for each in error.args]
        state = {name: each for name, each in vars(error).items() if has_form(each) and type(each) not in _CHANGING}
        line, trace = 0, error.__traceback__
        while trace is not None:
            line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == PROGRAM else line
            trace = trace.tb_next
        return [encoder.tree(each) for each in (type(error), arguments, text, line, state)]

    def _place(self, value: object) -> int:
        place = self._places.get(id(value))
        if place is None:
            if len(self._objects) >= OBJECTS_MAX:
                raise NotPlain(f"more than {OBJECTS_MAX:,} objects")
            place = self._places[id(value)] = len(self._objects)
            self._objects.append(value)
        return place

    def _resolved(self, form: str, body: Any) -> object:  # noqa: ANN401
        if form == "yours":
            return self._objects[operator.index(body)]
        if form == "type":
            return _builtin(body)
        if form == "named" and not self.strict:
            module, name = body
            return operator.attrgetter(name)(importlib.import_module(module))
        if form == "error":
            return _error(*body)
        makers = {"object": Remote, "coroutine": _coroutine, "kind": _extended, "error class": _error_class}
        place, *parts = body
        if place not in self._proxies:
            made = self._proxies[place] = makers[form](self, place, *parts)
            self._origins[id(made)] = place
        return self._proxies[place]


def _coroutine(peer: Peer, place: int, label: str) -> object:
    return waiting(Remote(peer, place, label))


def _extended(peer: Peer, place: int, name: str, base: str, value: object) -> object:
    """A plain value of a class of the program: it computes as its base; the program answers for other attributes."""
    (kind,) = [each for each in _HELD if each.__name__ == base and type(value) is each]
    remote = Remote(peer, place, f"an object of class {name}")

    def asked(_: object, attribute: str) -> object:
        return getattr(remote, attribute)

    return type(name, (kind,), {"__getattr__": asked, "__module__": PROGRAM})(value)


def _error_class(peer: Peer, place: int, names: list[list[str]]) -> type[BaseException]:
    """The class of an error, or one like it below the nearest class that this process has too."""
    for module, name in names:
        # A test runner does not count its own errors as a failure.
        root = module.partition(".")[0]
        known = root in sys.stdlib_module_names and root not in ("unittest", "test", "doctest")
        found = getattr(sys.modules.get(module), name, None) if known else None
        if isinstance(found, type) and issubclass(found, BaseException):
            return (
                found
                if [module, name] == names[0]
                else type(names[0][1], (found,), {"__str__": _text, "__module__": PROGRAM})
            )
    raise NotPlain("an error that is none")


def _text(error: BaseException) -> str:
    return vars(error).get("_sandbox_text", "")


def _error(kind: Any, arguments: list[Any], text: str, line: int, state: dict[str, Any]) -> BaseException:  # noqa: ANN401
    if not issubclass(kind, BaseException):
        raise NotPlain("an error that is none")
    try:
        error = kind(*arguments)
    except (TypeError, ValueError):
        error = kind.__new__(kind)
    vars(error).update(state | {"_sandbox_text": text, "_sandbox_line": line})
    return error


def _builtin(name: str) -> type:
    found = vars(builtins).get(name)
    if isinstance(found, type) and (found in _DATA_TYPES or issubclass(found, BaseException)):
        return found
    raise NotPlain("a type that is not plain")


def _named(value: Any) -> list[str] | None:  # noqa: ANN401
    """Where the other process finds the same function or class of the standard library; None for all others."""
    owner = getattr(value, "__objclass__", value)
    module, name = getattr(owner, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module.partition(".")[0] == TEST:
        return None
    found: object = sys.modules.get(module) if module.partition(".")[0] in sys.stdlib_module_names else None
    for part in name.split("."):
        found = getattr(found, part, None)
    return [module, name] if found is value else None


def _restore(old: Any, new: Any) -> None:  # noqa: ANN401
    """Change a container as the other side has changed its copy."""
    if type(old) is not type(new) or type(old) not in _CHANGING:
        return
    if type(old) is list:
        old[:] = new
    elif type(old) is bytearray:
        old[:] = new
    else:
        old.clear()
        old.update(new)
