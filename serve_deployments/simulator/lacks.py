"""The fields that a simulated engine lacks of vLLM, and the refusals of engines that are unlike vLLM."""

import json
from collections.abc import Iterator
from enum import StrEnum

from serve_deployments.simulator.server.exchange import RequestRefused
from serve_deployments.simulator.server.requests import CompletionRequest, Conversation


class Lack(StrEnum):
    JSON_SCHEMA = "json-schema"
    JSON_OBJECT = "json-object"
    RESPONSE_FORMAT = "response-format"
    MAX_TOKENS = "max-tokens"
    STREAM_OPTIONS = "stream-options"
    SEED = "seed"
    TEMPERATURE = "temperature"
    SYSTEM = "system"
    USAGE = "usage"
    TOOLS = "tools"


LACK_HELP = (
    "json-schema and json-object (refused as response_format), response-format (ignored), max-tokens (wants "
    "max_completion_tokens), stream-options, seed, temperature, system (messages of that role), usage (reports none), "
    "tools (refused, as by vLLM without a tool parser)."
)


def refuse_lacking(lacks: tuple[Lack, ...], request: CompletionRequest, conversation: Conversation) -> None:
    for lack in lacks:
        for refusal in _refusals(lack, request, conversation):
            raise refusal


def _refusals(lack: Lack, request: CompletionRequest, conversation: Conversation) -> Iterator[RequestRefused]:
    form = request.response_format and request.response_format.type
    match lack:
        case Lack.JSON_SCHEMA | Lack.JSON_OBJECT if form == lack.replace("-", "_"):
            # OpenAI refuses the form with this text.
            text = f"Invalid parameter: 'response_format' of type '{form}' is not supported with this model."
            yield RequestRefused(400, text, kind="invalid_request_error")
        case Lack.MAX_TOKENS if request.max_tokens is not None:
            text = "Unsupported parameter: 'max_tokens' is not supported with this model."
            yield RequestRefused(400, text, param="max_tokens", kind="invalid_request_error")
        case Lack.TEMPERATURE if request.temperature not in (None, 1.0):
            text = f"Unsupported value: 'temperature' does not support {request.temperature} with this model."
            yield RequestRefused(400, text, param="temperature", kind="invalid_request_error")
        case Lack.STREAM_OPTIONS if request.stream_options is not None:
            yield _not_permitted("stream_options")
        case Lack.SEED if request.seed is not None:
            yield _not_permitted("seed")
        case Lack.TOOLS if request.tools:
            # vLLM's words.
            text = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            yield RequestRefused(400, text)
        case Lack.SYSTEM if any(role == "system" for role, _ in conversation):
            # As a chat template raises it.
            yield RequestRefused(400, "System role not supported")
        case _:
            return


def _not_permitted(name: str) -> RequestRefused:
    refused = RequestRefused(422, f"{name} is not permitted")
    fault = {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted"}
    refused.body = json.dumps({"detail": [fault]}).encode()
    return refused
