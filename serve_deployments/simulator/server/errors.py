"""Refused requests in vLLM's shape: `{"error": {"message", "type", "param", "code"}}`."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType

# The types that vLLM 0.32 gives: `vllm/entrypoints/serve/exception_handling`.
_TYPES = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError", 503: "ServiceUnavailableError"}


class RequestRefused(Exception):
    """An answer other than 200. `param` is the field at fault, `kind` the error's type, given by status if absent."""

    def __init__(
        self,
        status: int,
        text: str,
        *,
        param: str | None = None,
        kind: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers
        kind = kind or _TYPES.get(status) or HTTPStatus(status).phrase
        self.error = {"message": text, "type": kind, "param": param, "code": status}

    def body(self) -> bytes:
        """The JSON that is sent."""
        return json.dumps({"error": self.error}).encode()


def bad_request(text: str, param: str | None = None) -> RequestRefused:
    """400 as vLLM's own checks give it: the text names the field too."""
    return RequestRefused(400, f"{text} (parameter={param})" if param else text, param=param)
