"""CLIPArTT: a prompt for each image from its most likely classes, and agreement within the batch.

The names of image i's K most likely classes make one new prompt ("a photo of a dog or horse or giraffe") with the text
embedding tᵢ. The target Q is the similarity of images and texts within the batch:

    Q = softmax_rows((ZZᵀ + TTᵀ) / 2 / 0.01)        L = −1/n Σᵢ Σⱼ Q_ji log softmax_j(scale · zᵢ · tⱼ)

The gradient flows through Q as well; each step makes new prompts. A batch of one image has L = 0 and changes nothing.
Hakim, Osowiechi et al., "CLIPArTT: Adaptation of CLIP to New Domains at Test Time", WACV 2025
(github.com/dosowiechi/CLIPArTT).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.core.checks import Count, Positive, check_whole
from clip_tca.methods.base import required_prompts
from clip_tca.methods.tower import TowerMethod

TEMPERATURE = 0.01
PROMPTS = 8192
"""Prompts whose embeddings are kept, so that the text tower runs only for new combinations."""


@dataclass(kw_only=True, eq=False, repr=False)
class CLIPArTT(TowerMethod):
    """Pseudo-prompts of the K most likely classes, on the normalisation weights, reset for every batch.

    Prompts are required; the first template makes the new prompts and predicts. The defaults are those of the published
    code.

    Args:
        k: Classes joined into a prompt, in the order of their similarity.
    """

    name = "clipartt"
    summary = "matches images with prompts that join their most likely classes"

    lr: Positive = 1e-3
    steps: Count = 10
    k: int = 3

    def __post_init__(self) -> None:
        self.prompts = required_prompts(self.task, self.name)
        check_whole("k", self.k, 1, len(self.prompts.classes))
        self._embeddings: dict[tuple[int, ...], Tensor] = {}
        super().__post_init__()

    def adapt(self, batch: Tensor) -> None:
        """``steps`` steps on the agreement of the batch with its prompts."""
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


def agreement(z: Tensor, text: Tensor, scale: float) -> Tensor:
    """L above, of unit embeddings ``(n, d)`` of the images and of each image's text."""
    target = ((z @ z.T + text @ text.T) / 2 / TEMPERATURE).softmax(dim=1)
    return -(target.T * (scale * z @ text.T).log_softmax(dim=1)).sum(dim=1).mean()
