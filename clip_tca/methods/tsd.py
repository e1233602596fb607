"""TSD: test-time self-distillation with prototypes from a memory.

A memory holds, for every class, the embeddings predicted as it with the lowest entropy; it starts with the classifier's
weights. Their mean directions c_k classify an embedding by ``y = softmax(cos(z, c_k))``. A step minimises the mean of
``KL(y ‖ softmax(p))`` with p the classifier's probabilities, without gradient in p and c, over the images on which both
agree: ``arg max y = arg max p``. Wang et al., "Feature Alignment and Uniformity for Test Time Adaptation", CVPR 2023
(github.com/SakurajimaMaiii/TSD).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.adapters.linear import certain_rows
from clip_tca.core.checks import Count, Flag
from clip_tca.methods.base import class_rows, directions
from clip_tca.methods.tent import entropy
from clip_tca.methods.tower import ContinualMethod

Similarity = Literal["cosine", "l1"]


@dataclass(kw_only=True, eq=False, repr=False)
class TSD(ContinualMethod):
    """Embeddings move so that prototypes from a memory predict them as the classifier does.

    Adam, with the authors' learning rate for normalisation weights. The published code differs from the paper: it
    scales by the L1 norm in place of the cosine and has no consistency filter; ``similarity="l1", consistent=False`` is
    that code. The paper's local clustering term has weight 0 there and is left out here.

    Args:
        entries: Embeddings remembered for each class.
        similarity: Of embeddings and prototypes.
        consistent: Learn only from images on which classifier and prototypes agree.
    """

    name = "tsd"
    summary = "self-distillation between the classifier and prototypes from a memory"
    changed = (
        "The memory starts with the class weights (text embeddings), only normalisation weights change (the original "
        "changes all by default), and a batch is predicted after its step instead of before."
    )

    entries: Count = 100
    similarity: Similarity = "cosine"
    consistent: Flag = True

    def reset(self) -> None:
        """Restore the original weights, with a new optimiser and a memory of the class weights alone."""
        super().reset()
        with torch.inference_mode(False), torch.no_grad():
            start = self.rows if self.task.prompts else self._copied(class_rows(self.task.classifier))
            logits = self.logits(start)
            self.memory = directions(self.task.classifier, start)
            self.labels, self.uncertainty = logits.argmax(dim=1), entropy(logits)

    def adapt(self, batch: Tensor) -> None:
        """Remember the batch, then move towards agreement with the prototypes."""
        for step in range(self.steps):
            self.descend(batch, partial(self._loss, step == 0))

    def _loss(self, new: bool, z: Tensor) -> Tensor:
        logits = self.logits(z.detach())
        if new:
            self.remember(z.detach(), logits)
        order = 2.0 if self.similarity == "cosine" else 1.0
        similarity = functional.normalize(z, p=order) @ functional.normalize(self.prototypes(), p=order).T
        log_y, log_target = similarity.log_softmax(dim=1), logits.softmax(dim=1).log_softmax(dim=1)
        consistent = self.agree(logits, similarity)
        return (log_y.exp() * (log_y - log_target)).sum(dim=1)[consistent].sum() / consistent.sum().clamp(min=1)

    def agree(self, logits: Tensor, similarity: Tensor) -> Tensor:
        """Which images get the same class from classifier and prototypes ``(n,)``; all of them without the filter."""
        if not self.consistent:
            return torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        return logits.argmax(dim=1) == similarity.argmax(dim=1)

    def remember(self, z: Tensor, logits: Tensor) -> None:
        """Add embeddings to the memory; every class keeps its ``entries`` most certain."""
        unit_z = directions(self.task.classifier, z)
        memory, labels = torch.cat([self.memory, unit_z]), torch.cat([self.labels, logits.argmax(dim=1)])
        uncertainty = torch.cat([self.uncertainty, entropy(logits)])
        chosen = certain_rows(uncertainty, labels, labels.new_full((logits.shape[1],), self.entries))
        self.memory, self.labels, self.uncertainty = memory[chosen], labels[chosen], uncertainty[chosen]

    def prototypes(self) -> Tensor:
        """Sum of the remembered embeddings of each class ``(classes, d)``."""
        members = functional.one_hot(self.labels, len(self.rows)).to(self.memory)
        return members.T @ self.memory
