"""Simulated agents: they have known error rates instead of a model, so closed forms predict their council's results.

A simulated agent reads only the prompt that an engine would get. It finds the lettered candidates there and writes the
required form, so the measurements cover the strategy's prompts, letters and ballots. Randomness depends on the seeds
alone, and not on the order of the calls.
"""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from app.deliberation.calls import Call
from app.deliberation.specification import Purpose
from benchmarks.quality.closed_forms import beta_shape

RIGHT = "42"
WRONG = ("41", *map(str, range(43, 62)))

# The client's tool of actions.
ACTION_TOOL = "press"

# A fenced text with the heading above it.
_FENCED = re.compile(
    r"^(?P<heading>[^\n]+):\n<<<peer-text (?P<mark>[0-9a-f]{12})>>>\n(?P<text>.*?)\n<<<end-of-peer-text (?P=mark)>>>$",
    re.DOTALL | re.MULTILINE,
)
_LETTERED = "Candidate "
_OWN_LETTER = re.compile(r"^Candidate ([A-Z]+) is your own earlier answer", re.MULTILINE)
_OWN_CODE = "Your program"
_GOOD, _BAD = 8, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentModel:
    """The rates of simulated agents; each is a probability.

    Drafts: `accuracy` p and `correlation` ρ, either by one `common_cause` or by a beta-distributed difficulty; there
    are `wrong_answers` equally likely wrong answers. `planted` drafts by agent replace them; None is a failed call.
    Revisions and debate turns: `fix` u of wrong texts and `harm` h of right ones. Critics: `detect` and `alarm` are the
    rates at which they demand a revision of a wrong and of a right text. `writer` w: a fused text is right, provided
    that a candidate is. `tester` t: a written test is right. `judge` q: a reviewer compares rightly; the position bias
    b is `pair_bias` in pairs and `place_bias` in lists. With `one_jury` all reviewers judge alike.
    """

    accuracy: float = 0.7
    correlation: float = 0.0
    common_cause: bool = False
    wrong_answers: int = 1
    fix: float = 0.0
    harm: float = 0.0
    detect: float = 1.0
    alarm: float = 1.0
    writer: float = 1.0
    tester: float = 1.0
    judge: float = 1.0
    pair_bias: float = 0.0
    place_bias: float = 0.0
    one_jury: bool = False
    planted: Mapping[str, str | None] | None = None


def chance(*key: str | int) -> float:
    """A number in [0, 1) that depends on the key alone."""
    digest = sha256("/".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:7]) / 2**56


def fenced(call: Call) -> dict[str, str]:
    """The fenced texts of a prompt by heading; of a repeated heading the last one."""
    return {found["heading"]: found["text"] for found in _FENCED.finditer(call.messages[-1].content)}


def candidates(call: Call) -> dict[str, str]:
    """The candidates in a prompt by letter, in their order."""
    return {
        heading.removeprefix(_LETTERED): text for heading, text in fenced(call).items() if heading.startswith(_LETTERED)
    }


