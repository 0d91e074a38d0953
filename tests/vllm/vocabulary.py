"""The vocabulary of the tiny models, and which of its tokens their random weights favour.

`tests.vllm.make_model` writes such a model for vLLM, `tests.engines.make_gguf` one for llama.cpp.

A network of purely random weights draws every token alike, so a JSON string seldom closes before its bound and an
answer seldom ends. Two channels of the residual stream, which no layer writes to, prevent that. One is the same for
every token, and the output layer reads it as a bias. It draws about ``WORDS`` common words and the marks that end a
string, an array, an object or the answer alike, all else almost never. The other marks the quotation mark and the line
break, after which neither a string nor the answer may end: no text is empty. The rest is random, so that the output
depends on the prompt.
"""

import pydoc_data.topics
from string import digits

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 1024
WORDS = 24
"""Common words that are drawn as often as each mark: an answer or a string has about this many tokens on average."""
CONTEXT_TOKENS = 16384
END, START = "<|im_end|>", "<|im_start|>"
MARKS = (END, '"', "{", "}", "[", "]", ",", ":", ".")
SELDOM, DIGIT, COMMON, OFTEN = -20.0, -6.0, 0.0, 1.0
"""Logits of most tokens, of digits, of the common words and the marks, and of ``]``.

Digits win over the white space that JSON allows before a number, and a list seldom runs to its bound."""
NEVER = -10.0
OPENINGS, ENDINGS = ('"', "Ċ"), ('"', END)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def trained() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(pydoc_data.topics.topics.values(), trainer)
    return tokenizer


def favour(tokenizer: Tokenizer) -> list[float]:
    """The bias of each token, by its id.

    The common words are the ``WORDS`` most frequent ones: a space and at least two small letters.
    """
    ids: dict[str, int] = tokenizer.get_vocab()
    by_frequency = sorted(ids, key=lambda token: ids[token])
    words = [token for token in by_frequency if token.startswith("Ġ") and token[1:].isalpha() and token[1:].islower()]
    common = [*MARKS, *[word for word in words if len(word) > 2][:WORDS]]
    logits = dict.fromkeys(digits, DIGIT) | dict.fromkeys(common, COMMON) | {"]": OFTEN}
    return [logits.get(token, SELDOM) for token in by_frequency]
