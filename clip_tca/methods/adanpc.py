"""AdaNPC: a vote of the nearest neighbours in a memory of embeddings.

With N(z) the k embeddings of the memory most similar to z, and their labels y_j:

    p_c = Σ_{j ∈ N(z)} w_j [y_j = c]        w = softmax over N(z) of z·k_j / temperature        logits = log(p + 1e-5)

Zhang et al., "AdaNPC: Exploring Non-Parametric Classifier for Test-Time Adaptation", ICML 2023
(github.com/yfzhang114/AdaNPC). In the original the memory holds the labelled source data, and confident test images
join it under the class they were voted into. **Here there is no source, so the memory is built from test data:** it
starts with the unit class weights (CLIP: text embeddings), the only vectors with known labels. Test images join it
before their batch is predicted, under the class that g predicts, if its probability reaches the threshold.

``labels="votes"`` keeps the original's rule: predict a batch, then add the images whose softmax *of the votes* reaches
the threshold. From a memory of texts alone this is fragile: images are more similar to each other than to texts, so
the first images' classes spread; and a softmax of probabilities never exceeds e / (e + classes − 1), which is 0.31 for
7 classes and 0.04 for 65.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from clip_tca.core.checks import Amount, Count, Positive
from clip_tca.methods.base import EmbeddingMethod, directions, prototypes

ROWS_AT_ONCE = 1024
"""Images compared at a time with the memory."""


@dataclass(kw_only=True, eq=False, repr=False)
class AdaNPC(EmbeddingMethod):
    """Nearest neighbours among class weights and confident test embeddings, carried from batch to batch.

    ``memory_`` has unit vectors ``(m, d)``, the class weights first, and ``memory_labels_`` their classes.

    Args:
        k: Neighbours that vote. This and the next two are the values with which the original's code starts, before a
            grid search by test accuracy.
        temperature: Of the votes.
        threshold: Confidence from which an image joins the memory (the original's beta); above 1 none does.
        labels: The class under which it joins: ``zero-shot``, or ``votes`` as in the original.
    """

    name = "adanpc"
    summary = "nearest-neighbour vote in a memory of test embeddings (the original's: source data)"
    updates = "a memory of embeddings"

    k: Count = 100
    temperature: Positive = 0.1
    threshold: Amount = 0.1
    labels: Literal["zero-shot", "votes"] = "zero-shot"

    def reset(self) -> None:
        """Leave only the class weights in the memory."""
        self.memory_ = prototypes(self.classifier)
        self.memory_labels_ = torch.arange(self.classifier.n_classes, device=self.memory_.device)

    def logits(self, z: Tensor, join: bool) -> Tensor:
        """Logarithm of the votes of the memory, on the device of ``z`` and in no less than its precision."""
        self.memory_ = self.memory_.to(z.device, torch.promote_types(self.memory_.dtype, z.dtype))
        self.memory_labels_ = self.memory_labels_.to(z.device)
        unit_z = directions(self.classifier, z)
        if join and self.labels == "zero-shot":
            self._join(unit_z, self.classifier.log_probabilities(z).exp())
        votes = torch.cat([self._votes(part) for part in unit_z.split(ROWS_AT_ONCE)])
        if join and self.labels == "votes":
            self._join(unit_z, votes.softmax(dim=1))
        return votes.log()

    def _join(self, z: Tensor, p: Tensor) -> None:
        confidence, labels = p.max(dim=1)
        confident = confidence >= self.threshold
        self.memory_ = torch.cat([self.memory_, z[confident]])
        self.memory_labels_ = torch.cat([self.memory_labels_, labels[confident]])

    def _votes(self, z: Tensor) -> Tensor:
        similarity = z.to(self.memory_.dtype) @ self.memory_.T
        nearest = similarity.topk(min(self.k, len(self.memory_)))
        weights = (nearest.values / self.temperature).softmax(dim=1)
        votes = weights.new_zeros(len(z), self.classifier.n_classes)
        votes.scatter_add_(1, self.memory_labels_[nearest.indices], weights)
        return (votes + 1e-5).clamp(max=1.0).to(z.dtype)
