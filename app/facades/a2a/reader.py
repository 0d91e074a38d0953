"""The requests of A2A 1.0. A message's text is the task; the metadata beside it has a deliberation's other fields."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.alias_generators import to_camel
from pydantic_core import to_json

from app.api.problems import ValidationFailed, body_fault
from app.api.request_body import parsed_body
from app.api.requests import DeliberationRequest, RequestModel, Whole
from app.api.webhook_payloads import TASK_CONTEXT, TERMINAL_EVENTS
from app.facades.openai_requests import Unsupported

# The places in `params` of what the gateway names otherwise, and of fields that do not stand in the metadata.
PLACES = {
    "cursor": "pageToken",
    "task": "message.parts",
    "follows": "message.referenceTaskIds",
    "webhook": "configuration.taskPushNotificationConfig",
}
NoCredential = Annotated[None, Unsupported("No credential is stored; deliveries are signed by Standard Webhooks")]


class JsonRpcId(RequestModel, extra="ignore"):
    id: str | int | None = None


class JsonRpcCall(JsonRpcId, extra="forbid"):
    jsonrpc: Literal["2.0"]
    method: str = Field(max_length=64)
    params: dict[str, Any] = {}


class A2AModel(RequestModel, alias_generator=to_camel): ...


class TextPart(A2AModel):
    text: str
    media_type: str = Field(default="text/plain", pattern="^text/")


class UserMessage(A2AModel):
    message_id: str = Field(min_length=1, max_length=128)
    role: Literal["ROLE_USER"]
    parts: list[TextPart] = Field(min_length=1, max_length=1_024)
    context_id: str | None = Field(default=None, min_length=1, max_length=512)
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

    def deliberation(self, known: Mapping[str, Any]) -> DeliberationRequest:
        """Raises ValidationFailed."""
        given, push = self.message, self.configuration.task_push_notification_config
        for name in self.metadata.keys() & PLACES.keys():
            detail, remedy = "The metadata has it too", f"Leave {name} out there."
            raise ValidationFailed([body_fault(f"/{name}", "conflict", detail, remedy)])
        task = "\n".join(part.text for part in given.parts)
        body = {**self.metadata, "task": task, "follows": given.reference_task_ids}
        context = {} if given.context_id is None else {TASK_CONTEXT: given.context_id}
        if push is not None:
            told = context | ({} if push.id is None else {"configId": push.id})
            events = ["stage.opened", *TERMINAL_EVENTS]
            body["webhook"] = {"url": push.url, "events": events, "format": "a2a", "metadata": told}
        asked = parsed_body(to_json({"metadata": body}), AskedMetadata, dict(known)).metadata
        return asked.model_copy(update={"metadata": asked.metadata | context})


class TaskParams(A2AModel):
    id: str
    history_length: Whole | None = Field(default=None, ge=0)


class ListParams(A2AModel):
    context_id: str | None = None
    status: str | None = Field(default=None, pattern="^TASK_STATE_(SUBMITTED|WORKING|COMPLETED|FAILED|CANCELED)$")
    page_size: Whole = Field(default=50, ge=1, le=100)
    page_token: str | None = Field(default=None, max_length=128)
    history_length: Whole | None = Field(default=None, ge=0)  # lists show no history


class ConfigParams(A2AModel):
    task_id: str
    id: str | None = None
