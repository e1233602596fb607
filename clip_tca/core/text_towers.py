"""The text tower of a loaded model of open_clip or transformers: texts to embeddings by the model's own methods.

open_clip's models have ``encode_text``, those of transformers ``get_text_features``. Neither library is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from clip_tca.core.conversion import as_number, pooled

Template = str | Callable[[str], str]
"""A text with ``{}`` where the class name goes, or a function of the name, as open_clip's own templates are."""


def fill(templates: Template | Sequence[Template], classes: Sequence[str]) -> list[str]:
    """Every class name in every template, template by template: (templates · classes,)."""
    listed = [templates] if isinstance(templates, str) or callable(templates) else list(templates)
    if not listed:
        raise ValueError("templates: none; give at least one, such as 'a photo of a {}'")
    for template in listed:
        if not callable(template) and "{}" not in str(template):
            raise ValueError(f"templates: {template!r} has no {{}}; write it where the class name goes")
    return [
        template(name) if callable(template) else template.replace("{}", name)
        for template in listed
        for name in classes
    ]


def tokens(model: Any, tokenizer: Any, texts: list[str]) -> dict[str, Tensor]:
    """Tokens ``(n, length)`` for a model of transformers, as long as its longest, and the mask of those that count."""
    config = model.config
    length = config.text_config.max_position_embeddings
    inputs = tokenizer(texts, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
    # SigLIP was trained without a mask
    names = ("input_ids",) if config.model_type.startswith("siglip") else ("input_ids", "attention_mask")
    return {name: inputs[name] for name in names if name in inputs}


@torch.inference_mode()
def encode_texts(model: Any, tokenizer: Any, texts: list[str], batch: int = 256) -> Tensor:
    """Embeddings ``(n, d)`` of texts by a model of open_clip or transformers, in float32, ``batch`` at a time.

    ``tokenizer`` is the model's, or for transformers its processor.
    """
    is_transformers = hasattr(model, "get_text_features")
    if not is_transformers and not hasattr(model, "encode_text"):
        raise TypeError(
            f"model: a {type(model).__name__} has neither encode_text (open_clip) nor get_text_features "
            "(transformers); encode the prompts yourself: ZeroShotClassifier(text_embeddings, scale)"
        )
    device, training, rows = next(model.parameters()).device, model.training, []
    if training:
        model.eval()  # without dropout, which open_clip's models have until then
    try:
        for part in (texts[start : start + batch] for start in range(0, len(texts), batch)):
            if is_transformers:
                inputs = tokens(model, getattr(tokenizer, "tokenizer", tokenizer), part)
                output = model.get_text_features(**{name: value.to(device) for name, value in inputs.items()})
                rows.append(pooled(output, "text").float())
            else:
                rows.append(model.encode_text(tokenizer(part).to(device)).float())
    finally:
        if training:
            model.train()
    return torch.cat(rows)


def scale_of(model: Any) -> float:
    """exp of the model's logit scale."""
    if getattr(model, "logit_scale", None) is None:
        raise ValueError(
            f"scale: a {type(model).__name__} has no logit_scale; pass it, such as scale=100.0 for OpenAI's CLIP"
        )
    return as_number("scale", model.logit_scale.detach().exp())


def bias_of(model: Any) -> float:
    """The model's logit bias (SigLIP); 0 for others."""
    bias = getattr(model, "logit_bias", None)
    return 0.0 if bias is None else as_number("bias", bias)
