"""The Berkeley Function Calling Leaderboard as data sets: its questions, graded by its own checker.

Both come with the package `bfcl-eval` (Apache-2.0), which is installed by itself: of its forty dependencies the checker
needs none. Its categories of one turn in Python are here; those in other languages and of more turns run code of the
leaderboard's own. Names of functions are those that OpenAI's API takes, with underscores in place of dots.
"""

import importlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, cast

from app.api.action_requests import ActionsRequest
from app.cli.bench.questions import ActionQuestion
from app.cli.exits import CommandError, Exit
from app.deliberation.facts import Action

CATEGORIES = (
    *("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance", "live_relevance"),
)
INSTALLED_BY = "pip install --no-deps bfcl-eval==2026.3.23"
# The checker asks under this name how functions are called.
_MODEL = "council"

_Entry = Mapping[str, Any]


class _Checker(NamedTuple):
    """`check` grades calls; `types` has JSON Schema's type for each of the leaderboard's; `python` is its language."""

    check: Callable[..., Mapping[str, Any]]
    types: Mapping[str, str]
    python: object


def read_category(category: str) -> Iterator[ActionQuestion]:
    """The questions of a category, in the leaderboard's order. Raises CommandError without it or its package."""
    if category not in CATEGORIES:
        detail = f"bfcl has no category {category!r} here"
        raise CommandError(Exit.USAGE, "dataset_unknown", detail, remedy=f"name one of {', '.join(CATEGORIES)}")
    try:
        checker = _checker()
    except ImportError as error:
        detail = f"Berkeley's data sets and checker cannot be imported: {error}"
        raise CommandError(Exit.USAGE, "dataset_unreadable", detail, remedy=f"run `{INSTALLED_BY}`") from error
    folder = Path(str(importlib.import_module("bfcl_eval").__file__)).parent / "data"
    answers = {}
    if not category.endswith("relevance"):
        answers = {entry["id"]: entry["ground_truth"] for entry in _lines(folder / "possible_answer", category)}
    # A question without functions cannot be answered wrongly: two of `live_irrelevance`.
    for entry in _lines(folder, category):
        if entry["function"]:
            yield _question(checker, category, entry, answers.get(entry["id"], ()))


def _lines(folder: Path, category: str) -> Iterator[_Entry]:
    with (folder / f"BFCL_v4_{category}.json").open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _checker() -> _Checker:
    # The real module imports a client of every vendor, for one field of a model: whether dots become underscores.
    models = ModuleType("bfcl_eval.constants.model_config")
    models.__dict__["MODEL_CONFIG_MAPPING"] = defaultdict(lambda: SimpleNamespace(underscore_to_dot=True))
    replaced = sys.modules.setdefault(models.__name__, models)
    try:
        check = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker").ast_checker
        types = importlib.import_module("bfcl_eval.constants.type_mappings").GORILLA_TO_OPENAPI
        python = importlib.import_module("bfcl_eval.constants.enums").Language.PYTHON
    finally:
        if replaced is models:
            del sys.modules[models.__name__]
    return _Checker(check, types, python)


def _question(checker: _Checker, category: str, entry: _Entry, truth: Sequence[Any]) -> ActionQuestion:
    functions: Sequence[Mapping[str, Any]] = entry["function"]

    def graded(action: Action) -> bool:
        if category.endswith("relevance"):
            return bool(action.calls) is not category.endswith("irrelevance")
        called = [{call.name: call.arguments} for call in action.calls]
        try:
            return checker.check(functions, called, truth, checker.python, category, _MODEL)["valid"]
        except (TypeError, IndexError, KeyError, AttributeError):
            # It fails at some values of another type than the function's: they are wrong.
            return False

    tools = [
        {
            "name": function["name"].replace(".", "_"),
            "description": function["description"],
            "parameters": _schema(function["parameters"], checker.types),
        }
        for function in functions
    ]
    (messages,) = entry["question"]
    turns = [{"role": message["role"], "text": message["content"]} for message in messages]
    return ActionQuestion(turns, ActionsRequest.model_validate({"tools": tools}).specified, graded)


def _schema(described: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
    """JSON Schema of the leaderboard's description. Its defaults are often of another type, and stay words of it."""
    kept = {name: described[name] for name in ("description", "enum", "required") if name in described}
    if "type" in described:
        kept["type"] = types[described["type"]]
    if "items" in described:
        kept["items"] = _schema(described["items"], types)
    properties = cast("Mapping[str, Mapping[str, Any]]", described.get("properties", {}))
    if properties:
        kept["properties"] = {name: _schema(of, types) for name, of in properties.items()}
    return kept
