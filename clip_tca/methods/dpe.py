"""DPE: text and image prototypes that evolve with the test images, by one gradient step for each image.

A cache keeps for each predicted class the 3 embeddings of lowest entropy; the image prototype v_c of a class is their
mean. Every image first tries to enter it. Then residuals r and q of the texts t_c and of the image prototypes, which
start at 0, take one step of AdamW down

    H(softmax ℓ(z)) + λ L(v, t)        ℓ_c(z) = scale · z · t'_c + α exp(−β (1 − z · v'_c))
    t'_c = unit(t_c + r_c)             v'_c = unit(v_c + q_c)

where the second term of ℓ is for classes with a cache, and L is the mean cross-entropy of finding the text of a class
by its image prototype, softmax(scale · v'_c · t'). The image is predicted by ℓ after the step. If the entropy of that
is below 0.1 log₂ K for K classes, the texts become their mean over these moments, t ← (m t + t') / (m + 1), m = 1, 2, …

Zhang, Stepputtis, Sycara and Xie, "Dual Prototype Evolving for Test-Time Generalization of Vision-Language Models",
NeurIPS 2024 (arXiv 2410.12790; github.com/zhangce01/DPE-CLIP, MIT). That code sets α, β, λ and the learning rate for
each data set; the defaults are those of its ImageNet configuration. In AdamW's first step from 0 a residual becomes
−η ∇ / (|∇| + 1e-3), which is what is computed here. Its prompts by a language model and its views of an image are left
out: an image has one embedding. Its constants of 100 are the classifier's scale. New rows (``predict``) take no step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.core.checks import Amount, Count
from clip_tca.core.tensors import unit
from clip_tca.methods.base import EmbeddingMethod, directions, prototypes, scaled_rows
from clip_tca.methods.certain_images import Cache

SMALL = 1e-3
"""AdamW's ε."""


@dataclass(kw_only=True, eq=False, repr=False)
class DPE(EmbeddingMethod):
    """Text and image prototypes, evolved image by image and carried from batch to batch.

    Args:
        shots: Embeddings kept for each class.
        image_weight: α, of the image prototypes.
        image_sharpness: β.
        alignment: λ.
        learning_rate: η, of both residuals.
        certain: Entropy over log₂ of the number of classes below which an image changes the texts.
    """

    name = "dpe"
    summary = "text and image prototypes evolve by one gradient step for each image"
    updates = "text prototypes and a cache of embeddings"
    backpropagation = True

    shots: Count = 3
    image_weight: Amount = 6.0
    image_sharpness: Amount = 5.0
    alignment: Amount = 0.5
    learning_rate: Amount = 6e-4
    certain: Amount = 0.1

    def __post_init__(self) -> None:
        self.scale = scaled_rows(self.task.classifier)[1]
        super().__post_init__()

    @torch.inference_mode(False)
    @torch.no_grad()
    def reset(self) -> None:
        """The texts, and an empty cache."""
        self.texts_ = prototypes(self.classifier).clone()
        self.cache_, self.averaged_ = Cache(self.shots), 1

    def logits(self, z: Tensor, join: bool) -> Tensor:
        """Logits of the text and image prototypes; each image in turn joins, takes a step and is predicted."""
        u = directions(self.classifier, z).to(self.texts_)
        if join:
            return torch.cat([self._visit(row[None]) for row in u]).to(z)
        return self._logits(u, unit(self.texts_), *self._images()).to(z)

    def _visit(self, u: Tensor) -> Tensor:
        log_p = self._logits(u, unit(self.texts_)).log_softmax(dim=1)
        label, entropy = int(log_p.argmax()), float(-(log_p.exp() * log_p).sum())
        self.cache_.offer(u, torch.tensor([label], device=u.device), [label], [entropy])
        images, classes = self._images()
        moved = torch.zeros_like(self.texts_, requires_grad=True), torch.zeros_like(images, requires_grad=True)
        with torch.enable_grad():
            texts, rows = (
                functional.normalize(a + b, dim=1) for a, b in zip((self.texts_, images), moved, strict=True)
            )
            log_p = self._logits(u, texts, rows, classes).log_softmax(dim=1)
            found = self.scale * rows @ texts[classes].T
            aligned = functional.cross_entropy(found, torch.arange(len(rows), device=u.device))
            loss = -(log_p.exp() * log_p).sum() + self.alignment * aligned
        slopes = torch.autograd.grad(loss, moved)
        texts, rows = (
            unit(start - self.learning_rate * slope / (slope.abs() + SMALL))
            for start, slope in zip((self.texts_, images), slopes, strict=True)
        )
        logits = self._logits(u, texts, rows, classes)
        log_p = logits.log_softmax(dim=1)
        if float(-(log_p.exp() * log_p).sum()) < self.certain * math.log2(len(texts)):
            self.texts_ = (self.averaged_ * self.texts_ + texts) / (self.averaged_ + 1)
            self.averaged_ += 1
        return logits

    def _images(self) -> tuple[Tensor, Tensor]:
        """The image prototypes ``(m, d)``, and their classes ``(m,)``."""
        if self.cache_.keys is None or self.cache_.values is None:
            return self.texts_[:0], torch.empty(0, dtype=torch.int64, device=self.texts_.device)
        classes, owner = self.cache_.values.unique(return_inverse=True)
        sums = self.texts_.new_zeros(len(classes), self.texts_.shape[1]).index_add_(0, owner, self.cache_.keys)
        return sums / torch.bincount(owner)[:, None], classes

    def _logits(self, u: Tensor, texts: Tensor, images: Tensor | None = None, classes: Tensor | None = None) -> Tensor:
        logits = self.scale * u @ texts.T + self.classifier.bias.to(u)
        if images is None or classes is None:
            return logits
        votes = self.image_weight * (self.image_sharpness * (u @ functional.normalize(images, dim=1).T - 1)).exp()
        return logits.index_add(1, classes, votes)
