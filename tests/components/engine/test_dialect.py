import json

import pytest

from serve_deployments.engine.request_body import Dialect, refused_fields


def error(message: str, **more: object) -> str:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", **more}})


def closed(*fields: str) -> str:
    faults = [
        {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted"} for name in fields
    ]
    return json.dumps({"detail": faults})


FORBIDDEN = (
    "[{'type': 'extra_forbidden', 'loc': ('body', 'seed'), 'msg': 'Extra inputs are not permitted', 'input': 42}]"
)
LITERAL = (
    "1 validation error:\n  {'type': 'literal_error', 'loc': ('body', 'response_format', 'type'), "
    "'msg': \"Input should be 'text' or 'json_object'\", 'input': 'json_schema'}"
)
REFUSALS: dict[str, tuple[int, str, set[str]]] = {
    "OpenAI, max_tokens": (
        400,
        error("Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'."),
        {"max_tokens"},
    ),
    "OpenAI, temperature": (
        400,
        error("Unsupported value: 'temperature' does not support 0.7. Only the default (1) value is supported."),
        {"temperature"},
    ),
    "OpenAI, no schemas": (
        400,
        error("Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."),
        {"response_format"},
    ),
    "OpenAI, another dialect of schemas": (
        400,
        error("Invalid schema for response_format 'score': 'prefixItems' is not permitted.", param="response_format"),
        {"response_format"},
    ),
    "LiteLLM": (
        400,
        error("litellm.UnsupportedParamsError: ollama does not support parameters: ['response_format', 'seed']"),
        {"response_format", "seed"},
    ),
    "llama.cpp": (400, error("Failed to initialize samplers: failed to parse grammar", code=400), {"response_format"}),
    "LM Studio": (
        400,
        json.dumps({"error": "'response_format.type' must be 'json_schema' or 'text'"}),
        {"response_format"},
    ),
    "llama-cpp-python": (500, error(LITERAL), {"response_format"}),
    "DeepSeek": (400, error("This response_format type is unavailable now"), {"response_format"}),
    "Groq": (400, error("This model does not support response format `json_schema`."), {"response_format"}),
    "xAI": (
        400,
        json.dumps({"code": "invalid argument", "error": "The response_format parameter is unsupported."}),
        {"response_format"},
    ),
    "a closed model": (422, closed("seed", "stream_options"), {"seed", "stream_options"}),
    "an old vLLM": (400, json.dumps({"object": "error", "message": FORBIDDEN, "param": None}), {"seed"}),
    "NIM": (
        422,
        json.dumps({"title": "Unprocessable", "detail": "body -> max_tokens\n  Extra inputs are not permitted"}),
        {"max_tokens"},
    ),
    "a template": (500, error("System role not supported"), {"system"}),
    "no JSON": (400, "Unknown field: stream_options", {"stream_options"}),
}
OTHERS: dict[str, tuple[int, str]] = {
    "too many tokens": (400, error("max_tokens=2048 cannot be greater than max_model_len=1024.", param="max_tokens")),
    "a long prompt": (
        400,
        error("This model's maximum context length is 1024 tokens. Unsupported length; reduce messages or max_tokens."),
    ),
    "an unknown model": (404, error("The model `x` does not exist; seed unknown", param="model")),
    "overloaded": (503, error("seed is not supported")),
    "a refused prompt": (400, error("The prompt was flagged by the content filter.")),
    "what was sent": (
        400,
        json.dumps({"detail": [{"msg": "Field required", "loc": ["body", "x"], "input": {"seed": 1, "unknown": 2}}]}),
    ),
    "a failure": (500, error("The schema cache failed: response_format")),
    "a bound": (400, error("temperature: Input should be less than or equal to 1; 2 is not supported")),
    "nothing": (400, ""),
    "deep": (400, "[" * 5_000),
}


@pytest.mark.parametrize(("status", "body", "fields"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_names_the_fields_that_an_engine_lacks(status: int, body: str, fields: set[str]) -> None:
    assert refused_fields(status, body.encode()) == fields


@pytest.mark.parametrize(("status", "body"), OTHERS.values(), ids=OTHERS)
def test_another_error_refuses_no_field(status: int, body: str) -> None:
    assert refused_fields(status, body.encode()) == frozenset()


def test_each_refusal_of_the_form_weakens_it_once_and_the_last_way_is_not_weakened() -> None:
    refused = frozenset({"response_format"})
    second = Dialect().without(refused, fixed=False)
    assert second is not None and (second.structured, second.lacking) == ("json_object", set())
    bare = second.without(refused, fixed=False)
    assert bare is not None and (bare.structured, bare.lacking) == ("json_object", {"schema"})
    third = bare.without(refused, fixed=False)
    assert third is not None and third.structured == "prompt"
    assert third.without(refused, fixed=False) is None
    assert Dialect().without(refused, fixed=True) is None, "a declared way is kept"
    declared = Dialect("json_object").without(refused, fixed=True)
    assert declared == bare, "a declared way is kept, without the schema that few engines take"
    assert declared.without(refused, fixed=True) is None


def test_a_field_that_is_lacking_already_is_not_found_out_again() -> None:
    found = Dialect().without(frozenset({"seed"}), fixed=False)
    assert found is not None and found.lacking == {"seed"}
    assert found.without(frozenset({"seed"}), fixed=False) is None
