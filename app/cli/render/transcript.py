"""A deliberation as one Markdown document to keep: what was asked, every answer of every stage, and the verdict.

Foreign text stands in block quotes or fences, so that no answer can pass for a part of the document.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, cast

from pydantic_core import from_json

from app.api.schemas import Deliberation, Proposal
from app.cli.render.lanes import is_simulated, stage_text
from app.cli.render.lines import tool_text
from app.cli.render.report import (
    SIMULATED,
    TALLY_CHARS_MAX,
    agreement_text,
    asked,
    cited,
    confidence,
    degraded_text,
    dissent,
    overview,
    stands_in,
    votes_text,
)
from app.cli.render.text import counted, figure, line_of, printable, prose, seconds
from app.deliberation.actions import read_action, told
from app.deliberation.facts import Action, CallFinished, Fact, PlannedCall, StageClosed, StageOpened, ToolUsed, Verdict
from app.deliberation.fold import TERMINAL
from app.deliberation.outputs import ANSWER_FIELDS
from app.deliberation.specification import Evidence
from app.webhooks.resources import Delivery

EVENT_TYPES = "stage.opened,tool.used,call.finished,stage.closed"
# The field of each form that is shown alone; its name stands before its text.
_SHOWN: Mapping[str, str] = {**ANSWER_FIELDS, "tests": "tests"}
_TITLES = {"answer": "Answer", "code": "Program", "tests": "Tests"}
USE_CHARS_MAX = 200
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~&])")


def _inline(text: str) -> str:
    return _MARKUP.sub(r"\\\1", line_of(text))


def _quoted(text: str, *, line_breaks: bool = False) -> str:
    """A block quote; with `line_breaks` each line stays one where the text is no Markdown."""
    end = "  " if line_breaks else ""
    lines = (line.rstrip() for line in printable(text).strip().split("\n"))
    return "\n".join(f"> {line}{end}" if line else ">" for line in lines)


def _fenced(text: str, language: str = "python") -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{printable(text).rstrip()}\n{fence}"


def _text_of(candidate: str) -> str:
    author, _, version = candidate.partition("#")
    return f"{author}'s text {int(version) + 1}" if version else author


def _evidence(shown: Sequence[Evidence]) -> Iterator[str]:
    texts = [(evidence, evidence.text) for evidence in shown if evidence.text is not None]
    if texts:
        yield "## Evidence\n"
    for evidence, text in texts:
        yield f"### {_inline(evidence.id)}: {_inline(evidence.title)}\n"
        yield f"{_quoted(text)}\n"


def _fields(text: str) -> dict[str, Any]:
    try:
        document = from_json(text)
    except ValueError:
        return {}
    return cast("dict[str, Any]", document) if isinstance(document, dict) else {}


def _action(action: Action) -> str:
    """The calls, one on a line, or the reply."""
    return _fenced(told(action), "text") if action.calls else _quoted(told(action))


def _answer(kind: str, fields: dict[str, Any], *, acts: bool) -> Iterator[str]:
    """The reasoning, then the answer, each below its name. The confidence stands in the heading."""
    name = _SHOWN[kind]
    answer = fields[name]
    if before := {key: value for key, value in fields.items() if key not in (name, "confidence")}:
        # A reply to an issue is a paragraph of its own.
        text = prose(json.dumps(before), line_end="\n\n")
        if text.strip():
            yield f"{'Replies to issues' if 'responses' in before else 'Reasoning'}:\n\n{_quoted(text)}\n"
    yield f"{_TITLES[name]}:\n"
    if acts:
        yield f"{_action(read_action(json.dumps(answer)))}\n"
    elif name == "answer":
        yield f"{_quoted(answer) if isinstance(answer, str) else _fenced(json.dumps(answer, indent=2), 'json')}\n"
    else:
        yield f"{_fenced(answer if isinstance(answer, str) else prose(json.dumps({name: answer})))}\n"


def _uses(uses: Sequence[ToolUsed]) -> Iterator[str]:
    if uses:
        yield "Tools:\n"
        yield from (
            f"- {_inline(tool_text(use))}; arguments {_inline(line_of(use.arguments, USE_CHARS_MAX))}" for use in uses
        )
        yield ""


def _call(
    call: PlannedCall | None, finished: CallFinished, uses: Sequence[ToolUsed], *, late: bool, acts: bool
) -> Iterator[str]:
    kind = "answer" if call is None else call.output
    fields = _fields(finished.text or "")
    about = [_inline(finished.role)]
    about += [_inline(finished.model)] if finished.model else []
    about += [f"{finished.usage.tokens:,} tokens", seconds(finished.duration_ms / 1_000)]
    about += [f"confidence {fields['confidence']} %"] if isinstance(fields.get("confidence"), int) else []
    about += ["late: not counted"] if late else []
    yield f"### {finished.agent_id} · {finished.call_id}\n"
    yield f"{', '.join(about)}\n"
    if call is not None and call.labels:
        yield f"Shown: {', '.join(f'{label} is {_text_of(shown)}' for label, shown in call.labels.items())}\n"
    yield from _uses(uses)
    if finished.problem is not None:
        yield f"Failed: {finished.problem.code}: {_inline(finished.problem.detail)}\n"
    elif kind in _SHOWN and _SHOWN[kind] in fields:
        yield from _answer(kind, fields, acts=acts)
    else:
        yield f"{_quoted(prose(finished.text or ''), line_breaks=True)}\n"


def _stages(facts: Sequence[Fact], *, acts: bool) -> Iterator[str]:
    closed = {fact.stage: fact for fact in facts if isinstance(fact, StageClosed)}
    finished = [fact for fact in facts if isinstance(fact, CallFinished)]
    used = [fact for fact in facts if isinstance(fact, ToolUsed)]
    for stage in (fact for fact in facts if isinstance(fact, StageOpened)):
        calls = {call.call_id: call for call in stage.calls}
        end = closed.get(stage.stage)
        yield f"## Stage {stage.stage}: {stage_text(stage.purpose, stage.round)}\n"
        for fact in finished:
            if fact.stage == stage.stage:
                late = end is not None and fact.answered and fact.call_id not in end.seen
                uses = [use for use in used if use.call_id == fact.call_id]
                yield from _call(calls.get(fact.call_id), fact, uses, late=late, acts=acts)
        answered = {fact.call_id for fact in finished}
        if missing := [call_id for call_id in calls if call_id not in answered]:
            yield f"Without an answer: {', '.join(missing)}\n"


def _rankings(verdict: Verdict) -> Iterator[str]:
    if verdict.ranking:
        yield "| rank | agent | score |\n|---|---|---|"
        yield from (
            f"| {standing.rank} | {standing.agent_id} | {figure(standing.score, '.3f')} |"
            for standing in verdict.ranking
        )
        yield ""
    if verdict.tally:
        yield "| votes | answer | agents |\n|---|---|---|"
        for tallied in verdict.tally:
            answer = _inline(line_of(tallied.answer, TALLY_CHARS_MAX))
            yield f"| {votes_text(tallied)} | {answer} | {', '.join(tallied.agents)} |"
        yield ""


def _verdict(deliberation: Deliberation) -> Iterator[str]:
    verdict = deliberation.verdict
    title = "Verdict" if verdict is not None else "End" if deliberation.status in TERMINAL else "So far"
    yield f"## {title}: {deliberation.status}\n"
    if deliberation.degraded is not None:
        yield from (f"Degraded: {_inline(degraded_text(reason))}\n" for reason in deliberation.degraded.reasons)
    if deliberation.problem is not None:
        yield f"{deliberation.problem.code}: {_inline(deliberation.problem.detail)}\n"
    if verdict is None:
        return
    yield from _rankings(verdict)
    cites = [f"cites {cited(citation)}" for citation in verdict.citations]
    facts = [confidence(verdict), *map(dissent, verdict.dissent), *cites]
    yield f"{'; '.join(filter(None, facts))}\n"
    if agreed := agreement_text(deliberation):
        yield f"{agreed}\n"
    if verdict.content is not None:
        author = verdict.winner or verdict.call_id
        title = f"The council's answer{f', by {author}' if author else ''}"
        yield f"### {'In place of an answer' if stands_in(verdict) else title}\n"
        if stands_in(verdict):
            yield f"{_fenced(verdict.content, 'text')}\n"
        elif verdict.action is not None:
            yield f"{_action(verdict.action)}\n"
        else:
            programs = any(proposal.checks for proposal in deliberation.proposals)
            yield f"{_fenced(verdict.content) if programs else _quoted(verdict.content)}\n"


def _checks(proposals: Sequence[Proposal]) -> Iterator[str]:
    checked = [proposal for proposal in proposals if proposal.checks]
    if checked:
        yield "## Checks\n"
    for proposal in checked:
        yield f"### {proposal.agent_id}\n"
        for check in proposal.checks:
            reason = f": {_inline(check.reason)}" if check.reason else ""
            yield f"- {'passed' if check.passed else 'failed'} {_inline(check.name)} ({check.duration_ms} ms){reason}"
        yield ""


def _deliveries(deliveries: Sequence[Delivery]) -> Iterator[str]:
    if deliveries:
        yield "## Deliveries\n"
        yield from (f"- {delivery_line(delivery)}" for delivery in deliveries)
        yield ""


def delivery_line(delivery: Delivery) -> str:
    made = len(delivery.attempts)
    line = f"{delivery.id} {delivery.type}: {delivery.status}, {counted(made, 'attempt')}"
    if delivery.attempts and (problem := delivery.attempts[-1].problem) is not None:
        line += f", the last failed: {problem.code}"
    if delivery.next_attempt_at is not None:
        line += f", the next at {delivery.next_attempt_at:%Y-%m-%d %H:%M:%S} UTC"
    return line + (", one more is requested" if delivery.redelivering else "")


def _cost(deliberation: Deliberation) -> Iterator[str]:
    usage = deliberation.usage
    calls = counted(usage.calls, "engine call")
    prompt = f"{usage.prompt_tokens:,} prompt tokens, {usage.cached_tokens:,} of them cached"
    yield f"{calls}, {prompt}, {usage.completion_tokens:,} completion tokens" + (
        f", cost {usage.cost}" if usage.cost else ""
    )
    if any(is_simulated(proposal.model) for proposal in deliberation.proposals):
        yield f"\n{SIMULATED}"


def transcript(deliberation: Deliberation, facts: Sequence[Fact], deliveries: Sequence[Delivery]) -> str:
    """The document; `facts` are the stages and calls in the order of the log."""
    said = [*asked(deliberation)]
    names = [""] if len(said) == 1 else [f"{name.capitalize()}:\n\n" for name, _ in said]
    told_task = (f"{name}{_quoted(text)}\n" for name, (_, text) in zip(names, said, strict=True))
    head = [f"# Deliberation {deliberation.id}\n", *told_task]
    about = dict[str, list[str]]()
    for name, text in overview(deliberation):
        about.setdefault(name, []).append(text)
    listed = [f"- {name}: {_inline('; '.join(texts))}" for name, texts in about.items()]
    parts = chain(
        *(
            head,
            listed,
            [""],
            _evidence(deliberation.evidence),
            _stages(facts, acts=deliberation.constraints.actions is not None),
            _checks(deliberation.proposals),
        ),
        *(_verdict(deliberation), _deliveries(deliveries), _cost(deliberation)),
    )
    return "\n".join(parts)
