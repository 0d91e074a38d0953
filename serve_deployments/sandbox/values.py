"""Values as JSON: the only form in which anything crosses between a program's process and a test's.

JSON has None, bool, int, float, str and list. Every other value is an object with one key, its form, as in
`{"tuple": [1, 2]}`. A form is chosen by exact type. `refer` and `resolve` of the caller handle what has no form here.
"""

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any, cast

DEPTH_MAX = 64
VALUES_MAX = 200_000
BYTES_MAX = 8 << 20

_INT_PLAIN_MAX = 1 << 63
_ITEMS = (tuple, set, frozenset)
_BYTES = (bytes, bytearray)
# Types of the standard library by name: the arguments that make an equal value.
_MADE: dict[str, Callable[[Any], tuple[object, ...]]] = {
    "builtins.complex": lambda value: (value.real, value.imag),
    "builtins.range": lambda value: (value.start, value.stop, value.step),
    "builtins.slice": lambda value: (value.start, value.stop, value.step),
    "collections.Counter": lambda value: (dict(value),),
    "collections.OrderedDict": lambda value: (list(value.items()),),
    "collections.defaultdict": lambda value: (None, dict(value)),
    "collections.deque": lambda value: (list(value), value.maxlen),
    "datetime.date": lambda value: (value.year, value.month, value.day),
    "datetime.datetime": lambda value: (*value.timetuple()[:6], value.microsecond, value.tzinfo),
    "datetime.time": lambda value: (value.hour, value.minute, value.second, value.microsecond, value.tzinfo),
    "datetime.timedelta": lambda value: (value.days, value.seconds, value.microseconds),
    "datetime.timezone": lambda value: (value.utcoffset(None),),
    "decimal.Decimal": lambda value: (str(value),),
    "fractions.Fraction": lambda value: (value.numerator, value.denominator),
    "uuid.UUID": lambda value: (str(value),),
}
_EXACT = {None.__class__, bool, int, float, str, list, dict, *_ITEMS, *_BYTES, complex, range, slice}
_MALFORMED = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError)


class NotPlain(Exception):
    """A value that cannot cross, or a message that holds none; the text says why."""


class Encoder:
    """Encodes one message. `refer` returns the form of a value that has none here, or raises NotPlain."""

    def __init__(self, refer: Callable[[Any, "Encoder"], dict[str, Any]]) -> None:
        self._refer = refer
        self._left = VALUES_MAX
        self._depth = 0

    def text(self, value: object) -> bytes:
        """The message. Raises NotPlain when the value cannot cross, or is too deep or too large."""
        said = _DUMPS(self.tree(value)).encode()
        if len(said) > BYTES_MAX:
            raise NotPlain(f"a value of more than {BYTES_MAX >> 20} MB")
        return said

    def tree(self, value: Any) -> Any:  # noqa: ANN401 -- any value, and any JSON
        """A value as JSON."""
        self._left -= 1
        if self._left < 0:
            raise NotPlain(f"a value of more than {VALUES_MAX:,} parts")
        kind = cast("type[object]", type(value))
        if value is None or kind is bool or kind is float:
            return value
        if kind is int:
            return value if -_INT_PLAIN_MAX < value < _INT_PLAIN_MAX else {"int": hex(value)}
        if kind is str:
            return value if value.isascii() or not _has_surrogates(value) else {"str": _raw(value)}
        if kind in _BYTES:
            return {kind.__name__: value.hex()}
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise NotPlain(f"a value nested deeper than {DEPTH_MAX}")
        found = self._compound(kind, value)
        self._depth -= 1
        return found

    def _compound(self, kind: type, value: Any) -> Any:  # noqa: ANN401
        if kind is list:
            return [self.tree(each) for each in value]
        if kind in _ITEMS:
            return {kind.__name__: [self.tree(each) for each in value]}
        if kind is dict:
            return {"dict": [[self.tree(key), self.tree(item)] for key, item in value.items()]}
        name = f"{kind.__module__}.{kind.__name__}"
        if name in _MADE and vars(sys.modules.get(kind.__module__, Encoder)).get(kind.__name__) is kind:
            return {name: [self.tree(each) for each in _MADE[name](value)]}
        return self._refer(value, self)


_DUMPS = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode


def has_form(value: object) -> bool:
    """Whether a value is plain by its exact type; its parts may be others."""
    return type(value) in _EXACT


def decoder(resolve: Callable[[str, Any], object]) -> Callable[[bytes], Any]:
    """A function that decodes messages; `resolve` returns the value of a form that is not known here.

    The function raises NotPlain for everything that no encoder writes.
    """

    def made(pairs: dict[str, Any]) -> object:
        ((form, body),) = pairs.items()
        if form in _MADE and type(body) is list:
            module, _, name = form.partition(".")
            return getattr(importlib.import_module(module), name)(*body)
        return _TEXTUAL[form](body) if form in _TEXTUAL else _listed(form, body, resolve)

    decode = json.JSONDecoder(object_hook=made).decode

    def decoded(text: bytes) -> Any:  # noqa: ANN401
        try:
            return decode(text.decode())
        except _MALFORMED as error:
            raise NotPlain(f"a message without a value: {type(error).__name__}") from error

    return decoded


def strings(text: bytes) -> list[str]:
    """All texts in a message, those of bytes too."""
    found: list[str] = []
    left = [json.loads(text)]
    while left:
        each = left.pop()
        if isinstance(each, str):
            found.append(each)
        elif isinstance(each, list):
            left.extend(cast("list[Any]", each))
        elif isinstance(each, dict):
            for form, body in cast("dict[str, Any]", each).items():
                coded = form in _TEXTUAL and form != "int"
                left.append(bytes.fromhex(body).decode("utf-8", "replace") if coded else body)
    return found


def _listed(form: str, body: Any, resolve: Callable[[str, Any], object]) -> object:  # noqa: ANN401
    parts = cast("list[Any]", body) if type(body) is list else None
    if parts is not None and form == "dict" and all(type(pair) is list for pair in parts):
        return {key: item for key, item in parts}
    if parts is not None and form in _LISTED:
        return _LISTED[form](parts)
    return resolve(form, body)


def _raw(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").hex()


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


_LISTED: dict[str, Callable[[list[Any]], object]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_TEXTUAL: dict[str, Callable[[str], object]] = {
    "int": lambda body: int(body, 16),
    "str": lambda body: bytes.fromhex(body).decode("utf-8", "surrogatepass"),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
}
