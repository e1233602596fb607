"""TPT: tune the prompt on one image, so that its views agree.

An image is seen as itself and as 63 random crops. Of these the 10 % whose predictions have the lowest entropy are kept
(set K), and the embeddings of the prompt's context words, at first "a photo of a", take one step down the entropy of
the mean prediction:

    L = −Σ_c p̄_c log p̄_c        p̄ = 1/|K| Σ_{v ∈ K} softmax(scale · z_v · text(context)ᵀ)

Then the image itself is predicted with the tuned prompt, and the context is put back. Shu et al., "Test-Time Prompt
Tuning for Zero-Shot Generalization in Vision-Language Models", NeurIPS 2022 (github.com/azshue/TPT). As there: AdamW
with its default weight decay of 0.01, crops of 8 to 100 % of the picture's area with flips (its setting for ImageNet
and the shifted ImageNets; only its fine-grained data sets add AugMix), and the one prompt "a photo of a {}." whatever
the task's templates are. Class names are taken as the task has them (the original turns underscores into spaces).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from clip_tca.core.checks import Natural, Part, Positive
from clip_tca.core.tensors import compute_dtype, unit
from clip_tca.methods.base import required_prompts
from clip_tca.methods.views import ViewMethod, check_views, most_certain_first

CONTEXT = "a photo of a"
LOSS_SCALE = 1024.0
"""Keeps gradients of half-precision models from vanishing (the original: 1000); a power of 2 changes nothing else."""


@dataclass(kw_only=True, eq=False, repr=False)
class TPT(ViewMethod):
    """Prompt tuning for each image on its own; nothing is carried over, and the model never changes.

    Args:
        task: Model and prompts (required), of which class names, tokenizer and scale are used.
        lr: Learning rate of AdamW.
        steps: Steps for each image; 0 predicts with the untuned prompt.
        keep: Part of the views that is kept, rounded down, at least one.
    """

    name = "tpt"
    summary = "tunes the prompt on each image until its crops agree"
    updates = "4 context tokens of the prompt"
    backpropagation = True

    lr: Positive = 5e-3
    steps: Natural = 1
    keep: Part = 0.1

    def __post_init__(self) -> None:
        prompts = required_prompts(self.task, self.name)
        super().__post_init__()
        self.scale = prompts.scale
        self._embedding = token_embedding(self.task.model)
        with torch.inference_mode(False), torch.no_grad():
            device = next(self._embedding.parameters()).device
            self._tokens = prompts.tokenizer([f"{CONTEXT} {name}." for name in prompts.classes]).clone().to(device)
            context_tokens, empty_tokens = prompts.tokenizer([CONTEXT, ""]).to(device)
            # the context: the tokens that all prompts begin with, without one that starts every text
            shared = int((self._tokens == context_tokens).all(dim=0).long().cumprod(dim=0).sum())
            self._start = int(shared > 0 and bool(empty_tokens[0] == context_tokens[0]))
            if shared <= self._start:
                raise ValueError(f"tokenizer: no tokens of {CONTEXT!r} are shared by all prompts; TPT can't tune them")
            context = self._embedding(context_tokens[None])[0, self._start : shared]
            self.context = context.to(compute_dtype(context.dtype))  # (words, width), untuned

    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Tune the prompt on each image of ``(n, views, 3, height, width)`` and predict the image itself."""
        return self._images(check_views(batch), self.steps)

    def predict(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Predict each image with the untuned prompt."""
        return self._images(check_views(batch)[:, :1], 0)

    @torch.inference_mode(False)
    def _images(self, batch: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            start = self.context.clone().requires_grad_(steps > 0)
            text = self._texts(start)  # the first step of every image goes back through this
            pairs = [self._image(batch[i], start, text, steps) for i in range(len(batch))]
        z, logits = zip(*pairs, strict=True)
        return torch.stack(z), torch.stack(logits)

    def _image(self, views: Tensor, start: Tensor, text: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            z = unit(self.task.model.encode_image(views))
        context = start.detach().clone().requires_grad_()
        optimizer = torch.optim.AdamW([context], lr=self.lr)
        selected: Tensor | None = None
        for step in range(steps):
            if step > 0:
                start, text = context, self._texts(context)
            log_p = self._logits(z, text).log_softmax(dim=1)
            if selected is None:  # selected once, as in the original
                selected = most_certain_first(log_p.detach())[: max(1, int(len(z) * self.keep))]
            mean = log_p[selected].logsumexp(dim=0) - math.log(len(selected))
            loss = -LOSS_SCALE * (mean.exp() * mean).sum()  # entropy of the mean prediction
            context.grad = torch.autograd.grad(loss, start, retain_graph=step == 0)[0] / LOSS_SCALE
            optimizer.step()
        if steps > 0:
            with torch.no_grad():
                text = self._texts(context)
        return z[0], self._logits(z[:1], text.detach())[0]

    def _logits(self, z: Tensor, text: Tensor) -> Tensor:
        with torch.autocast(z.device.type, enabled=False):  # half precision is too coarse for logits of this size
            return self.scale * z @ text.to(z.dtype).T

    def _texts(self, context: Tensor) -> Tensor:
        """Unit text embeddings ``(classes, d)`` of the prompts with this context."""

        def insert(_module: nn.Module, _tokens: tuple[Any, ...], embedded: Tensor) -> Tensor:
            tuned = context.to(embedded.dtype).expand(len(embedded), -1, -1)
            after = self._start + tuned.shape[1]
            return torch.cat([embedded[:, : self._start], tuned, embedded[:, after:]], dim=1)

        hook = self._embedding.register_forward_hook(insert)
        try:
            text: Tensor = self.task.model.encode_text(self._tokens)
        finally:
            hook.remove()
        return functional.normalize(text.to(compute_dtype(text.dtype)), dim=1)


def token_embedding(model: Any) -> nn.Module:
    """The module that turns tokens into vectors, in open_clip's own text towers and in those of transformers."""
    for name, module in model.named_modules():
        if name.split(".")[-1] == "token_embedding":
            return module  # type: ignore[no-any-return]
    get_embeddings = getattr(getattr(getattr(model, "text", None), "transformer", None), "get_input_embeddings", None)
    if get_embeddings is None:
        raise ValueError(f"{type(model).__name__}: a text tower without token embeddings; TPT has no prompt to tune")
    return get_embeddings()  # type: ignore[no-any-return]
