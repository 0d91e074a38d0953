"""Fixtures that the tests of several packages share."""

import io
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from app.observability import logs
from tests.components.routes.served import Served, served
from tests.story import Story


@pytest.fixture
async def gateway(request: pytest.FixtureRequest) -> AsyncGenerator[Served, None]:
    """A gateway with the settings that the test's module declares as `GATEWAY`."""
    settings: dict[str, Any] = getattr(request.module, "GATEWAY", {})
    async with served(**settings) as running:
        yield running


@pytest.fixture
def story(fresh_id: str) -> Story:
    return Story(fresh_id)


@pytest.fixture
def logged() -> io.StringIO:
    """Collects what is logged from debug level on."""
    output = io.StringIO()
    logs.configure("debug", output)
    return output
