"""The part of a prompt that an engine with a prefix cache does not compute again.

As in vLLM: whole blocks of 16 tokens from the start, chained, separated by `cache_salt`, least recently used out; and
the last token of a prompt is always computed (https://docs.vllm.ai/en/stable/design/prefix_caching/).
"""

from collections import OrderedDict

from serve_deployments.simulator.writer.tokens import BLOCK_TOKENS


class PrefixCache:
    """Holds up to `blocks_max` blocks."""

    def __init__(self, blocks_max: int = 65_536) -> None:
        self._blocks_max = blocks_max
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def admit(self, blocks: list[str], prompt_tokens: int, salt: str | None) -> int:
        """Look a prompt up and store it; returns the number of its tokens that were stored before."""
        stored = self._blocks
        chain = hash(salt)
        hits = 0
        missed = False
        for place in range(prompt_tokens // BLOCK_TOKENS):
            chain = hash((chain, blocks[place]))
            if chain in stored:
                stored.move_to_end(chain)
                hits += not missed
            else:
                stored[chain] = None
                missed = True
        while len(stored) > self._blocks_max:
            stored.popitem(last=False)
        return min(hits, max(0, prompt_tokens - 1) // BLOCK_TOKENS) * BLOCK_TOKENS
