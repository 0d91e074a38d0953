"""What a simulated engine lacks of vLLM."""

from enum import StrEnum


class Lack(StrEnum):
    """A thing that the engine lacks; `LACK_HELP` describes each."""

    JSON_SCHEMA = "json-schema"
    JSON_OBJECT = "json-object"
    RESPONSE_FORMAT = "response-format"
    MAX_TOKENS = "max-tokens"
    STREAM_OPTIONS = "stream-options"
    SEED = "seed"
    TEMPERATURE = "temperature"
    SYSTEM = "system"
    USAGE = "usage"
    N = "n"
    CHOICES = "choices"


# What a proxy in front of vLLM may lack: it lists vLLM's models as they are.
BEHIND_PROXY = frozenset({Lack.N, Lack.CHOICES})


LACK_HELP = (
    "json-schema and json-object (refused as response_format), response-format (ignored), max-tokens (wants "
    "max_completion_tokens), stream-options, seed, temperature, system (messages of that role), usage (reports none), "
    "n (refused), choices (answers one whatever `n` says)."
)
