"""The requests of A2A 1.0. A message's text is the task; the metadata beside it has a deliberation's other fields."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

from pydantic import Field, InstanceOf, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import to_json

from app.api.problems import ValidationFailed, body_fault, refused
from app.api.request_body import parsed_body
from app.api.request_model import (
    RequestModel,
    Whole,
)
from app.api.requests import (
    DeliberationRequest,
)
from app.api.schemas import FieldProblem
from app.api.webhook_payloads import TASK_CONTEXT, TERMINAL_EVENTS
from app.facades.message_content import FilePart, evidence_of, file_at, given_file
from app.facades.openai_requests import Nothing, Unsupported
from app.routes.dependencies import Instant

# The places in `params` of what the gateway names otherwise, and of fields that do not stand in the metadata.
PLACES = {
    "cursor": "pageToken",
    "task": "message.parts",
    "follows": "message.referenceTaskIds",
    "webhook": "configuration.taskPushNotificationConfig",
}
UNSPECIFIED = "TASK_STATE_UNSPECIFIED"
# The codes of parts that agents cannot read.
UNREADABLE = "unsupported_content"
UNREADABLE_PARTS = frozenset({UNREADABLE, "unsupported_file", "unsupported_url"})
TaskState = Literal[
    "TASK_STATE_UNSPECIFIED",
    "TASK_STATE_SUBMITTED",
    "TASK_STATE_WORKING",
    "TASK_STATE_COMPLETED",
    "TASK_STATE_FAILED",
    "TASK_STATE_CANCELED",
    "TASK_STATE_INPUT_REQUIRED",
    "TASK_STATE_REJECTED",
    "TASK_STATE_AUTH_REQUIRED",
]
NoCredential = Annotated[Nothing, Unsupported("No credential is stored; deliveries are signed by Standard Webhooks")]


class JsonRpcId(RequestModel, extra="ignore"):
    id: str | int | None = None


class JsonRpcCall(JsonRpcId, extra="forbid"):
    jsonrpc: Literal["2.0"]
    method: str = Field(max_length=64)
    params: dict[str, Any] = {}


class A2AModel(RequestModel, extra="ignore", alias_generator=to_camel):
    """An object of the protocol: unknown fields are ignored (specification, 5.7), and "" and null are absent fields.

    Those are Protocol Buffers' default values, which some clients write.
    """

    @model_validator(mode="before")
    @classmethod
    def _without_defaults(cls, fields: Any) -> Any:  # noqa: ANN401 -- JSON
        if not isinstance(fields, dict):
            return fields
        known = cast("dict[str, Any]", fields)
        return {name: value for name, value in known.items() if value is not None and value != ""}


class MessagePart(A2AModel):
    """A text, or the mark of a file in its place."""

    text: str
    media_type: str = "text/plain"
    file: InstanceOf[FilePart] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_content(cls, part: Any) -> Any:  # noqa: ANN401 -- JSON
        match part:
            case {"raw": str(_)} | {"url": str(_)}:
                file = _file_of(cast("dict[str, object]", part))
                return {"text": file.mark, "file": file}
            case {"raw": _} | {"url": _} | {"data": _}:
                raise refused(UNREADABLE, "Agents read texts and files", 'Give {"text": "…"}.')
            case {"mediaType": str(kind)} if kind and not kind.startswith("text/"):
                raise refused(UNREADABLE, f"Agents do not read {kind[:64]}", "Give a text of a media type text/….")
            case dict():
                return {**cast("dict[str, Any]", part), "file": None}
            case _:
                return part


def _file_of(part: Mapping[str, object]) -> FilePart:
    raw, url, name, kind = (part.get(field) for field in ("raw", "url", "filename", "mediaType"))
    named, media_type = name if isinstance(name, str) else None, kind if isinstance(kind, str) else None
    if isinstance(raw, str):
        is_picture = media_type is not None and media_type.startswith("image/")
        return given_file("The part", raw, name=named, media_type=media_type, is_picture=is_picture)
    return file_at("The part", str(url), name=named)


class UserMessage(A2AModel):
    message_id: str = Field(min_length=1, max_length=128)
    role: Literal["ROLE_USER"]
    parts: list[MessagePart] = Field(min_length=1, max_length=1_024)
    context_id: str | None = Field(default=None, max_length=512)
    task_id: str | None = None
    reference_task_ids: list[str] = []


class PushConfig(A2AModel):
    url: str
    id: str | None = Field(default=None, max_length=128)
    token: NoCredential = None
    authentication: NoCredential = None


class SendConfiguration(A2AModel):
    accepted_output_modes: list[str] = []  # every answer is a text
    task_push_notification_config: PushConfig | None = None
    history_length: Whole | None = Field(default=None, ge=0)
    return_immediately: bool = False


class AskedMetadata(RequestModel):
    metadata: DeliberationRequest


class SendParams(A2AModel):
    message: UserMessage
    configuration: SendConfiguration = SendConfiguration()
    metadata: dict[str, Any] = {}

    @property
    def files(self) -> list[FilePart]:
        parts = enumerate(self.message.parts)
        return [replace(part.file, pointer=f"/message/parts/{n}") for n, part in parts if part.file is not None]

    def in_the_params(self, fault: FieldProblem) -> FieldProblem:
        """A fault of the evidence at the message's parts, unless the metadata has evidence of its own."""
        ours = fault.pointer.startswith("/evidence") and "evidence" not in self.metadata
        return fault.model_copy(update={"pointer": "/message/parts"}) if ours else fault

    def deliberation(self, known: Mapping[str, Any]) -> DeliberationRequest:
        """Raises ValidationFailed."""
        message, push = self.message, self.configuration.task_push_notification_config
        for name in self.metadata.keys() & PLACES.keys():
            detail, remedy = "The metadata has it too", f"Leave {name} out there."
            raise ValidationFailed([body_fault(f"/{name}", "conflict", detail, remedy)])
        task = "\n".join(part.text for part in message.parts)
        body = {**self.metadata, "task": task, "follows": message.reference_task_ids}
        if self.files:
            evidence: Any = self.metadata.get("evidence", [])
            body["evidence"] = [*(evidence if isinstance(evidence, list) else [evidence]), *evidence_of(self.files)]
        context = {} if message.context_id is None else {TASK_CONTEXT: message.context_id}
        if push is not None:
            told = context | ({} if push.id is None else {"configId": push.id})
            events = ["stage.opened", *TERMINAL_EVENTS]
            body["webhook"] = {"url": push.url, "events": events, "format": "a2a", "metadata": told}
        asked = parsed_body(to_json({"metadata": body}), AskedMetadata, dict(known)).metadata
        return asked.model_copy(update={"metadata": asked.metadata | context})


class TaskParams(A2AModel):
    id: str
    history_length: Whole | None = Field(default=None, ge=0)


class PageParams(A2AModel):
    page_size: Whole = Field(default=50, ge=1, le=100)
    page_token: str | None = Field(default=None, max_length=128)


class ListParams(PageParams):
    context_id: str | None = None
    status: TaskState | None = None
    status_timestamp_after: Instant | None = None
    history_length: Whole | None = Field(default=None, ge=0)
    include_artifacts: bool = False


class ConfigParams(A2AModel):
    task_id: str
    id: str | None = None


class ConfigListParams(ConfigParams, PageParams): ...
