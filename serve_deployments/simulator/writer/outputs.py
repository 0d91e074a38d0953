"""The outputs of simulated agents: one small function for each known shape of a JSON schema.

A shape is known by its property names. Any other schema gets a plain value from `schema_values`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from random import Random
from typing import Any, cast

from pydantic import JsonValue

from serve_deployments.simulator.writer.chance import fraction
from serve_deployments.simulator.writer.programs import exercise, program, tests
from serve_deployments.simulator.writer.prompt import PromptReader
from serve_deployments.simulator.writer.prose import SentenceBank, rationale
from serve_deployments.simulator.writer.schema_values import SchemaUnsupported, schema_value


class Behaviour(StrEnum):
    NORMAL = "normal"
    EXCELLENT = "excellent"
    POOR = "poor"


# The lowest confidence in percent; the highest is 5 more.
_CONFIDENCE = {Behaviour.NORMAL: 75, Behaviour.EXCELLENT: 88, Behaviour.POOR: 60}
# Half the width by which a reviewer's grade differs from the text's own.
_NOISE = {Behaviour.NORMAL: 0.5, Behaviour.EXCELLENT: 0.25, Behaviour.POOR: 2.0}
_CRITERION_NOISE = 0.8
_TIE_BELOW = 0.15
# The share of programs that are right, at once and after a repair, and of issues that a revision accepts.
_RIGHT = {Behaviour.NORMAL: 0.75, Behaviour.EXCELLENT: 1.0, Behaviour.POOR: 0.0}
_REPAIRED = {Behaviour.NORMAL: 0.8, Behaviour.EXCELLENT: 1.0, Behaviour.POOR: 0.3}
_ACCEPTED = {Behaviour.NORMAL: 0.8, Behaviour.EXCELLENT: 0.95, Behaviour.POOR: 0.8}

# The property names of each known shape with properties that do not depend on each other.
_SHAPES = {
    frozenset(("reasoning", "answer", "confidence")),
    frozenset(("reasoning", "error", "answer", "confidence")),
    frozenset(("responses", "answer", "confidence")),
    frozenset(("reasoning", "choice")),
    frozenset(("agreements", "conflicts", "gaps")),
    frozenset(("reasoning", "code", "confidence")),
    frozenset(("reasoning", "tests")),
}
REVISED_HEADING = "## Changed after review"
TOLD_HEADING = "## What the tools say"
_TOLD_CHARS = 200
_WORD = re.compile(r"\w+")
_FIGURE = re.compile(r"\d[\d,.]*")
_VAGUE = re.compile(r"\b(?:somehow|maybe|probably|perhaps|later|things|etc|should be fine|good enough)\b")


@lru_cache(maxsize=1_024)
def quality(text: str) -> float:
    """The grade, 0.5 to 9.6, that reviewers mostly agree on.

    Figures and headings raise it, vague words lower it, and a stable hash of the words decides the rest.
    """
    lowered = text.lower()
    grade = 5.9 + 1.2 * (2.0 * fraction("quality", " ".join(_WORD.findall(lowered))) - 1.0)
    grade += min(1.2, 0.14 * len(_FIGURE.findall(text))) + 0.6 * min(3, text.count("\n## "))
    grade -= min(3.2, 0.8 * len(_VAGUE.findall(lowered)))
    return min(9.6, max(0.5, grade))


class OutputWriter:
    """Writes one completion: equal arguments give equal text. `words_max` bounds each text but code."""

    def __init__(
        self, prompt: PromptReader, behaviour: Behaviour, chance: Random, words_max: int | None = None
    ) -> None:
        self._prompt = prompt
        self._behaviour = behaviour
        self._chance = chance
        self._words_max = words_max
        self._noise_key = chance.getrandbits(64)
        self._sentences = SentenceBank(prompt.title, chance)
        # The properties that are written by themselves, in any of the shapes.
        self._fields: Mapping[str, Callable[[Mapping[str, Any]], JsonValue]] = {
            "reasoning": lambda _: self._short(self._sentences.reasoning()),
            "answer": self._answer,
            "confidence": lambda _: _CONFIDENCE[behaviour] + chance.randint(0, 5),
            "error": lambda _: self._short(self._sentences.issues(1)[0][0]),
            "responses": self._responses,
            "choice": lambda schema: self.choose(schema["enum"]),
            "code": lambda _: self._code(),
            "tests": lambda _: self._tests(),
            **dict.fromkeys(("agreements", "conflicts", "gaps"), self._points),
        }

    def document(self, schema: Mapping[str, Any]) -> JsonValue:
        try:
            properties: Mapping[str, Any] = schema.get("properties", {})
            if frozenset(properties) in _SHAPES:
                return {name: self._fields[name](value) for name, value in properties.items()}
            if set(properties) == {"issues", "verdict"}:
                return self._critique(properties["issues"].get("maxItems"))
            if set(properties) == {"notes_a", "notes_b", "winner", "margin"}:
                return self._pair()
            if properties and all(_is_scored(property_schema) for property_schema in properties.values()):
                return self._scores(properties)
            return self._plain(schema)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as exc:
            raise SchemaUnsupported(f"the schema is malformed: {exc!r}") from exc

    def _answer(self, schema: Mapping[str, Any]) -> JsonValue:
        if schema.get("type") == "string":
            return self._short(self.text())
        calling = schema["anyOf"][-1] if "anyOf" in schema else schema
        if set(calling.get("properties", ())) == {"calls"}:
            replying = schema["anyOf"][0]["properties"]["reply"] if calling is not schema else None
            return self._action(calling["properties"]["calls"]["items"]["anyOf"], replying)
        return self._plain(schema)

    def _action(self, tools: Sequence[Mapping[str, Any]], replying: Mapping[str, Any] | None) -> JsonValue:
        """The next of the calls that the conversation spells out, a line at once; without any, each tool once.

        When all have returned, it replies, if there is a schema of replies.
        """
        schemas = {tool["properties"]["name"]["enum"][0]: tool["properties"]["arguments"] for tool in tools}
        lines = self._prompt.called_lines(list(schemas))
        planned: list[list[JsonValue]] = [
            [{"name": name, "arguments": json.loads(arguments)} for name, arguments in calls] for calls in lines
        ]
        if not planned:
            # Equal for all members, as the calls of models that agree are.
            values = {name: schema_value(of, Random(name), lambda: self._prompt.title) for name, of in schemas.items()}
            planned = [[{"name": name, "arguments": value}] for name, value in values.items()]
        left = self._prompt.results
        for calls in planned:
            if left < len(calls):
                return {"calls": calls}
            left -= len(calls)
        return {"calls": planned[-1]} if replying is None else {"reply": self._answer(replying)}

    def _plain(self, schema: Mapping[str, Any]) -> JsonValue:
        return schema_value(schema, self._chance, lambda: self._short(self._sentences.sentence()))

    def choose(self, options: Sequence[str]) -> str:
        """The best candidate when all options are candidates' labels, else any option."""
        candidates = self._prompt.candidates
        if all(option in candidates for option in options):
            return max(options, key=lambda label: self._perceived(candidates[label]))
        return self._chance.choice(options)

    def text(self) -> str:
        """An answer, which ends with the first line of each tool's result."""
        told = "\n".join(f"- `{name}`: {line[:_TOLD_CHARS]}" for name, line in self._prompt.tool_results)
        return f"{self._text()}\n\n{TOLD_HEADING}\n\n{told}" if told else self._text()

    def _text(self) -> str:
        if self._prompt.own:
            return self._revised([fix for place, fix in enumerate(self._prompt.fixes) if fix and self._accepts(place)])
        match self._behaviour:
            case Behaviour.EXCELLENT:
                return self._sentences.long_answer()
            case Behaviour.POOR:
                return self._sentences.vague_answer()
            case Behaviour.NORMAL:
                return self._sentences.answer()

    def filler(self) -> str:
        return " ".join(self._sentences.steps(11))

    def _short(self, text: str) -> str:
        return text if self._words_max is None else " ".join(text.split(" ")[: self._words_max])

    # --- writing ---------------------------------------------------------------------------------------------------

    def _points(self, _: object) -> JsonValue:
        return [self._short(point) for point in self._sentences.steps(self._chance.randint(1, 3))]

    def _accepts(self, place: int) -> bool:
        return fraction("accepts", self._noise_key, place) < _ACCEPTED[self._behaviour]

    def _revised(self, fixes: Sequence[str]) -> str:
        own = self._prompt.own
        if self._prompt.fixes and not fixes:
            return own
        listed = "\n".join(f"- {fix}" for fix in fixes or self._sentences.steps(1))
        kept = own.split(REVISED_HEADING)[0] if own.count(REVISED_HEADING) > 1 else own
        return f"{kept.rstrip()}\n\n{REVISED_HEADING}\n\n{listed}"

    def _responses(self, schema: Mapping[str, Any]) -> JsonValue:
        responses: list[JsonValue] = []
        for place, fix in enumerate(self._prompt.fixes[: schema.get("maxItems")]):
            accepted = self._accepts(place)
            reason = f"Right, and changed: {fix}" if accepted else "The text already covers this."
            decision = "accept" if accepted else "reject"
            responses.append({"issue": place + 1, "decision": decision, "reason": self._short(reason)})
        return responses

    # --- reviewing -------------------------------------------------------------------------------------------------

    def _critique(self, issues_max: int | None) -> JsonValue:
        text = next(iter(self._prompt.candidates.values()), self._prompt.own)
        severities = self._severities(text)[:issues_max]
        issues: list[JsonValue] = []
        for severity, (claim, evidence, fix) in zip(severities, self._sentences.issues(len(severities)), strict=True):
            line = self._chance.choice([line for line in text.splitlines() if line] or ["the first line"])
            issue = {"where": " ".join(line.split()[:8]), "claim": claim, "evidence": evidence, "fix": fix}
            issues.append({"severity": severity, **{name: self._short(part) for name, part in issue.items()}})
        verdict = "reject" if "blocker" in severities else "revise" if "major" in severities else "accept"
        return {"issues": issues, "verdict": verdict}

    def _severities(self, text: str) -> list[str]:
        chance = self._chance
        if self._behaviour is Behaviour.POOR or REVISED_HEADING in text:
            return ["minor"] * chance.randint(0, 1)
        first = chance.choices(("blocker", "major", "minor"), (6, 75, 19))[0]
        further = chance.randint(0, 2) + (self._behaviour is Behaviour.EXCELLENT)
        return [first, *chance.choices(("major", "minor"), (3, 7), k=further)]

    def _perceived(self, text: str) -> float:
        noise = _NOISE[self._behaviour] * (2.0 * fraction("noise", self._noise_key, text) - 1.0)
        return quality(text) + noise

    def _scores(self, properties: Mapping[str, Any]) -> JsonValue:
        scores: dict[str, JsonValue] = {}
        for label, scored in properties.items():
            text = self._prompt.candidates.get(label, "")
            criteria: list[JsonValue] = []
            for entry in scored["properties"]["criteria"]["prefixItems"]:
                criterion: str = entry["properties"]["id"]["const"]
                noise = _CRITERION_NOISE * (2.0 * fraction("criterion", criterion, text) - 1.0)
                grade = min(10.0, max(0.0, self._perceived(text) + noise))
                criteria.append({"id": criterion, "rationale": self._short(rationale(grade)), "score": round(grade)})
            scores[label] = {"criteria": criteria}
        return scores

    def _pair(self) -> JsonValue:
        first, second = (self._perceived(self._prompt.candidates.get(label, "")) for label in ("A", "B"))
        gap = abs(first - second)
        return {
            "notes_a": self._short(rationale(first)),
            "notes_b": self._short(rationale(second)),
            "winner": "tie" if gap < _TIE_BELOW else "A" if first > second else "B",
            "margin": 1 if gap < 0.8 else 2 if gap < 1.8 else 3,
        }

    # --- code ------------------------------------------------------------------------------------------------------

    def _code(self) -> str:
        own = self._prompt.own
        right = self._chance.random() < (_REPAIRED if own else _RIGHT)[self._behaviour]
        name = self._prompt.entry_point
        return program(name, exercise(name, self._prompt.task), self._chance, right=right)

    def _tests(self) -> JsonValue:
        name, right = self._prompt.entry_point, 0.7 if self._behaviour is Behaviour.POOR else 1.0
        return [test for test in tests(name, exercise(name, self._prompt.task), self._chance, right=right)]


def _is_scored(schema: object) -> bool:
    return isinstance(schema, dict) and "criteria" in cast("dict[str, Any]", schema).get("properties", ())
