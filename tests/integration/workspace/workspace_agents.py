"""A replica whose calls may read repositories."""

from pathlib import Path

import httpx

from app.deliberation.roles import EngineSpec, Role
from app.log.journal import JetStreamJournal
from app.workspace.repositories import AllowedRepositories
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.client import Engines
from tests.integration.tools.tool_calls import Engine


def agent_of(journal: JetStreamJournal, engine: Engine, folder: Path, allowed: tuple[str, ...]) -> AgentReplica:
    engines = Engines([EngineSpec(url="http://engine0")], transport=httpx.MockTransport(engine))
    options = {"repositories": AllowedRepositories(allowed), "workspace_dir": folder / "copies"}
    role = Role(persona="p")
    return AgentReplica("DEV", role, engines, journal, stream_deltas=True, engine_away_timeout_s=30, **options)  # pyright: ignore[reportArgumentType]
