"""Answers as bytes, in the shape that vLLM 0.32 gives them: null fields included."""

import json
from dataclasses import dataclass

from serve_deployments.simulator.completion import Completion

_QUOTE = json.JSONEncoder(ensure_ascii=False).encode
DONE = b"data: [DONE]\n\n"
CHUNK = "chat.completion.chunk"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request, as the API counts them: a prompt once, whatever `n`."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def text(self, *, detail: bool = True) -> str:
        """The JSON object; `detail` adds the tokens that came from the prefix cache."""
        total = self.prompt_tokens + self.completion_tokens
        cached = (
            f',"prompt_tokens_details":{{"cached_tokens":{self.cached_tokens},"created_cache_tokens":null,'
            f'"multimodal_tokens":null}},"completion_tokens_details":null'
        )
        return (
            f'{{"prompt_tokens":{self.prompt_tokens},"total_tokens":{total},'
            f'"completion_tokens":{self.completion_tokens}{cached if detail else ""}}}'
        )


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every part of one answer repeats: its id, when it was made (epoch seconds), and the model."""

    answer_id: str
    created: int
    model: str

    def head(self, kind: str) -> str:
        """The beginning of a JSON object of this kind."""
        return (
            f'{{"id":{_QUOTE(self.answer_id)},"object":"{kind}","created":{self.created},"model":{_QUOTE(self.model)},'
        )

    def whole(self, completions: list[Completion], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        choices = ",".join(
            f'{{"index":{completion.index},"message":{{"role":"assistant","content":{_QUOTE(completion.text)},'
            '"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,'
            f'"finish_reason":"{completion.finish_reason}","stop_reason":{_QUOTE(completion.stop_reason)},'
            '"token_ids":null}'
            for completion in completions
        )
        text = (
            f'{self.head("chat.completion")}"choices":[{choices}],"service_tier":null,"system_fingerprint":null,'
            f'"usage":{usage.text()},"prompt_logprobs":null,"prompt_token_ids":null,"kv_transfer_params":null}}'
        )
        return text.encode("utf-8", "replace")

    def usage_chunk(self, usage: Usage) -> bytes:
        """The event that tells the usage of a whole stream."""
        return f'data: {self.head(CHUNK)}"choices":[],"usage":{usage.text()}}}\n\n'.encode()


class ChunkWriter:
    """Makes the events of one choice of a stream."""

    def __init__(self, envelope: Envelope, completion: Completion, usage: Usage | None) -> None:
        self._completion = completion
        self._usage = usage
        self._head = f'data: {envelope.head(CHUNK)}"choices":[{{"index":{completion.index},"delta":'
        self._tail = "}\n\n" if usage is None else ',"usage":'

    def opening(self) -> bytes:
        """The first event: the role, and no text."""
        delta = '{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return (self._head + delta + self._ended(0)).encode()

    def piece(self, first: int, last: int) -> bytes:
        """The event with the tokens from `first` up to and without `last`; the final one tells the finish reason."""
        completion = self._completion
        text = _QUOTE("".join(completion.tokens[first:last]))
        if last < len(completion.tokens):
            rest = '"logprobs":null,"finish_reason":null,"token_ids":null}]'
        else:
            rest = (
                f'"logprobs":null,"finish_reason":"{completion.finish_reason}",'
                f'"stop_reason":{_QUOTE(completion.stop_reason)},"token_ids":null}}]'
            )
        return f'{self._head}{{"content":{text}}},{rest}{self._ended(last)}'.encode("utf-8", "replace")

    def _ended(self, tokens: int) -> str:
        if self._usage is None:
            return self._tail
        usage = Usage(self._usage.prompt_tokens, tokens, 0)
        return f"{self._tail}{usage.text(detail=False)}}}\n\n"
