"""ECALP: labels propagate over a graph of texts and images that grows with the test set.

Nodes are the class texts and all images so far. An image has edges to its k nearest images, of which the first is
itself, by a cosine that is reweighted by context, the variance v of the texts in each dimension,

    s_ij = max(0, unit(v ⊙ z_i) · z_j)^γ

and to its 3 nearest texts by max(0, z_i · t_c)^γ. With W the symmetric sum of edges and D its row sums, the scores F of
the images follow from those at the start in a few rounds of

    F ← rows of the images of D^(−½) W D^(−½) [Y; F]

where Y are one-hot rows for the texts. New images start at 0; the others at a fifth of their largest score of the last
time, for its class alone.

Li, Su, Goodge, Jia and Xu, "Efficient and Context-Aware Label Propagation for Zero-/Few-Shot Training-Free Adaptation
of Vision-Language Model", ICLR 2025 (arXiv 2412.18303; github.com/Yushu-Li/ECALP, MIT), zero-shot form, with its k = 8,
3 texts, γ = 10 and 3 rounds. We could not read the paper; the equations are those of the program, whose outputs for one
batch are the reference of the tests. There an image joins alone, and twice, and the edges of later images are
reweighted by their neighbours' side; here all images of a batch join at once, and every edge is reweighted as above.
Cosines are the model's, without scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clip_tca.core.checks import Amount, Count
from clip_tca.core.tensors import unit
from clip_tca.methods.base import EmbeddingMethod, directions, prototypes
from clip_tca.methods.neighbours import Graph, nearest

CARRIED = 0.2
"""The part of its largest score with which an image starts when others join."""

APART = 1e-6
"""Added to the square roots of D, as the authors do."""


@dataclass(kw_only=True, eq=False, repr=False)
class ECALP(EmbeddingMethod):
    """Class scores of all embeddings so far, carried from batch to batch.

    New rows (``predict``) join a copy of the graph for their own prediction, one at a time.

    Args:
        image_neighbours: k, the first of which is the image itself.
        text_neighbours: Texts that an image is connected with.
        edge_power: γ.
        rounds: Rounds of propagation.
    """

    name = "ecalp"
    summary = "labels propagate from the texts over a graph that grows with the test images"
    updates = "class scores of a graph"

    image_neighbours: Count = 8
    text_neighbours: Count = 3
    edge_power: Amount = 10.0
    rounds: Count = 3

    @torch.inference_mode(False)
    @torch.no_grad()
    def reset(self) -> None:
        """Leave only the texts in the graph."""
        texts = prototypes(self.classifier)
        self.images_, self.starts_ = texts.new_empty(0, texts.shape[1]), texts.new_empty(0, len(texts))
        self.near_ = texts.new_empty(0, 0), torch.empty(0, 0, dtype=torch.int64, device=texts.device)

    def logits(self, z: Tensor, join: bool) -> Tensor:
        """Logarithm of the propagated scores."""
        u = directions(self.classifier, z).to(self.images_)
        if join:
            self.near_ = self._neighbours(u)
            self.images_ = torch.cat([self.images_, u])
            scores = self._propagate(self.images_, self.near_)
            largest, classes = scores.max(dim=1, keepdim=True)
            self.starts_ = torch.zeros_like(scores).scatter_(1, classes, CARRIED * largest)
            found = scores[-len(u) :]
        else:
            alone = [(torch.cat([self.images_, row[None]]), self._neighbours(row[None])) for row in u]
            found = torch.cat([self._propagate(*graph)[-1:] for graph in alone])
        return found.clamp_min(torch.finfo(torch.float32).tiny).log().to(z)

    def _neighbours(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and indices of the nearest images of each when rows ``(n, d)`` have joined."""
        context, old = prototypes(self.classifier).to(u).var(dim=0), len(self.images_)
        images = torch.cat([self.images_, u])
        cosine, index = nearest(unit(u * context), images, self.image_neighbours)
        if not old:
            return cosine, index
        joined = unit(self.images_ * context) @ u.T
        values = torch.cat([self.near_[0], joined], dim=1)
        named = torch.cat([self.near_[1], torch.arange(old, len(images), device=u.device).expand_as(joined)], dim=1)
        values, place = values.topk(cosine.shape[1])
        return torch.cat([values, cosine]), torch.cat([named.gather(1, place), index])

    def _propagate(self, images: Tensor, near: tuple[Tensor, Tensor]) -> Tensor:
        """The scores of all images."""
        texts = prototypes(self.classifier).to(images)
        c, new = len(texts), len(images) - len(self.starts_)
        to_texts, near_texts = nearest(images, texts, self.text_neighbours)
        weights = torch.cat([near[0], to_texts], dim=1).clamp_min(0) ** self.edge_power
        graph = Graph.of_images(weights, torch.cat([near[1] + c, near_texts], dim=1), c)
        scale = 1 / (graph.degrees().sqrt() + APART)
        scores = torch.cat([self.starts_, self.starts_.new_zeros(new, c)])
        labels = torch.eye(c, dtype=scores.dtype, device=scores.device)
        for _ in range(self.rounds):
            both = scale[:, None] * torch.cat([labels, scores])
            scores = scale[c:, None] * (graph @ both)[c:]
        return scores