class SimulatedAgents:
    """All agents of one deliberation. Deterministic: the same model, seed and call give the same answer."""

    def __init__(self, model: AgentModel, seed: int) -> None:
        self.model = model
        self.seed = seed
        self.accuracy = self._accuracy()

    def _accuracy(self) -> float:
        """The probability that an agent alone is right on this question."""
        model = self.model
        if model.correlation == 0.0:
            return model.accuracy
        if not model.common_cause:
            shape = beta_shape(model.accuracy, model.correlation)
            return random.Random(f"difficulty/{self.seed}").betavariate(*shape)
        if chance("cause", self.seed) >= model.correlation:
            return model.accuracy
        return float(chance("cause decides", self.seed) < model.accuracy)

    def answer(self, call: Call, purpose: Purpose) -> str | None:
        """The text of the call's answer, or the report on a check; None for a failed call."""
        match call.output.kind:
            case "answer" if purpose == "propose":
                return _draft_form(self._draft(call), "answer", is_action=call.output.is_action)
            case "program":
                first = purpose == "propose"
                return _draft_form(self._draft(call) if first else self._changed(call, fenced(call)[_OWN_CODE]), "code")
            case "tests":
                return self._tests(call)
            case "report":
                return _report(call)
            case "fusion":
                return self._fused(call)
            case "analysis":
                return _form(agreements=[], conflicts=[], gaps=[])
            case "critique":
                return self._critique(call)
            case "revision":
                return _form(responses=[], answer=self._changed(call, candidates(call)["A"]), confidence=50)
            case "turn":
                return _form(reasoning="", error="a step", answer=self._turned(call), confidence=50)
            case "choice":
                return self._choice(call)
            case "score":
                return self._ballot(call)
            case "pair":
                return self._pair(call)
            case "answer":
                raise ValueError(f"a simulated agent does not answer a call to {purpose}")

    def _draft(self, call: Call) -> str | None:
        """An agent's first answer; None for a planted failure."""
        # Keyed by agent and not by call, so that drafts do not depend on the waves in which agents are asked.
        key = ("draft", self.seed, call.agent_id)
        if self.model.planted is not None:
            return self.model.planted.get(call.agent_id)
        return RIGHT if chance(*key) < self.accuracy else self._wrong(*key)

    def _tests(self, call: Call) -> str:
        """One test; a right one passes the right program, a wrong one passes a wrong program."""
        right = chance("test", call.seed) < self.model.tester
        expected = RIGHT if right else self._wrong(call.seed)
        return _form(reasoning="", tests=[{"name": "result", "call": "solve", "expected": expected}])

    def _wrong(self, *key: str | int) -> str:
        return WRONG[int(chance("which", *key) * self.model.wrong_answers)]

    def _changed(self, call: Call, text: str) -> str:
        """A revised text: a wrong one becomes right with u, a right one wrong with h."""
        if text == RIGHT:
            return self._wrong(call.seed) if chance("harm", call.seed) < self.model.harm else text
        return RIGHT if chance("fix", call.seed) < self.model.fix else text

    def _fused(self, call: Call) -> str:
        right = RIGHT in candidates(call).values() and chance("fuse", call.seed) < self.model.writer
        return _form(reasoning="", answer=RIGHT if right else self._wrong(call.seed), confidence=50)

    def _turned(self, call: Call) -> str:
        """A debater's next answer: a candidate's, or its own."""
        others = candidates(call)
        # The last one: a text may hold the same words.
        own = others.pop(_OWN_LETTER.findall(call.messages[-1].content)[-1])
        if own == RIGHT:
            return next(iter(others.values())) if chance("harm", call.seed) < self.model.harm else own
        return RIGHT if RIGHT in others.values() and chance("fix", call.seed) < self.model.fix else own

    def _choice(self, call: Call) -> str:
        """Chooses the first candidate with the most frequent answer."""
        shown = candidates(call)
        texts = list(shown.values())
        return _form(reasoning="", choice=max(shown, key=lambda letter: texts.count(shown[letter])))

    def _critique(self, call: Call) -> str:
        (text,) = candidates(call).values()
        rate = self.model.alarm if text == RIGHT else self.model.detect
        if chance("critique", call.seed) >= rate:
            return _form(issues=[], verdict="accept")
        issue = {"severity": "major", "where": "the answer", "claim": "wrong", "evidence": "", "fix": ""}
        return _form(issues=[issue], verdict="revise")

    def _ballot(self, call: Call) -> str:
        # A reviewer that does not judge rightly mistakes right for wrong.
        rightly = chance("jury", self.seed if self.model.one_jury else call.seed) < self.model.judge
        shown = candidates(call)
        scores = {letter: _GOOD if (text == RIGHT) == rightly else _BAD for letter, text in shown.items()}
        # The first of two equal ones then leads with ½+b: it is raised with 2b, and otherwise they tie.
        if chance("place", call.seed) < 2 * self.model.place_bias:
            scores[next(iter(shown))] += 1
        return json.dumps(
            {
                letter: {"criteria": [{"id": each, "rationale": "", "score": score} for each in call.output.criteria]}
                for letter, score in scores.items()
            }
        )

    def _pair(self, call: Call) -> str:
        model = self.model
        first, second = (text == RIGHT for text in candidates(call).values())
        first_wins = 0.5 if first == second else model.judge if first else 1 - model.judge
        winner = "A" if chance("pair", call.seed) < first_wins + model.pair_bias else "B"
        return _form(notes_a="", notes_b="", winner=winner, margin=1)


def _draft_form(text: str | None, field: str, *, is_action: bool = False) -> str | None:
    if text is None:
        return None
    action = {"calls": [{"name": ACTION_TOOL, "arguments": {"value": int(text)}}]} if is_action else text
    return _form(reasoning="", **{field: action}, confidence=50)


def _report(call: Call) -> str:
    """The report of an ideal sandbox: a program passes a test that expects exactly its result. Nothing is run."""
    assert call.check is not None, "a report answers a check"
    code = call.check.code
    return _form(
        outcomes=[
            {"name": test.name, "passed": test.expected == code, "reason": "", "duration_ms": 0}
            for test in call.check.tests
        ]
    )


def _form(**fields: object) -> str:
    return json.dumps(fields)
