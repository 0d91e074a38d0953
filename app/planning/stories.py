"""The last transition of each story, in a stream of its own: metadata of the story's later deliberations."""

import hashlib

from pydantic import BaseModel

from app.api.schemas import dump
from app.deliberation.ports import Journal, Record
from app.log.journal import JetStreamJournal
from app.planning.events import StoryTransition


class _Kept(BaseModel, frozen=True):
    sequence: int
    transition: StoryTransition


def _subject(tenant: str, story_id: str) -> str:
    return f"stories.{tenant}.{hashlib.sha256(story_id.encode()).hexdigest()[:32]}.transitioned"


def _kept(record: Record) -> _Kept:
    return _Kept.model_validate_json(record.data)


async def last_transition(journal: Journal, tenant: str, story_id: str) -> StoryTransition | None:
    """The story's last transition, None without any in 30 days. Raises JournalUnavailable."""
    found = await journal.last([_subject(tenant, story_id)])
    return _kept(found[0]).transition if found else None


async def keep_transition(journal: JetStreamJournal, tenant: str, transition: StoryTransition, sequence: int) -> None:
    """Replace the story's transition by this one, unless the kept one comes from an event after `sequence`."""
    kept = _Kept(sequence=sequence, transition=transition)
    subject = _subject(tenant, transition.story_id)
    await journal.write(subject, dump(kept), accepts=lambda record: _kept(record).sequence >= sequence)
