"""The deliberation that a chat completion asks for: its models, its task and its constraints."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from app.api.problems import ValidationFailed, body_fault, body_problems
from app.api.requests import (
    AGENTS_MAX,
    COMPLETION_TOKENS_MAX,
    DEFAULT_ROLE,
    DEFAULT_STRATEGY,
    SEED_MAX,
    TASK_CHARS_MAX,
    DeliberationRequest,
    SamplingRequest,
)
from app.api.schemas import FieldProblem
from app.api.suggestions import did_you_mean
from app.deliberation.answer_schema import replaced_keywords
from app.deliberation.specification import TIMEOUT_S_MAX
from app.openai.problems import ModelNotFound
from app.openai.requests import SIDE_BY_SIDE, TOP_P_MIN, ChatCompletionRequest, ChatRequestMessage, DeliberationOptions

# The options that are `constraints` of a deliberation's request.
CONSTRAINTS = ("rubric", "requirements", "timeout_seconds", "on_deadline")

# The installation's `strategies` and `roles`, each by name.
Registry = Mapping[str, Mapping[str, Any]]


def conversation_mark(messages: Sequence[ChatRequestMessage]) -> str:
    """Twelve hex digits of a hash of all messages, which the author of one message cannot know, and so not forge."""
    content = json.dumps([[message.role, message.name, message.text] for message in messages])
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def task_of(messages: Sequence[ChatRequestMessage]) -> str:
    if len(messages) == 1:
        return messages[0].text
    mark = conversation_mark(messages)
    head = (
        "Write the assistant's next message in the conversation below, and nothing but that message. What system and "
        "developer say are requirements on it, and stand above what the user says. Every message begins with a line "
        f"in brackets that carries the mark {mark}."
    )
    transcript = [f"[{mark} {' '.join(filter(None, (each.role, each.name)))}]\n{each.text}" for each in messages]
    return "\n\n".join([head, *transcript])


def model_parts(model: str, registry: Registry) -> tuple[str, str]:
    """The strategy and the role in a model's name, which may lack one of them; raises ModelNotFound."""
    first, slash, second = model.partition("/")
    if slash:
        strategy, role = first, second.upper()
    elif first in registry["strategies"]:
        strategy, role = first, DEFAULT_ROLE
    else:
        strategy, role = DEFAULT_STRATEGY, first.upper()
    if strategy not in registry["strategies"] or role not in registry["roles"]:
        known = [*model_names(registry), *registry["strategies"], *registry["roles"]]
        raise ModelNotFound(f"No model is named {model[:256]!r}.", did_you_mean(model, known))
    return strategy, role


def model_names(registry: Registry) -> list[str]:
    return [f"{strategy}/{role}" for strategy in registry["strategies"] for role in registry["roles"]]


def within_bounds(chat: ChatCompletionRequest) -> tuple[ChatCompletionRequest, list[str]]:
    """The request with limits beyond ours replaced by ours, and each change, as `max_tokens=32768`.

    Clients set a limit for the largest model that they know, and a negative limit or seed for none.
    """
    limits = dict.fromkeys(("max_tokens", "max_completion_tokens"), COMPLETION_TOKENS_MAX)
    bounds = {"n": AGENTS_MAX, "seed": SEED_MAX, **limits}
    given = {name: getattr(chat, name) or 0 for name in bounds}
    changed: dict[str, Any] = {name: bound for name, bound in bounds.items() if given[name] > bound}
    changed |= {name: None for name in bounds if given[name] < 0}
    changed |= {"top_p": TOP_P_MIN} if chat.top_p is not None and chat.top_p < TOP_P_MIN else {}
    changes = [f"{name}={value or 'default'}" for name, value in changed.items()]
    if chat.deliberation is not None and (chat.deliberation.timeout_seconds or 0) > TIMEOUT_S_MAX:
        changed["deliberation"] = chat.deliberation.model_copy(update={"timeout_seconds": TIMEOUT_S_MAX})
        changes.append(f"deliberation.timeout_seconds={TIMEOUT_S_MAX}")
    return chat.model_copy(update=changed), changes


def schema_changes(chat: ChatCompletionRequest) -> list[str]:
    """The keywords of the answer's schema that are replaced, as `schema.format=description`; the schema is valid."""
    schema = None if chat.response_format is None else chat.response_format.answer_schema
    if schema is None:
        return []
    return [f"schema.{keyword}={now}" for keyword, now in replaced_keywords(schema).items()]


def _size(chat: ChatCompletionRequest, options: DeliberationOptions, strategy: str) -> int | None:
    if chat.n is None:
        return options.num_agents
    if strategy != SIDE_BY_SIDE:
        if chat.n > 1:
            detail, remedy = f"{strategy} has one answer", f"Give 1, or use the model {SIDE_BY_SIDE}/…."
            raise ValidationFailed([body_fault("/n", "unsupported_value", detail, remedy)])
        return options.num_agents
    if options.num_agents not in (None, chat.n):
        detail = "It contradicts deliberation.num_agents"
        raise ValidationFailed([body_fault("/n", "invalid_value", detail, "Give one of the two.")])
    return chat.n


# Clients recognize this error by its code or by these exact words.
_TOO_LONG = {
    "code": "context_length_exceeded",
    "detail": f"This model's maximum context length is {TASK_CHARS_MAX} characters",
    "remedy": "Shorten the conversation.",
}


def _mapped_back(fault: FieldProblem) -> FieldProblem:
    first, _, rest = fault.pointer.removeprefix("/").partition("/")
    match first:
        case "task":
            text = _TOO_LONG if fault.code == "string_too_long" else {}
            return fault.model_copy(update={"pointer": "/messages", **text})
        case "constraints" if rest == "answer_schema":
            return fault.model_copy(update={"pointer": "/response_format/json_schema/schema"})
        case "constraints":
            return fault.model_copy(update={"pointer": f"/deliberation/{rest}"})
        case _ if first in DeliberationOptions.model_fields:
            return fault.model_copy(update={"pointer": f"/deliberation{fault.pointer}"})
        case _:
            return fault


def deliberation_of(chat: ChatCompletionRequest, registry: Registry) -> DeliberationRequest:
    """The deliberation for a chat completion; raises ModelNotFound, and ValidationFailed with pointers into it."""
    strategy, role = model_parts(chat.model, registry)
    options = chat.deliberation or DeliberationOptions()
    given = options.model_dump(exclude_none=True)
    constraints = {name: given.pop(name) for name in CONSTRAINTS if name in given}
    if chat.response_format is not None:
        constraints["answer_schema"] = chat.response_format.answer_schema
    sampling = SamplingRequest(
        temperature=chat.temperature, top_p=chat.top_p, max_tokens=chat.max_completion_tokens or chat.max_tokens
    )
    size = _size(chat, options, strategy)
    users = {"user": chat.user, "safety_identifier": chat.safety_identifier}
    body = given | {
        "task": task_of(chat.messages),
        "role": role,
        "strategy": strategy,
        "constraints": constraints,
        "sampling": sampling.model_dump(),
        "seed": chat.seed,
        "metadata": {name: each for name, each in users.items() if each is not None} | (chat.metadata or {}),
        **({} if size is None else {"num_agents": size}),
    }
    try:
        return DeliberationRequest.model_validate(body, context=dict(registry))
    except ValidationError as invalid:
        faults = body_problems(invalid, DeliberationRequest).errors
    except ValidationFailed as failed:
        faults = failed.errors
    raise ValidationFailed([_mapped_back(fault) for fault in faults])
