"""How engines that are unlike vLLM refuse what they lack."""

import json
from collections.abc import Iterator

from serve_deployments.simulator.lacks import Lack
from serve_deployments.simulator.server.exchange import RequestRefused
from serve_deployments.simulator.server.requests import CompletionRequest, Conversation


def refuse_lacking(lacks: tuple[Lack, ...], request: CompletionRequest, conversations: list[Conversation]) -> None:
    """Raise RequestRefused for the first thing in the request that the engine lacks."""
    for lack in lacks:
        for refusal in _refusals(lack, request, conversations):
            raise refusal


def _refusals(lack: Lack, request: CompletionRequest, conversations: list[Conversation]) -> Iterator[RequestRefused]:
    form = request.response_format and request.response_format.type
    match lack:
        case Lack.JSON_SCHEMA | Lack.JSON_OBJECT if form == lack.replace("-", "_"):
            # As OpenAI refuses it.
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
        case Lack.N if request.sequences > 1:
            yield _not_permitted("n")
        case Lack.SYSTEM if any(role == "system" for conversation in conversations for role, _ in conversation):
            # As a chat template raises it.
            yield RequestRefused(400, "System role not supported")
        case _:
            return


def _not_permitted(name: str) -> RequestRefused:
    """422 as FastAPI gives it for a closed model."""
    refused = RequestRefused(422, f"{name} is not permitted")
    fault = {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted"}
    refused.body = json.dumps({"detail": [fault]}).encode()
    return refused
