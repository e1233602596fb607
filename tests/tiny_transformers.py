"""Tiny image-text models of transformers in a folder, with random weights: nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

WORDS = ("a", "photo", "of", "cat", "dog", "horse", "house", ".")
SIZE, LENGTH = 32, 12


def tiny(kind: str, folder: Path) -> str:
    """A ``clip`` or ``siglip`` model, as ``save_pretrained`` writes it with image processor and tokenizer."""
    import transformers

    names = {"clip": "CLIP", "siglip": "Siglip"}
    library: Any = transformers
    vision = {"image_size": SIZE, "patch_size": 16}
    special = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    text = {"vocab_size": 32, "max_position_embeddings": LENGTH, **special}
    shared = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 2}
    config = getattr(library, f"{names[kind]}Config")(
        text_config={**text, **shared, "projection_size": 32},
        vision_config={**vision, **shared},
        **({"projection_dim": 24} if kind == "clip" else {}),
    )
    torch.manual_seed(0)
    model = getattr(library, f"{names[kind]}Model")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        if kind == "siglip":
            model.logit_bias.fill_(-3.5)
            model.logit_scale.fill_(2.0)
    model.save_pretrained(folder)
    square = {"height": SIZE, "width": SIZE}
    sizes = {"clip": {"size": {"shortest_edge": SIZE}, "crop_size": square}, "siglip": {"size": square}}
    getattr(library, f"{names[kind]}ImageProcessor")(**sizes[kind]).save_pretrained(folder)
    _tokenizer(library).save_pretrained(folder)
    return str(folder)


def _tokenizer(library: Any) -> Any:
    """A word is a token; unknown words are one too."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    special = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    numbers = {word: number for number, word in enumerate((*special.values(), *WORDS))}
    made = Tokenizer(WordLevel(numbers, special["unk_token"]))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return library.PreTrainedTokenizerFast(tokenizer_object=made, **special)
