"""A valid value for any bounded JSON Schema (draft 2020-12), drawn from a `Dice` and guided by an author.

What is asked for by name (an answer, a score, an issue) comes from the author; whatever it leaves open is drawn.
Numbers and arrays without an upper bound get small ones. Where no value is found, SchemaRefused says where and why.
"""

import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Protocol

from serve_deployments.simulator.dice import Dice
from serve_deployments.simulator.patterns import PatternUnsupported, draw_match
from serve_deployments.simulator.schemas import (
    NESTING_MAX,
    TRIED_KEYWORDS,
    Json,
    Schema,
    SchemaRefused,
    identity,
    is_valid,
    items_of,
    merge,
    number_bounds,
    object_of,
    property_schemas,
    resolve,
    subschema,
    types_of,
    whole_number,
)

Path = tuple[str | int, ...]

_ATTEMPTS = 40
_UNIQUE_ATTEMPTS = 60
_SHALLOW_FROM = 6
_EXTRA_ITEMS = 3
_FILLER = ("and", "so", "on", "as", "noted", "above")

_BY_TYPE = (
    ("object", ("properties", "required", "additionalProperties", "minProperties", "maxProperties")),
    ("array", ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains")),
    ("string", ("minLength", "maxLength", "pattern", "format")),
    ("number", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
)
_FORMATS = {
    "date": r"20[12]\d-0[1-9]-[12]\d",
    "time": r"[01]\d:[0-5]\d:[0-5]\dZ",
    "date-time": r"20[12]\d-0[1-9]-[12]\dT[01]\d:[0-5]\d:[0-5]\dZ",
    "email": r"[a-z]{4,9}@example\.org",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}",
    "uri": r"https://example\.org/[a-z]{3,9}",
    "hostname": r"[a-z]{3,9}\.example\.org",
    "ipv4": r"10\.[1-9]\d\.[1-9]\d\.[1-9]",
}


class Author(Protocol):
    """Who decides what stands at a path; None leaves it to chance."""

    def text(self, path: Path, chars_max: int | None) -> str | None:
        """The string at `path`; it is cut or filled to the schema's bounds."""
        ...

    def number(self, path: Path, low: float, high: float) -> float | None:
        """The number at `path`; it is clamped into [low, high]."""
        ...

    def option(self, path: Path, options: Sequence[Json]) -> int | None:
        """Which of an enum's `options`, by place."""
        ...

    def size(self, path: Path, low: int, high: int) -> int | None:
        """How many items the array at `path` has; it is clamped into [low, high]."""
        ...


def fit(text: str, chars_min: int, chars_max: int | None) -> str:
    """`text` within the bounds: cut at a word where that keeps most of it, filled with words where it is short."""
    place = 0
    while len(text) < chars_min:
        text += (" " if text else "") + _FILLER[place % len(_FILLER)]
        place += 1
    if chars_max is None or len(text) <= chars_max:
        return text
    cut = text[:chars_max]
    whole_words = cut[: cut.rfind(" ") + 1].rstrip()
    return whole_words if len(whole_words) >= max(1, chars_min, chars_max * 2 // 3) else cut


def generate(schema: Schema, dice: Dice, author: Author) -> Json:
    """A value that is valid under `schema`. Raises SchemaRefused when none was found."""
    generator = _Generator(schema, dice, author)
    try:
        for _ in range(_ATTEMPTS):
            generator.tried = False
            value = generator.node(schema, (), 0)
            if not generator.tried or is_valid(schema, value, schema):
                return value
    except (TypeError, ValueError, re.error) as exc:
        raise SchemaRefused(f"the schema is malformed: {exc}") from exc
    except RecursionError as exc:
        raise SchemaRefused("the schema refers to itself without end") from exc
    raise SchemaRefused(f"no value was found that meets the whole schema in {_ATTEMPTS} attempts")


class _Generator:
    """Walks one schema; `tried` tells that a keyword was met that only a check of the whole value can settle."""

    def __init__(self, root: Schema, dice: Dice, author: Author) -> None:
        self._root = root
        self._dice = dice
        self._author = author
        self.tried = False

    def node(self, schema: Schema, path: Path, depth: int) -> Json:
        if depth > NESTING_MAX:
            raise SchemaRefused(f"{_at(path)}: nested deeper than {NESTING_MAX} levels")
        if isinstance(schema, bool):
            if not schema:
                raise SchemaRefused(f"{_at(path)}: the schema `false` has no value")
            return self._string({}, path)
        if not TRIED_KEYWORDS.isdisjoint(schema):
            self.tried = True
        if "$ref" in schema:
            rest = {keyword: value for keyword, value in schema.items() if keyword != "$ref"}
            return self.node(merge(resolve(schema["$ref"], self._root), rest), path, depth + 1)
        if "allOf" in schema:
            return self._all_of(schema, path, depth)
        if "anyOf" in schema or "oneOf" in schema:
            return self._one_of(schema, path, depth)
        if "const" in schema:
            return self._listed([schema["const"]], schema, path)
        if "enum" in schema:
            return self._listed(items_of(schema["enum"]), schema, path)
        return self._typed(schema, path, depth)

    def _typed(self, schema: Mapping[str, Json], path: Path, depth: int) -> Json:
        match self._type(schema, path):
            case "object":
                return self._object(schema, path, depth)
            case "array":
                return self._array(schema, path, depth)
            case "string":
                return self._string(schema, path)
            case "integer":
                return int(self._number(schema, path, whole=True))
            case "number":
                return self._number(schema, path, whole=False)
            case "boolean":
                return self._dice.bits() % 4 != 0
            case "null":
                return None
            case unknown:
                raise SchemaRefused(f"{_at(path)}: unknown type {unknown!r:.80}")

    def _type(self, schema: Mapping[str, Json], path: Path) -> str:
        plain = schema.get("type")
        if isinstance(plain, str):
            return plain
        named = types_of(schema)
        if "type" in schema and not named:
            raise SchemaRefused(f"{_at(path)}: no type is allowed")
        if named:
            solid = [kind for kind in named if kind != "null"]
            return self._dice.pick(solid) if solid and self._dice.unit() < 0.85 else named[-1]
        return next((kind for kind, keywords in _BY_TYPE if any(word in schema for word in keywords)), "string")

    def _all_of(self, schema: Mapping[str, Json], path: Path, depth: int) -> Json:
        merged: Schema = {keyword: value for keyword, value in schema.items() if keyword != "allOf"}
        for part in items_of(schema["allOf"]):
            branch = subschema(part)
            for _ in range(NESTING_MAX):
                if isinstance(branch, bool) or set(branch) != {"$ref"}:
                    break
                branch = resolve(branch["$ref"], self._root)
            merged = merge(merged, branch)
        return self.node(merged, path, depth + 1)

    def _one_of(self, schema: Mapping[str, Json], path: Path, depth: int) -> Json:
        keyword = "anyOf" if "anyOf" in schema else "oneOf"
        rest = {word: value for word, value in schema.items() if word != keyword}
        branches = [subschema(branch) for branch in items_of(schema[keyword])]
        order = self._dice.sample(branches, len(branches))
        if depth >= _SHALLOW_FROM:
            order.sort(key=_weight)
        refusal: SchemaRefused | None = None
        for branch in order:
            try:
                return self.node(merge(branch, rest), path, depth + 1)
            except SchemaRefused as exc:
                refusal = exc
        raise refusal or SchemaRefused(f"{_at(path)}: `{keyword}` is empty")

    def _listed(self, options: list[Json], schema: Mapping[str, Json], path: Path) -> Json:
        rest = {keyword: value for keyword, value in schema.items() if keyword not in ("enum", "const")}
        if rest:
            options = [option for option in options if is_valid(schema, option, self._root)]
        if not options:
            raise SchemaRefused(f"{_at(path)}: no listed value meets the other keywords")
        chosen = self._author.option(path, options) if len(options) > 1 else 0
        return self._dice.pick(options) if chosen is None else options[chosen]

    def _string(self, schema: Mapping[str, Json], path: Path) -> str:
        low = whole_number(schema, "minLength", 0)
        high = whole_number(schema, "maxLength", 0) if "maxLength" in schema else None
        if high is not None and low > high:
            raise SchemaRefused(f"{_at(path)}: minLength {low} is above maxLength {high}")
        pattern = schema.get("pattern")
        if pattern is None and low == 0 and high is None:
            pattern = _FORMATS.get(str(schema.get("format")))
        if pattern is None:
            return fit(self._author.text(path, high) or "", low, high)
        suggested = fit(self._author.text(path, high) or "", low, high)
        try:
            if re.search(str(pattern), suggested):
                return suggested
            limit = 65_536 if high is None else high
            return draw_match(str(pattern), self._dice, length_min=low, length_max=limit)
        except re.error as exc:
            raise SchemaRefused(f"{_at(path)}: pattern {pattern!r}: {exc}") from exc
        except PatternUnsupported as exc:
            raise SchemaRefused(f"{_at(path)}: {exc}") from exc

    def _number(self, schema: Mapping[str, Json], path: Path, *, whole: bool) -> float:
        step = schema.get("multipleOf")
        if whole and step is None and type(schema.get("minimum")) is type(schema.get("maximum")) is int:
            # The common case, without fractions; anything unusual takes the exact way below.
            floor, ceiling = int(schema["minimum"]), int(schema["maximum"])
            if floor <= ceiling and not {"exclusiveMinimum", "exclusiveMaximum"}.intersection(schema):
                wanted = self._author.number(path, floor, ceiling)
                return self._dice.between(floor, ceiling) if wanted is None else min(ceiling, max(floor, round(wanted)))
        low, high, open_low, open_high = number_bounds(schema)
        if whole or step is not None:
            exact = Fraction(1 if step is None else str(step))
            return self._stepped(exact, (low, high, open_low, open_high), path, whole=whole)
        value = self._author.number(path, float(low), float(high))
        if value is None:
            value = round(float(low) + self._dice.unit() * float(high - low), 3)
        inside = (low < value or (low == value and not open_low)) and (
            value < high or (value == high and not open_high)
        )
        if inside:
            return value
        middle = float((low + high) / 2)
        if low > high or (low == high and (open_low or open_high)):
            raise SchemaRefused(f"{_at(path)}: no number lies within the bounds")
        return middle

    def _stepped(
        self, step: Fraction, bounds: tuple[Fraction, Fraction, bool, bool], path: Path, *, whole: bool
    ) -> float:
        low, high, open_low, open_high = bounds
        if step <= 0:
            raise SchemaRefused(f"{_at(path)}: multipleOf must be above 0")
        if whole and step.denominator != 1:
            step = Fraction(step.numerator)
        first, last = math.ceil(low / step), math.floor(high / step)
        first += open_low and first * step == low
        last -= open_high and last * step == high
        if first > last:
            raise SchemaRefused(f"{_at(path)}: no {'integer' if whole else 'number'} lies within the bounds")
        wanted = self._author.number(path, float(first * step), float(last * step))
        places = self._dice.between(first, last) if wanted is None else round(Fraction(str(wanted)) / step)
        value = min(last, max(first, places)) * step
        return int(value) if value.denominator == 1 else float(value)

    def _array(self, schema: Mapping[str, Json], path: Path, depth: int) -> list[Json]:
        prefix = items_of(schema.get("prefixItems", []))
        rest = subschema(schema.get("items", True))
        low = whole_number(schema, "minItems", 0)
        high = whole_number(schema, "maxItems", max(low, len(prefix)) + _EXTRA_ITEMS)
        if rest is False:
            high = min(high, len(prefix))
        if low > high:
            raise SchemaRefused(f"{_at(path)}: no array has at least {low} and at most {high} items")
        if depth >= _SHALLOW_FROM:
            size = low
        else:
            wanted = self._author.size(path, low, high)
            least = max(low, min(len(prefix), high), min(1, high))
            size = self._dice.between(least, min(high, least + _EXTRA_ITEMS)) if wanted is None else wanted
            size = min(high, max(low, size))
        unique = bool(schema.get("uniqueItems"))
        found: list[Json] = []
        seen: set[object] = set()
        for place in range(size):
            part = subschema(prefix[place]) if place < len(prefix) else rest
            if "contains" in schema and place < schema.get("minContains", 1):
                part = merge(part, subschema(schema["contains"]))
            item = self._item(part, (*path, place), depth + 1, seen if unique else None)
            if unique and item is _NONE_LEFT:
                if len(found) >= low:
                    break
                raise SchemaRefused(f"{_at(path)}: found no {low} different items")
            found.append(item)
        return found

    def _item(self, schema: Schema, path: Path, depth: int, seen: set[object] | None) -> Json:
        if seen is None:
            return self.node(schema, path, depth)
        author = self._author
        try:
            for _ in range(_UNIQUE_ATTEMPTS):
                item = self.node(schema, path, depth)
                if identity(item) not in seen:
                    seen.add(identity(item))
                    return item
                # The author would say the same again: chance decides from here on.
                self._author = _Chance(self._dice)
        finally:
            self._author = author
        return _NONE_LEFT

    def _object(self, schema: Mapping[str, Json], path: Path, depth: int) -> dict[str, Json]:
        declared = object_of(schema.get("properties", {}))
        required = {str(name) for name in items_of(schema.get("required", []))}
        most = whole_number(schema, "maxProperties", 1_000_000)
        least = whole_number(schema, "minProperties", 0)
        optional = [name for name in declared if name not in required and declared[name] is not False]
        room = most - len(required)
        if room < 0 or least > most:
            raise SchemaRefused(f"{_at(path)}: the properties required are more than maxProperties")
        shallow = depth >= _SHALLOW_FROM
        taken = [name for name in optional if not shallow and self._dice.unit() < 0.85][:room]
        missing = [name for name in optional if name not in taken]
        taken += missing[: max(0, least - len(required) - len(taken))]
        names = [name for name in declared if name in required or name in taken]
        names += sorted(required.difference(declared))
        names += [f"extra_{place}" for place in range(1, least - len(names) + 1)]
        value: dict[str, Json] = {}
        plain = "patternProperties" not in schema
        for name in names:
            if plain and name in declared:
                part = subschema(declared[name])
            else:
                part = True
                for one in property_schemas(schema, name):
                    part = merge(part, one)
            value[name] = self.node(part, (*path, name), depth + 1)
        return value


class _Chance:
    """An author without opinions, who never says the same twice."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice

    def text(self, path: Path, chars_max: int | None) -> str | None:
        return f"{self._dice.bits():x} more"

    def number(self, path: Path, low: float, high: float) -> float | None:
        return None

    def option(self, path: Path, options: Sequence[Json]) -> int | None:
        return None

    def size(self, path: Path, low: int, high: int) -> int | None:
        return None


_NONE_LEFT = object()


def _at(path: Path) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def _weight(schema: Schema) -> int:
    if isinstance(schema, bool):
        return 0
    heavy = ("$ref", "properties", "items", "anyOf", "oneOf", "allOf")
    return sum(word in schema for word in heavy) + sum(kind in ("object", "array") for kind in types_of(schema))
