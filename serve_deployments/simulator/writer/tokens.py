"""Tokens of the simulated model: words and numbers in pieces of seven with the space before, other signs alone."""

import re
from zlib import crc32

BLOCK_TOKENS = 16
VOCABULARY_SIZE = 131_072

_TOKEN = r"\s?\w{1,7}+|\W"
_TOKENS = re.compile(_TOKEN)
# Atomic, so that a block's tokens are the text's tokens; the scan of 16 at a time stays inside the regex engine.
_BLOCKS = re.compile(rf"(?>{_TOKEN}){{1,{BLOCK_TOKENS}}}")


def tokenize(text: str) -> list[str]:
    return _TOKENS.findall(text)


def split_blocks(text: str) -> tuple[int, list[str]]:
    blocks: list[str] = _BLOCKS.findall(text)
    if not blocks:
        return 0, blocks
    return BLOCK_TOKENS * (len(blocks) - 1) + len(_TOKENS.findall(blocks[-1])), blocks


def token_id(token: str) -> int:
    """A stable id below `VOCABULARY_SIZE`; different tokens may share one."""
    return crc32(token.encode("utf-8", "surrogatepass")) % VOCABULARY_SIZE
