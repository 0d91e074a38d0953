import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from app.deliberation.facts import encode
from sdk import build
from tests.components.client.scripted_streams import NAMES, fixture, scripted
from tests.sdk.conftest import json_of, output_of
from tests.unit.strategies.stories import STORIES, events_of, story, texts_of

pytestmark = pytest.mark.sdk

RUNNER = Path(__file__).with_name("follow.mjs")
MODULE = build.work() / "typescript" / "dist" / "index.js"


async def followed(url: str, script: dict[str, Any], mode: str) -> dict[str, Any]:
    options = {name: script[name] for name in ("of", "after", "deltas") if script.get(name) is not None}
    return await json_of([build.NODE, RUNNER, MODULE, url, mode, json.dumps(options)])


@pytest.mark.parametrize("name", NAMES)
async def test_every_event_arrives_once_and_in_order(name: str) -> None:
    script = fixture(name)
    async with scripted(script) as (served, url):
        results = await followed(url, script, "frames")
    assert results["shown"] == script["events"]
    assert served.asked == served.expected
    assert (results["duplicates"], results["refused"]) == (script.get("duplicates", 0), script.get("refused"))
    for (before_s, after_s), least_ms in zip(pairwise(served.at_s), script.get("waits_ms", ()), strict=False):
        assert after_s - before_s >= least_ms / 1_000


@pytest.mark.parametrize("name", NAMES)
async def test_rebuilds_every_text(name: str) -> None:
    script = fixture(name)
    async with scripted(script) as (_, url):
        results = await followed(url, script, "events")
    assert results["shown"] == [kind for _, kind in script["events"]]
    assert results["texts"] == script["texts"]


async def test_the_helper_waits_retries_stops_and_rebuilds_the_texts_of_every_story(tmp_path: Path) -> None:
    tests, stories = Path(__file__).with_name("stream.test.mjs"), tmp_path / "stories.json"
    told = {
        name: {"events": [json.loads(encode(event)) for event in events_of(facts)], "texts": texts_of(facts)}
        for name in STORIES
        if (facts := story(name))
    }
    stories.write_text(json.dumps(told))
    report = await output_of([build.NODE, "--test", tests], HELPER=str(MODULE.parent), STORIES=str(stories))
    assert "fail 0" in report and "pass 0" not in report


async def test_the_helper_has_no_dependencies() -> None:
    folder = build.HERE / "typescript"
    described = json.loads((folder / "package.json").read_text())
    assert not {"dependencies", "peerDependencies"} & described.keys()
    for source in (folder / "src").glob("*.ts"):
        imported = re.findall(r"^(?:import|export) .* from (.*)$", source.read_text(), re.MULTILINE)
        assert all(name.startswith('"./') for name in imported), source
    # Compiles without the types of Node or a bundler, so the helper uses only what browsers have.
    await output_of([*build.tool("typescript", "bin/tsc"), "--noEmit", "--project", build.work() / "typescript"])
