# pyright: basic, reportMissingImports=false
"""Write a two-layer model of random weights, with a tokenizer of its own, that a real vLLM can serve on a CPU.

It runs in the environment that ``build.py`` makes, not in the product's: ``-m tests.vllm.make_model DIRECTORY``.
"""

import sys
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tests.vllm import vocabulary


def make_tokenizer() -> PreTrainedTokenizerFast:
    end = vocabulary.END
    wrapped = PreTrainedTokenizerFast(tokenizer_object=vocabulary.trained(), eos_token=end, pad_token=end)
    wrapped.chat_template = vocabulary.CHAT_TEMPLATE
    wrapped.model_max_length = vocabulary.CONTEXT_TOKENS
    return wrapped


def make_weights(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
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
            max_position_embeddings=vocabulary.CONTEXT_TOKENS,
            tie_word_embeddings=False,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    bias = torch.tensor(vocabulary.favour(tokenizer.backend_tokenizer))
    openings = tokenizer.convert_tokens_to_ids([*vocabulary.OPENINGS])
    endings = tokenizer.convert_tokens_to_ids([*vocabulary.ENDINGS])
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
        outputs[endings, 1] = vocabulary.NEVER
    return model


def main(directory: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(directory)
    make_weights(tokenizer).save_pretrained(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
