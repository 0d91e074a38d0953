"""Seeded minds: agents without a model, whose virtues are known, so that theory says what a council of them gives.

A mind reads what an engine would be sent, the prompt, and nothing else: it finds the candidates behind their letters,
and writes the form that was asked for. So what is counted here went through the prompts, the letters and the ballots of
the strategy itself. Chance comes from the seeds alone, whatever the order of the calls.
"""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from app.deliberation.calls import Call
from app.deliberation.specification import Purpose
from app.quality.closed_forms import beta_shape

RIGHT = "42"
WRONG = ("41", "43", "44", "45")

# What stands in a fence, under the heading above it.
_FENCED = re.compile(
    r"^(?P<heading>[^\n]+):\n<<<peer-text (?P<mark>[0-9a-f]{12})>>>\n(?P<text>.*?)\n<<<end-of-peer-text (?P=mark)>>>$",
    re.DOTALL | re.MULTILINE,
)
_LETTERED = "Candidate "
_OWN, _OWN_CODE = "Your answer", "Your program"
_GOOD, _BAD = 8, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentModel:
    """What minds are like; every rate is a probability.

    `accuracy` p and `correlation` ρ of drafts (`common_cause`: by one cause for all, else by a difficulty that is
    drawn from a beta law); `wrong_answers` equally likely wrong ones. `fix` u and `harm` h of a revision, or of a
    debater's turn; `detect` and `alarm`: how often a critic demands a revision of a wrong and of a right text.
    `writer` w: how often a text that is fused from others is right, where one of these is: a writer invents nothing.
    `tester` t: how often a written test is right.
    `judge` q of who compares; b is `pair_bias` where two are compared and `place_bias` in a list; `one_jury`:
    reviewers share one mind. `planted` drafts by agent replace chance: an answer, or None for a call that fails.
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
    """The texts in a prompt's fences by the heading above each; where one repeats, the last."""
    return {found["heading"]: found["text"] for found in _FENCED.finditer(call.messages[-1].content)}


def candidates(call: Call) -> dict[str, str]:
    """The candidates in a prompt by letter, in the order in which they are shown."""
    return {
        heading.removeprefix(_LETTERED): text for heading, text in fenced(call).items() if heading.startswith(_LETTERED)
    }


