# pyright: basic, reportMissingImports=false
"""Write a model of random weights that sees: the tiny model's text layers under a small CLIP tower, as in LLaVA.

It runs in the environment that ``build.py`` makes, not in the product's: ``-m tests.vllm.make_seeing_model DIRECTORY``.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

from tests.vllm.make_model import make_tokenizer, make_weights

IMAGE = "<image>"
SIDE, PATCH = 56, 14


def main(directory: Path) -> None:
    tokenizer = make_tokenizer()
    text = make_weights(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE]})
    text.resize_token_embeddings(len(tokenizer))
    torch.manual_seed(1)
    vision = CLIPVisionConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=64,
    )
    image_token_id = tokenizer.convert_tokens_to_ids(IMAGE)
    model = LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=text.config, image_token_index=image_token_id)
    )
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    model.save_pretrained(directory)
    # vLLM 0.32 knows the tower by its older names.
    weights = directory / "model.safetensors"
    old, new = "vision_tower.", "vision_tower.vision_model."
    tensors = {name.replace(old, new): tensor for name, tensor in load_file(weights).items()}
    save_file(tensors, weights, metadata={"format": "pt"})
    size = {"height": SIDE, "width": SIDE}
    images = CLIPImageProcessorPil(size=size, crop_size=size)
    LlavaProcessor(
        images,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=tokenizer.chat_template,
        image_token=IMAGE,
        num_additional_image_tokens=1,
    ).save_pretrained(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
