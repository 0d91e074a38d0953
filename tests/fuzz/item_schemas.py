"""The document in OpenAPI 3.2, whose `itemSchema` lets the fuzzer check each event of a stream."""

from copy import deepcopy
from typing import Any

from app.openai.completions import DONE_DATA
from app.openapi.document import document


def _use_item_schema(content: dict[str, Any], operation_id: str) -> None:
    data: dict[str, Any] = {"type": "string", "contentMediaType": "application/json"}
    data["contentSchema"] = content.pop("schema")
    if operation_id == "create_chat_completion":
        data = {"anyOf": [{"const": DONE_DATA}, data]}
    properties = {"id": {"type": "string"}, "event": {"type": "string"}, "data": data}
    properties["retry"] = {"type": "integer", "minimum": 0}
    content["itemSchema"] = {"type": "object", "properties": properties, "required": ["data"]}
    del content["example"]


def document_3_2() -> dict[str, Any]:
    made = deepcopy(document())
    made["openapi"] = "3.2.0"
    for methods in made["paths"].values():
        for operation in (each for name, each in methods.items() if name != "parameters"):
            for declared in operation["responses"].values():
                if content := declared.get("content", {}).get("text/event-stream"):
                    _use_item_schema(content, operation["operationId"])
    return made
