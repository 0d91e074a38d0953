"""The context of a request's story: a service is asked before the acceptance, which records the text."""

import asyncio
from collections import Counter

import structlog
from pydantic import BaseModel, ConfigDict, Field

from app.api.problems import ValidationFailed
from app.api.request_body import parsed_body
from app.api.requests import DeliberationRequest
from app.api.schemas import Resource, dump
from app.deliberation.errors import InvalidRequest, JournalUnavailable
from app.deliberation.ports import Control
from app.deliberation.specification import BYTES_PER_TOKEN, ContextStatus, Evidence, StoryContext, Token

SUBJECT = "context.get"
# No id that a request may give has a colon.
EVIDENCE_ID = "context:story"
# After a time-out no request asks for this long. A hanging service thus delays few requests.
PAUSE_S = 5.0
FAULTS_MAX = 3

log = structlog.get_logger(__name__)


class ContextOptions(Resource):
    """Bounds of the reply."""

    max_tokens: int = Field(description="At three bytes each; a longer text is cut")


class ContextRequest(Resource):
    """The question to the context service: the story that a council should know of."""

    task_id: Token = Field(description="The id of the deliberation that will be accepted")
    tenant: str = Field(description="Whose story it is; a reply must hold nothing of another tenant")
    case_id: str | None = Field(description="`metadata.case_id` of the request")
    story_id: str = Field(description="`metadata.story_id`")
    phase: str | None = Field(description="`metadata.to_phase`: where the story's last transition led")
    role: str | None = Field(description="The role that all members of the council share")
    options: ContextOptions


class ContextBlocks(BaseModel):
    """The parts of a context."""

    model_config = ConfigDict(frozen=True, strict=True, hide_input_in_errors=True)

    system: str = ""
    context: str = ""
    tools: str = ""
    history: str = ""


class ContextReply(BaseModel):
    """The reply of the context service. Unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, hide_input_in_errors=True)

    context_text: str = Field(description="What the council is shown; empty where nothing is known")
    blocks: ContextBlocks = Field(
        default=ContextBlocks(), description="Its parts, shown in this order where `context_text` is empty"
    )
    token_count: int | None = Field(default=None, description="The service's count; not relied on")
    version_hash: str | None = Field(default=None, max_length=128, description="Recorded with the deliberation")

    @property
    def text(self) -> str:
        blocks = (self.blocks.system, self.blocks.context, self.blocks.tools, self.blocks.history)
        return self.context_text.strip() or "\n\n".join(filter(None, map(str.strip, blocks)))


class ContextUpdated(Resource):
    """The context service knows more of a story than before."""

    tenant: str
    story_id: str
    task_id: Token = Field(description="The deliberation that it learnt from")
    version_hash: str


class _NoContext(Exception):
    def __init__(self, status: ContextStatus, reason: str) -> None:
        super().__init__(reason)
        self.status: ContextStatus = status


class ContextHydrator:
    """Asks the context service about the stories of requests. `counts` counts the answers by status."""

    def __init__(self, control: Control, timeout_s: float) -> None:
        self.counts: Counter[ContextStatus] = Counter()
        self._control = control
        self._timeout_s = timeout_s
        self._paused_until_s = 0.0

    async def ask(
        self, tenant: str, deliberation_id: str, request: DeliberationRequest, tokens_max: int
    ) -> tuple[StoryContext | None, Evidence | None]:
        """Returns the outcome, and the evidence where a text was given; never raises, as work goes on without."""
        story_id, roles = request.metadata.get("story_id"), {agent.role for agent in request.roster}
        if not story_id:
            return None, None
        asked = ContextRequest(
            task_id=deliberation_id,
            tenant=tenant,
            case_id=request.metadata.get("case_id"),
            story_id=story_id,
            phase=request.metadata.get("to_phase"),
            role=roles.pop() if len(roles) == 1 else None,
            options=ContextOptions(max_tokens=tokens_max),
        )
        try:
            reply = await self._reply(asked)
        except _NoContext as missing:
            log.warning("context_missing", deliberation_id=deliberation_id, status=missing.status, reason=str(missing))
            self.counts[missing.status] += 1
            return StoryContext(story_id=story_id, status=missing.status, detail=str(missing)), None
        status: ContextStatus = "given" if reply.text else "empty"
        self.counts[status] += 1
        story_context = StoryContext(story_id=story_id, status=status, version=reply.version_hash)
        return story_context, _evidence(story_context, reply.text, tokens_max) if reply.text else None

    async def _reply(self, asked: ContextRequest) -> ContextReply:
        loop = asyncio.get_running_loop()
        late = f"no reply on {SUBJECT} within {self._timeout_s:g} s"
        if loop.time() < self._paused_until_s:
            raise _NoContext("unanswered", f"{late} a moment ago")
        try:
            return parsed_body(await self._control.ask(SUBJECT, dump(asked), timeout_s=self._timeout_s), ContextReply)
        except TimeoutError:
            self._paused_until_s = loop.time() + PAUSE_S
            raise _NoContext("unanswered", late) from None
        except JournalUnavailable:
            raise _NoContext("unanswered", f"nothing listens on {SUBJECT}") from None
        except ValidationFailed as invalid:
            # Pointers and codes alone: the reply itself is not ours to show.
            named = "; ".join(f"{fault.pointer} {fault.code}" for fault in invalid.errors[:FAULTS_MAX])
            raise _NoContext("unusable", f"the reply on {SUBJECT} is not valid: {named}") from None
        except InvalidRequest as unreadable:
            raise _NoContext("unusable", f"the reply on {SUBJECT} cannot be read: {unreadable.code}") from None


def cut_to_bytes(text: str, bytes_max: int, whole: str = "") -> str:
    encoded = text.encode()
    if len(encoded) <= bytes_max:
        return text
    kept = encoded[:bytes_max].decode(errors="ignore")
    where = f"; whole: {whole}" if whole else ""
    return f"{kept}… [cut after {len(kept)} of {len(text)} characters{where}]"


def _evidence(context: StoryContext, text: str, tokens_max: int) -> Evidence:
    source = context.version and f"context service, version {context.version}"
    shown = cut_to_bytes(text, tokens_max * BYTES_PER_TOKEN)
    return Evidence(id=EVIDENCE_ID, title=f"What is known of story {context.story_id}"[:200], text=shown, source=source)
