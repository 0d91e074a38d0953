# pyright: basic, reportMissingImports=false
"""Write a two-layer model of random weights, with a tokenizer of its own, that a real vLLM can serve on a CPU.

It runs in the environment that ``build.py`` makes, not in the product's: ``make_model.py DIRECTORY``.

A network of purely random weights draws every token alike, so a JSON string seldom closes before its bound and an
answer seldom ends. Two channels of the residual stream, which no layer writes to, prevent that. One is the same for
every token, and the output layer reads it as a bias. It draws about ``WORDS`` common words and the marks that end a
string, an array, an object or the answer alike, all else almost never. The other marks the quotation mark and the line
break, after which neither a string nor the answer may end: no text is empty. The rest is random, so that the output
depends on the prompt.
"""

import pydoc_data.topics
import sys
from pathlib import Path
from string import digits

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 1024
WORDS = 24
"""Common words that are drawn as often as each mark: an answer or a string has about this many tokens on average."""
CONTEXT_TOKENS = 16384
END = "<|im_end|>"
MARKS = (END, '"', "{", "}", "[", "]", ",", ":", ".")
SELDOM, DIGIT, COMMON, OFTEN = -20.0, -6.0, 0.0, 1.0
"""Logits of most tokens, of digits, of the common words and the marks, and of ``]``.

Digits win over the white space that JSON allows before a number, and a list seldom runs to its bound."""
NEVER = -10.0
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of ``VOCABULARY`` tokens, trained on Python's own help topics."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(pydoc_data.topics.topics.values(), trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.model_max_length = CONTEXT_TOKENS
    return wrapped


def favoured(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Ids of the marks and of the ``WORDS`` most frequent whole words: a space and at least two small letters."""
    ids: dict[str, int] = tokenizer.get_vocab()
    by_frequency = sorted(ids, key=lambda token: ids[token])
    words = [token for token in by_frequency if token.startswith("Ġ") and token[1:].isalpha() and token[1:].islower()]
    return [ids[token] for token in (*MARKS, *[word for word in words if len(word) > 2][:WORDS])]


def make_weights(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Random weights, always the same ones, but for the two channels of the module's docstring."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,  # the smallest that vLLM's attention on the CPU takes
            max_position_embeddings=CONTEXT_TOKENS,
            tie_word_embeddings=False,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    bias = torch.full((len(tokenizer),), SELDOM)
    bias[tokenizer.convert_tokens_to_ids(list(digits))] = DIGIT
    bias[favoured(tokenizer)] = COMMON
    bias[tokenizer.convert_tokens_to_ids("]")] = OFTEN
    openings = tokenizer.convert_tokens_to_ids(['"', "Ċ"])
    endings = tokenizer.convert_tokens_to_ids(['"', END])
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[:2] = 0.0
            layer.mlp.down_proj.weight[:2] = 0.0
        inputs, outputs = model.model.embed_tokens.weight, model.lm_head.weight
        inputs.normal_(std=0.1)
        inputs[:, 0] = 1.0
        inputs[:, 1] = 0.0
        inputs[openings, 1] = 1.0
        outputs.normal_(std=0.02)
        # After the last RMSNorm the constant channel is about 1 / sqrt(mean(x²)) of what went in.
        outputs[:, 0] = bias * inputs.pow(2).mean(dim=1).sqrt().mean()
        outputs[:, 1] = 0.0
        outputs[endings, 1] = NEVER
    return model


def main(directory: Path) -> None:
    """Save the tokenizer and the weights to ``directory``."""
    tokenizer = train_tokenizer()
    tokenizer.save_pretrained(directory)
    make_weights(tokenizer).save_pretrained(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
