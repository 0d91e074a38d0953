import json
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

SHOWN = ("_running", "_waiting", "_tokens_total", "_queries_total", "_hits_total", "_success_total")
CHAT = "/v1/chat/completions"
TASK = "Design a rate limiter for an HTTP API that many tenants share. "


@dataclass(slots=True)
class Streamed:
    chunks: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    texts: dict[int, str] = field(default_factory=dict[int, str])
    finish_reasons: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    usage: dict[str, Any] | None = None
    done: bool = False

    @property
    def deltas(self) -> int:
        return sum(bool(choice["delta"].get("content")) for chunk in self.chunks for choice in chunk["choices"])

    def take(self, line: str) -> None:
        if not line:
            return
        assert not self.done, "nothing follows [DONE]"
        assert line.startswith("data: "), line
        payload = line.removeprefix("data: ")
        if payload == "[DONE]":
            self.done = True
            return
        chunk = json.loads(payload)
        self.chunks.append(chunk)
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk["choices"]:
            index = choice["index"]
            self.texts[index] = self.texts.get(index, "") + (choice["delta"].get("content") or "")
            if choice["finish_reason"]:
                self.finish_reasons.setdefault(index, []).append(choice["finish_reason"])


class Chat:
    def __init__(self, client: httpx.Client, model: str) -> None:
        self.client = client
        self.model = model

    def body(self, **fields: object) -> dict[str, Any]:
        content = fields.pop("content", TASK)
        defaults: dict[str, Any] = {"model": self.model, "messages": [{"role": "user", "content": content}]}
        return {**defaults, "max_tokens": 2_048, "seed": 1, **fields}

    def post(self, path: str = CHAT, **fields: object) -> httpx.Response:
        return self.client.post(path, json=self.body(**fields))

    def complete(self, path: str = CHAT, **fields: object) -> dict[str, Any]:
        response = self.post(path, **fields)
        assert response.status_code == 200, response.text
        completion: dict[str, Any] = response.json()
        return completion

    def text(self, **fields: object) -> str:
        return str(self.complete(CHAT, **fields)["choices"][0]["message"]["content"])

    @contextmanager
    def open_stream(self, **fields: object) -> Generator[httpx.Response]:
        with self.client.stream("POST", CHAT, json=self.body(stream=True, **fields)) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            yield response

    def stream(self, **fields: object) -> Streamed:
        streamed = Streamed()
        with self.open_stream(**fields) as response:
            for line in response.iter_lines():
                streamed.take(line)
        return streamed

    def token_count(self, text: str) -> int:
        response = self.client.post("/tokenize", json={"model": self.model, "prompt": text})
        return int(response.raise_for_status().json()["count"])

    def context_tokens(self) -> int:
        return int(self.client.get("/v1/models").raise_for_status().json()["data"][0]["max_model_len"])

    def metrics(self) -> dict[str, float]:
        """The engine's metrics by sample name, summed over labels, without the count of aborted requests.

        vLLM 0.32 has a label for them but leaves it at 0 when a client disconnects; the simulator counts them there.
        """
        totals: dict[str, float] = {}
        for family in text_string_to_metric_families(self.client.get("/metrics").raise_for_status().text):
            for sample in family.samples:
                if sample.labels.get("finished_reason") != "abort":
                    totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
        return totals

    def until(self, condition: Callable[[dict[str, float]], bool], timeout_s: float = 20) -> dict[str, float]:
        deadline = time.monotonic() + timeout_s
        while not condition(metrics := self.metrics()):
            assert time.monotonic() < deadline, {name: metrics[name] for name in metrics if name.endswith(SHOWN)}
            time.sleep(0.02)
        return metrics

    def until_idle(self) -> dict[str, float]:
        return self.until(lambda now: now["vllm:num_requests_running"] + now["vllm:num_requests_waiting"] == 0)
