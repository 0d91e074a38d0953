"""Refusals in vLLM's shape: `{"error": {"message", "type", "param", "code"}}`."""

import json
from collections.abc import Mapping
from http import HTTPStatus

# The types that vLLM 0.32 gives: `vllm/entrypoints/serve/exception_handling`.
_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class Refusal(Exception):
    """An answer other than 200: its status, what is told, the field at fault, and headers such as Retry-After."""

    def __init__(
        self,
        status: int,
        text: str,
        *,
        param: str | None = None,
        kind: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.param = param
        self.kind = kind or _TYPES.get(status) or HTTPStatus(status).phrase
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """The JSON that is sent."""
        error = {"message": self.text, "type": self.kind, "param": self.param, "code": self.status}
        return json.dumps({"error": error}).encode()


def bad_request(text: str, param: str | None = None) -> Refusal:
    """400 as vLLM's own checks give it: the field is named in the text too."""
    return Refusal(400, f"{text} (parameter={param})" if param else text, param=param)