class SimulatedAgents:
    """All minds of one deliberation. Deterministic: the same nature, seed and call give the same answer."""

    def __init__(self, nature: AgentModel, seed: int) -> None:
        self.nature = nature
        self.seed = seed
        self.accuracy = self._accuracy()

    def _accuracy(self) -> float:
        """How likely each agent, alone, is right on this question."""
        nature = self.nature
        if nature.correlation == 0.0:
            return nature.accuracy
        if not nature.common_cause:
            shape = beta_shape(nature.accuracy, nature.correlation)
            return random.Random(f"difficulty/{self.seed}").betavariate(*shape)
        if chance("cause", self.seed) >= nature.correlation:
            return nature.accuracy
        return float(chance("cause decides", self.seed) < nature.accuracy)

    def say(self, call: Call, purpose: Purpose) -> str | None:
        """The text of a call's answer, or of the report on a check; None when the call fails."""
        match call.output.kind:
            case "answer" if purpose == "propose":
                return _said(self._draft(call), "answer")
            case "program":
                first = purpose == "propose"
                return _said(self._draft(call) if first else self._changed(call, fenced(call)[_OWN_CODE]), "code")
            case "tests":
                return self._tests(call)
            case "report":
                return _report(call)
            case "answer" if purpose == "fuse":
                return self._fused(call)
            case "analysis":
                return _form(agreements=[], conflicts=[], gaps=[])
            case "critique":
                return self._critique(call)
            case "revision":
                return _form(responses=[], answer=self._changed(call, fenced(call)[_OWN]), confidence=50)
            case "turn":
                return _form(reasoning="", error="a step", answer=self._turned(call), confidence=50)
            case "choice":
                return self._choice(call)
            case "score":
                return self._ballot(call)
            case "pair":
                return self._pair(call)
            case "answer":
                raise ValueError(f"a seeded mind writes no answer to {purpose}")

    def _draft(self, call: Call) -> str | None:
        """An agent's first answer; None where the call is planted to fail."""
        # By agent and not by call: the same agents draft the same, whatever the waves in which they are asked.
        key = ("draft", self.seed, call.agent_id)
        if self.nature.planted is not None:
            return self.nature.planted.get(call.agent_id)
        return RIGHT if chance(*key) < self.accuracy else self._wrong(*key)

    def _tests(self, call: Call) -> str:
        """One test, which is right as often as its writer: it then passes the right program, else a wrong one."""
        right = chance("test", call.seed) < self.nature.tester
        code = RIGHT if right else self._wrong(call.seed)
        return _form(reasoning="", tests=[{"name": "result", "code": code}])

    def _wrong(self, *key: str | int) -> str:
        return WRONG[int(chance("which", *key) * self.nature.wrong_answers)]

    def _changed(self, call: Call, text: str) -> str:
        """A text after another look at it: a wrong one mended with u, a right one spoilt with h."""
        if text == RIGHT:
            return self._wrong(call.seed) if chance("harm", call.seed) < self.nature.harm else text
        return RIGHT if chance("fix", call.seed) < self.nature.fix else text

    def _fused(self, call: Call) -> str:
        right = RIGHT in candidates(call).values() and chance("fuse", call.seed) < self.nature.writer
        return _form(reasoning="", answer=RIGHT if right else self._wrong(call.seed), confidence=50)

    def _turned(self, call: Call) -> str:
        """A debater's next answer: one that it has read, or its own."""
        own, others = fenced(call)[_OWN], list(candidates(call).values())
        if own == RIGHT:
            return others[0] if chance("harm", call.seed) < self.nature.harm else own
        return RIGHT if RIGHT in others and chance("fix", call.seed) < self.nature.fix else own

    def _choice(self, call: Call) -> str:
        """The most consistent text: one of the answer that most candidates give, the first of equals."""
        shown = candidates(call)
        texts = list(shown.values())
        return _form(reasoning="", choice=max(shown, key=lambda letter: texts.count(shown[letter])))

    def _critique(self, call: Call) -> str:
        (text,) = candidates(call).values()
        rate = self.nature.alarm if text == RIGHT else self.nature.detect
        if chance("critique", call.seed) >= rate:
            return _form(issues=[], verdict="accept")
        issue = {"severity": "major", "where": "the answer", "claim": "wrong", "evidence": "", "fix": ""}
        return _form(issues=[issue], verdict="revise")

    def _true(self, call: Call) -> bool:
        """Whether a reviewer tells right from wrong; if not, it takes the one for the other."""
        return chance("jury", self.seed if self.nature.one_jury else call.seed) < self.nature.judge

    def _ballot(self, call: Call) -> str:
        true = self._true(call)
        shown = candidates(call)
        scores = {letter: _GOOD if (text == RIGHT) == true else _BAD for letter, text in shown.items()}
        # Of two equal ones the first shown then leads with ½+b: with 2b it is put above, else they stay equal.
        if chance("place", call.seed) < 2 * self.nature.place_bias:
            scores[next(iter(shown))] += 1
        return json.dumps(
            {
                letter: {"criteria": [{"id": each, "rationale": "", "score": score} for each in call.output.criteria]}
                for letter, score in scores.items()
            }
        )

    def _pair(self, call: Call) -> str:
        nature = self.nature
        first, second = (text == RIGHT for text in candidates(call).values())
        first_wins = 0.5 if first == second else nature.judge if first else 1 - nature.judge
        winner = "A" if chance("pair", call.seed) < first_wins + nature.pair_bias else "B"
        return _form(notes_a="", notes_b="", winner=winner, margin=1)


def _said(text: str | None, field: str) -> str | None:
    return None if text is None else _form(reasoning="", **{field: text}, confidence=50)


def _report(call: Call) -> str:
    """What an ideal sandbox says: a program passes a test that expects just what it gives. Nothing is run."""
    assert call.check is not None, "a report is on a check"
    code = call.check.code
    return _form(
        outcomes=[
            {"name": test.name, "passed": test.code == code, "reason": "", "duration_ms": 0}
            for test in call.check.tests
        ]
    )


def _form(**fields: object) -> str:
    return json.dumps(fields)
