from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.vllm.protocol import CHAT, TASK, Chat
from tests.vllm.server import Engine

pytestmark = pytest.mark.vllm

MESSAGES = [{"role": "user", "content": TASK}]
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"max_tokens": 3}),
    (CHAT, {"n": 2, "max_tokens": 3}),
    (CHAT, {"model": "nobody"}),
    (CHAT, {"max_tokens": -1}),
    (CHAT, {"messages": "hello"}),
]


@pytest.fixture
def chats(simulator_engine: Engine, vllm_engine: Engine) -> Iterator[tuple[Chat, Chat]]:
    with (
        httpx.Client(base_url=simulator_engine.url, timeout=60) as simulator,
        httpx.Client(base_url=vllm_engine.url, timeout=60) as vllm,
    ):
        yield Chat(simulator, simulator_engine.model), Chat(vllm, vllm_engine.model)


def shape(value: object, path: str = "$") -> dict[str, str]:
    kind = "number" if type(value) in (int, float) else type(value).__name__
    shapes = {path: kind}
    if isinstance(value, dict):
        for key, part in cast(dict[str, object], value).items():
            shapes.update(shape(part, f"{path}.{key}"))
    elif isinstance(value, list):
        for part in cast(list[object], value):
            shapes.update(shape(part, f"{path}[]"))
    return shapes


def assert_like(simulated: object, real: object) -> None:
    theirs = shape(real)
    empty = tuple(path for path, kind in theirs.items() if kind == "NoneType")
    ours = {
        path: kind
        for path, kind in shape(simulated).items()
        if kind != "NoneType" and not any(path == left or path.startswith(f"{left}.") for left in empty)
    }
    assert ours.items() <= theirs.items()


@pytest.mark.parametrize(("path", "fields"), REQUESTS, ids=str)
def test_answers_have_the_same_status_and_shape(chats: tuple[Chat, Chat], path: str, fields: dict[str, Any]) -> None:
    simulated, real = (chat.post(path, **fields) for chat in chats)
    assert simulated.status_code == real.status_code
    assert_like(simulated.json(), real.json())


@pytest.mark.parametrize("fields", [{"messages": MESSAGES}, {"prompt": TASK}, {}], ids=str)
def test_tokens_are_counted_in_the_same_shape(chats: tuple[Chat, Chat], fields: dict[str, Any]) -> None:
    simulated, real = (chat.client.post("/tokenize", json={"model": chat.model, **fields}) for chat in chats)
    assert simulated.status_code == real.status_code
    assert_like(simulated.json(), real.json())


@pytest.mark.parametrize("path", ["/v1/models", "/load", "/version"])
def test_get_routes_answer_with_the_same_status_and_shape(chats: tuple[Chat, Chat], path: str) -> None:
    simulated, real = (chat.client.get(path) for chat in chats)
    assert simulated.status_code == real.status_code
    assert_like(simulated.json(), real.json())


@pytest.mark.parametrize(("path", "status"), [("/nowhere", 404), (CHAT, 405), ("/health", 200)])
def test_other_paths_have_the_same_status(chats: tuple[Chat, Chat], path: str, status: int) -> None:
    """Status alone: vLLM's bodies come from its framework here."""
    assert [chat.client.get(path).status_code for chat in chats] == [status, status]


def test_chunks_have_the_same_shape(chats: tuple[Chat, Chat]) -> None:
    """The first chunk, one in the middle, the one that closes a choice, and the one with usage."""
    simulated, real = (chat.stream(max_tokens=5, stream_options={"include_usage": True}).chunks for chat in chats)
    for place in (0, 1, -2, -1):
        assert_like(simulated[place], real[place])


def test_metrics_have_the_same_names_types_and_labels(chats: tuple[Chat, Chat]) -> None:
    def families(chat: Chat) -> dict[str, tuple[str, frozenset[str]]]:
        chat.complete(max_tokens=1)
        text = chat.client.get("/metrics").raise_for_status().text
        return {
            family.name: (family.type, frozenset(label for sample in family.samples for label in sample.labels))
            for family in text_string_to_metric_families(text)
            if family.name.startswith("vllm:")
        }

    simulated, real = (families(chat) for chat in chats)
    assert simulated
    assert simulated.items() <= real.items()
