"""CLIPArTT and WATT: gradient steps towards agreement of images with texts in templates.

With unit embeddings Z of the images and T of each image's text, the target Q is the similarity within the batch:

    Q = softmax_rows((ZZᵀ + TTᵀ) / 2 / 0.01)        L = −1/n Σᵢ Σⱼ Q_ji log softmax_j(scale · zᵢ · tⱼ)

The gradient flows through Q as well. A batch of one image has L = 0 and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.core.checks import Count, Positive, check_whole
from clip_tca.methods.base import required_prompts
from clip_tca.methods.tower import TowerMethod

TEMPERATURE = 0.01  # of Q
PROMPTS = 8192  # whose embeddings are kept, so that the text tower runs only for new combinations


def agreement(z: Tensor, text: Tensor, scale: float) -> Tensor:
    """L above, of unit embeddings ``(n, d)`` of the images and of each image's text."""
    target = ((z @ z.T + text @ text.T) / 2 / TEMPERATURE).softmax(dim=1)
    return -(target.T * (scale * z @ text.T).log_softmax(dim=1)).sum(dim=1).mean()


@dataclass(kw_only=True, eq=False, repr=False)
class CLIPArTT(TowerMethod):
    """CLIPArTT: the text of an image joins its K most likely classes ("a photo of a dog or horse or giraffe").

    Each step makes new texts, from the first template, which also predicts. The defaults are those of the published
    code.

    Hakim, Osowiechi et al., "CLIPArTT: Adaptation of CLIP to New Domains at Test Time", WACV 2025.
    """

    name = "clipartt"
    summary = "matches images with prompts that join their most likely classes"

    lr: Positive = 1e-3
    steps: Count = 10
    k: int = 3  # classes joined into a prompt, in the order of their similarity

    def __post_init__(self) -> None:
        self.prompts = required_prompts(self.task, self.name)
        check_whole("k", self.k, 1, len(self.prompts.classes))
        self._embeddings: dict[tuple[int, ...], Tensor] = {}
        super().__post_init__()

    def adapt(self, batch: Tensor) -> None:
        for _ in range(self.steps):
            self.descend(batch, self._loss)

    def _loss(self, z: Tensor) -> Tensor:
        top_classes = self.logits(z.detach()).topk(self.k, dim=1).indices
        return agreement(z, self.prompt_embeddings(top_classes.tolist()), self.scale)

    @torch.no_grad()
    def prompt_embeddings(self, choices: list[list[int]]) -> Tensor:
        """Unit embeddings of the prompts that join the chosen classes, ``(n, d)``."""
        new = [choice for choice in dict.fromkeys(map(tuple, choices)) if choice not in self._embeddings]
        if len(self._embeddings) + len(new) > PROMPTS:
            self._embeddings.clear()
            new = list(dict.fromkeys(map(tuple, choices)))
        if new:
            joined = [" or ".join(self.prompts.classes[index] for index in choice) for choice in new]
            tokens = self.prompts.tokenizer([self.prompts.templates[0].replace("{}", names) for names in joined])
            text = self.task.model.encode_text(tokens.to(self.rows.device)).to(self.rows.dtype)
            self._embeddings.update(zip(new, functional.normalize(text, dim=1), strict=True))
        return torch.stack([self._embeddings[tuple(choice)] for choice in choices])


@dataclass(kw_only=True, eq=False, repr=False)
class WattS(TowerMethod):
    """WATT: adapt once for each template, then average the weights, θ ← 1/H Σ_h θ_h, and repeat.

    The text of an image is that of its most likely class in the template. In sequence (WATT-S) every template starts
    where the one before it ended, in parallel (WATT-P) from the last average. The mean of the templates predicts.
    Averaging does not reset Adam's moments; in the first repetition of WATT-P each template has a new optimiser.
    ``continual`` starts a batch from the last average, with a new optimiser. The defaults are those of the published
    scripts for PACS, OfficeHome and VLCS.

    Osowiechi, Noori et al., "WATT: Weight Average Test-Time Adaptation of CLIP", NeurIPS 2024.
    """

    name = "watt-s"
    summary = "adapts for one template after the other and averages the weights"
    changed = "Towers with BatchNorm and the form without reset are additions."
    ensemble = True
    parallel: ClassVar[bool] = False

    lr: Positive = 1e-4
    steps: Count = 2  # for each template (the paper's L)
    repetitions: Count = 5  # times the weights are averaged (M)

    def __post_init__(self) -> None:
        text = required_prompts(self.task, self.name).embeddings
        super().__post_init__()
        with torch.inference_mode(False):
            self.texts = functional.normalize(self._copied(text), dim=-1)

    def adapt(self, batch: Tensor) -> None:
        self.optimizer = self.new_optimizer()
        for repetition in range(self.repetitions):
            start, ends = self.weights(), []
            for text in self.texts:
                if self.parallel:
                    self.load(start)
                    if repetition == 0:
                        self.optimizer = self.new_optimizer()
                for _ in range(self.steps):
                    self.descend(batch, partial(self._loss, text))
                ends.append(self.weights())
            self.load([sum(weights) / len(ends) for weights in zip(*ends, strict=True)])

    def _loss(self, text: Tensor, z: Tensor) -> Tensor:
        return agreement(z, text[(z.detach() @ text.T).argmax(dim=1)], self.scale)


@dataclass(kw_only=True, eq=False, repr=False)
class WattP(WattS):
    """WATT-P, with ten times the repetitions: its scripts have 50."""

    name = "watt-p"
    summary = "adapts for each template in parallel and averages the weights"
    parallel = True

    repetitions: Count = 50
