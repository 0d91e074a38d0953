# pyright: basic, reportMissingImports=false
"""Write a two-layer model of random weights that llama.cpp can serve: ``-m tests.engines.make_gguf FILE``.

It runs in the environment that ``build.py`` makes, not in the product's. What the model writes is noise.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np

from tests.vllm import vocabulary

WIDTH, HIDDEN, HEADS, KV_HEADS, LAYERS = 128, 256, 4, 2, 2
HEAD = WIDTH // HEADS


def add_tokenizer(writer: gguf.GGUFWriter, merges: list[str], tokens: list[str]) -> None:
    control = {vocabulary.START, vocabulary.END}
    types = [gguf.TokenType.CONTROL if token in control else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokens.index(vocabulary.END))
    writer.add_add_bos_token(False)
    writer.add_chat_template(vocabulary.CHAT_TEMPLATE)


def weights(tokens: list[str], bias: list[float]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)

    def drawn(rows: int, columns: int, std: float = 0.02) -> np.ndarray:
        return random.normal(0.0, std, (rows, columns)).astype(np.float32)

    def at(names: tuple[str, ...]) -> list[int]:
        return [tokens.index(name) for name in names]

    inputs, outputs = drawn(len(tokens), WIDTH, 0.1), drawn(len(tokens), WIDTH)
    inputs[:, 0], inputs[:, 1] = 1.0, 0.0
    inputs[at(vocabulary.OPENINGS), 1] = 1.0
    # After the last RMSNorm the constant channel is about 1 / sqrt(mean(x²)) of what went in.
    outputs[:, 0] = np.array(bias) * np.sqrt((inputs**2).mean(axis=1)).mean()
    outputs[:, 1] = 0.0
    outputs[at(vocabulary.ENDINGS), 1] = vocabulary.NEVER
    ones = np.ones(WIDTH, np.float32)
    found = {"token_embd.weight": inputs, "output.weight": outputs, "output_norm.weight": ones}
    for layer in range(LAYERS):
        drawn_here = {
            "attn_q": drawn(WIDTH, WIDTH),
            "attn_k": drawn(KV_HEADS * HEAD, WIDTH),
            "attn_v": drawn(KV_HEADS * HEAD, WIDTH),
            "attn_output": drawn(WIDTH, WIDTH),
            "ffn_gate": drawn(HIDDEN, WIDTH),
            "ffn_up": drawn(HIDDEN, WIDTH),
            "ffn_down": drawn(WIDTH, HIDDEN),
            "attn_norm": ones,
            "ffn_norm": ones,
        }
        drawn_here["attn_output"][:2] = drawn_here["ffn_down"][:2] = 0.0
        found |= {f"blk.{layer}.{name}.weight": tensor for name, tensor in drawn_here.items()}
    return found


def main(file: Path) -> None:
    tokenizer = vocabulary.trained()
    merges = [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    tokens = [tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size())]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("tiny")
    writer.add_context_length(vocabulary.CONTEXT_TOKENS)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    add_tokenizer(writer, merges, tokens)
    for name, tensor in weights(tokens, vocabulary.favour(tokenizer)).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
