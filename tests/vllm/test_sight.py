"""A real vLLM with a model that sees gets the pixels that a client sent to the gateway."""

import asyncio
import base64
import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image, ImageChops

from tests.components.inputs.files import picture
from tests.e2e.conftest import start_up, stop_up
from tests.sdk.recorder import Recorder
from tests.vllm.server import Engine, vllm_server

pytestmark = pytest.mark.sight


@pytest.fixture(scope="module")
def seeing_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with vllm_server(tmp_path_factory.mktemp("vllm") / "sight.log", seeing=True) as engine:
        yield engine


def pixels(content: bytes) -> Image.Image:
    return Image.open(BytesIO(content)).convert("RGB")


def picture_in(body: dict[str, Any]) -> bytes:
    (part,) = [
        part
        for message in body["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image_url"
    ]
    return base64.b64decode(part["image_url"]["url"].partition(",")[2])


async def logprobs(engine: Engine, body: dict[str, Any], seen: bytes) -> list[float]:
    """Of the tokens that the engine writes first, once it has seen a picture in place of the body's."""
    given = base64.b64encode(picture_in(body)).decode()
    sent = json.loads(json.dumps(body).replace(given, base64.b64encode(seen).decode()))
    for name in ("stream", "stream_options", "response_format", "structured_outputs"):
        sent.pop(name, None)
    async with httpx.AsyncClient(base_url=engine.url, timeout=60) as client:
        asked = {**sent, "temperature": 0, "max_tokens": 8, "logprobs": True}
        answer = (await client.post("/v1/chat/completions", json=asked)).raise_for_status().json()
    return [token["logprob"] for token in answer["choices"][0]["logprobs"]["content"]]


async def test_the_pixels_that_were_sent_arrive_and_change_what_the_model_writes(
    seeing_engine: Engine, tmp_path: Path
) -> None:
    sent, recorder = picture("PNG"), Recorder(seeing_engine.url)
    async with recorder.serving():
        process, ready = await asyncio.to_thread(start_up, tmp_path, "--engine-url", recorder.url, "--agents", "nats")
        async with httpx.AsyncClient(base_url=ready["url"], timeout=70) as client:
            file = (await client.post("/files", files={"file": ("gradient.png", sent)})).json()
            evidence = [{"id": "picture", "title": "A picture", "file": file["id"]}]
            body = {"task": "What is it?", "strategy": "single", "evidence": evidence}
            deliberation = (await client.post("/deliberations", json=body, headers={"Prefer": "wait=60"})).json()
        await asyncio.to_thread(stop_up, process)
    assert deliberation["status"] == "completed", deliberation["problem"]
    asked = [json.loads(each.body) for each in recorder.requests if each.path == "/v1/chat/completions"]
    for request in asked:
        assert ImageChops.difference(pixels(picture_in(request)), pixels(sent)).getbbox() is None
    of_sent, of_another = [
        await logprobs(seeing_engine, asked[-1], seen) for seen in (sent, picture("PNG", "L", (32, 32)))
    ]
    assert of_sent == await logprobs(seeing_engine, asked[-1], picture_in(asked[-1])) != of_another
