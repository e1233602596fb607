"""DMN: a dynamic memory of test embeddings, read by similarity to each image; training-free, zero-shot form.

The memory keeps for each predicted class its most certain embeddings, and its text embedding. An image first tries to
enter it. Then the members m of each class, weighted by their similarity to the image, make a classifier of its own:

    w_c(z) = Σ_{m ∈ class c} exp(−β (1 − z·m)) m, scaled to unit length
    p(z) = softmax(scale · z · text) + weight · softmax(scale · z · w(z))

Zhang, Zhu, He and Zhang, "Dual Memory Networks: A Versatile Adaptation Approach for Vision-Language Models", CVPR 2024
(github.com/YBZh/DMN), with its β = 5.5 and 50 embeddings for each class. Its authors chose the weight of the memory for
each data set by the accuracy on the test set itself (they say so in issue 2 of that repository), from 0.001 to 1000;
here it is 1 everywhere, which is also what OGA's authors take when they compare. The original's prompts
and its views of an image are left out: an image has one embedding. The static memory needs labelled images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clip_tca.core.checks import Amount, Count
from clip_tca.methods.base import EmbeddingMethod, directions, prototypes, scaled_rows
from clip_tca.methods.certain_images import Cache

ROWS_AT_ONCE = 256
"""Images that enter and are predicted at a time; the result is that of one after another."""


@dataclass(kw_only=True, eq=False, repr=False)
class DMN(EmbeddingMethod):
    """A dynamic memory, filled image by image and carried from batch to batch.

    Args:
        memory_shots: Embeddings kept for each class.
        memory_sharpness: β.
        memory_weight: Of the memory's probabilities; those of the text count 1.
    """

    name = "dmn"
    summary = "adds the prediction of a memory of test embeddings, read by similarity"
    updates = "a memory of embeddings"
    tuned_on_test = "the weight of its memory, for each data set; here it is 1 (github.com/YBZh/DMN/issues/2)"

    memory_shots: Count = 50
    memory_sharpness: Amount = 5.5
    memory_weight: Amount = 1.0

    def __post_init__(self) -> None:
        self.scale = scaled_rows(self.task.classifier)[1]
        super().__post_init__()

    def reset(self) -> None:
        """Leave only the texts in the memory."""
        self.memory_ = Cache(self.memory_shots)

    def logits(self, z: Tensor, join: bool) -> Tensor:
        """Each image in turn tries to enter the memory, and is predicted with it."""
        return torch.cat([self._block(part, join) for part in z.split(ROWS_AT_ONCE)])

    def _block(self, z: Tensor, enter: bool) -> Tensor:
        log_p, u = self.classifier.log_probabilities(z), directions(self.classifier, z)
        predicted = log_p.argmax(dim=1)
        entropies = (-(log_p.exp() * log_p).sum(dim=1)).tolist() if enter else [None] * len(z)
        keys, labels, present = self.memory_.offer(u, predicted, predicted.tolist(), entropies)
        used = present.any(dim=0)
        read = self._read(u, keys[used].to(u.dtype), labels[used], present[:, used])
        both = torch.stack([log_p.to(z.dtype), read.log_softmax(dim=1)])
        weights = both.new_tensor([1.0, self.memory_weight]).log()  # of weight 0, −∞: the text alone
        return (both + weights[:, None, None]).logsumexp(dim=0)

    def _read(self, u: Tensor, keys: Tensor, labels: Tensor, present: Tensor) -> Tensor:
        """Logits ``(n, classes)`` of the memory's classifiers, without forming these: z·w and ‖w‖ from similarities."""
        texts = prototypes(self.classifier).to(u)
        keys = torch.cat([texts, keys])
        labels = torch.cat([torch.arange(len(texts), device=u.device), labels])
        present = torch.cat([present.new_ones(len(u), len(texts)), present], dim=1)
        members = by_class(labels, len(texts))
        rows = keys[members.clamp_min(0)]
        similarity = u @ keys.T
        weights = (self.memory_sharpness * (similarity - 1)).exp() * present
        weights = weights[:, members.clamp_min(0)].transpose(0, 1) * (members >= 0)[:, None]
        product = (weights * similarity[:, members.clamp_min(0)].transpose(0, 1)).sum(dim=2)
        square = (weights @ (rows @ rows.transpose(1, 2)) * weights).sum(dim=2)
        return self.scale * (product / square.clamp_min(torch.finfo(u.dtype).tiny).sqrt()).T


def by_class(labels: Tensor, classes: int) -> Tensor:
    """Indices of the members of each class ``(classes, largest)``, −1 where a class has fewer."""
    order = labels.argsort(stable=True)
    grouped = labels[order]
    rank = torch.arange(len(order), device=order.device) - torch.searchsorted(grouped, grouped)
    members = torch.full((classes, int(rank.max()) + 1), -1, device=labels.device)
    members[grouped, rank] = order
    return members
