"""ZLaP and ECALP: labels propagate from the class texts over a graph of texts and test images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from clip_tca.adapters.statistics import nearest
from clip_tca.core.checks import Amount, Count, check_number
from clip_tca.core.tensors import unit
from clip_tca.methods.base import EmbeddingMethod, TransductiveMethod, directions, finite_log, prototypes

ROWS_AT_ONCE = 1024  # compared with all others at a time
REST = 1e-6  # what the sum of ZLaP's series may lack, relative to the labels
CARRIED = 0.2  # part of its largest score with which an image of ECALP starts when others join
APART = 1e-6  # added to the square roots of D by ECALP's authors


def similar_images(u: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Cosine and index ``(n, k)`` of the ``k`` nearest others of each unit row of ``u`` ``(n, d)``."""
    index = nearest(u, k)
    return torch.einsum("nd,nkd->nk", u, u[index]), index


def most_similar(z: Tensor, others: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Cosine and index ``(n, k)`` of the ``k`` nearest of ``others`` ``(m, d)`` for each of ``z``, all unit rows."""
    tops = [(part @ others.T).topk(min(k, len(others))) for part in z.split(ROWS_AT_ONCE)]
    return torch.cat([top.values for top in tops]), torch.cat([top.indices for top in tops])


@dataclass(frozen=True)
class Graph:
    """Edges from each of n nodes to k others: weights and targets ``(n, k)``; an edge counts in both directions."""

    weights: Tensor
    targets: Tensor

    @classmethod
    def of_images(cls, weights: Tensor, targets: Tensor, texts: int) -> Graph:
        """A graph whose first nodes are texts, which have edges only from images, given as ``(images, k)``."""
        none = weights.new_zeros(texts, weights.shape[1]), targets.new_zeros(texts, weights.shape[1])
        return cls(torch.cat([none[0], weights]), torch.cat([none[1], targets]))

    def degrees(self) -> Tensor:
        """The row sums of W + Wᵀ ``(n,)``."""
        return self.weights.sum(dim=1).index_add_(0, self.targets.flatten(), self.weights.flatten())

    def __matmul__(self, x: Tensor) -> Tensor:
        """(W + Wᵀ) x of values ``(n, classes)`` at the nodes."""
        along = (self.weights[..., None] * x[self.targets]).sum(dim=1)
        against = (self.weights[..., None] * x[:, None]).flatten(0, 1)
        return along.index_add_(0, self.targets.flatten(), against)


@dataclass(kw_only=True, eq=False, repr=False)
class ZLaP(TransductiveMethod):
    """ZLaP: class scores of all embeddings of a call, propagated together.

    Nodes are the c class texts and the n images. An image has edges to its nearest images, weighted by their cosine s,
    and to its nearest texts, weighted by s^γ, which brings the smaller similarities between modalities into proportion.
    With W the symmetric sum of edges, D its row sums and Y one-hot rows for the texts,

        F = (I − α D^(−½) W D^(−½))⁻¹ Y

    gives an image the class of its largest entry. New rows (``predict``) take the scores of their nearest nodes. The
    series Y + αAY + (αA)²Y + … is summed until its rest is below 1e-6.

    Stojnić, Kalantidis and Tolias, "Label Propagation for Zero-shot Classification with Vision-Language Models", CVPR
    2024, transductive form on text.
    """

    name = "zlap"
    summary = "labels propagate from the texts over a graph of texts and test images"
    updates = "class scores of a graph"

    graph_k: Count = 5  # k, nearest images of an image (the first is itself), and nearest texts
    text_power: Amount = 5.0  # γ
    propagation: Annotated[float, partial(check_number, high=0.99)] = 0.3  # α, how far labels travel

    def solve(self, z: Tensor) -> Tensor:
        u, texts = directions(self.classifier, z), prototypes(self.classifier).to(z)
        c = len(texts)
        to_images, images = similar_images(u, self.graph_k - 1)
        to_texts, nearest_texts = self._text_edges(u, texts)
        weights = torch.cat([to_images.clamp_min(0), to_texts], dim=1)
        graph = Graph.of_images(weights, torch.cat([images + c, nearest_texts], dim=1), c)
        degree = graph.degrees()
        scale = torch.where(degree > 0, degree, 1).rsqrt()[:, None]
        labels = torch.eye(c, dtype=u.dtype, device=u.device)
        scores = term = torch.cat([labels, labels.new_zeros(len(u), c)])
        for _ in range(self._terms()):
            term = self.propagation * scale * (graph @ (scale * term))
            scores = scores + term
        self.nodes_, self.scores_ = u, scores
        return finite_log(scores[c:])

    def place(self, z: Tensor) -> Tensor:
        u, texts, scores = directions(self.classifier, z), prototypes(self.classifier).to(z), self.scores_.to(z)
        to_images, images = most_similar(u, self.nodes_.to(z), self.graph_k)
        to_texts, nearest_texts = self._text_edges(u, texts)
        from_images = (to_images.clamp_min(0)[..., None] * scores[images + len(texts)]).sum(dim=1)
        return finite_log(from_images + (to_texts[..., None] * scores[nearest_texts]).sum(dim=1))

    def _text_edges(self, u: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
        cosine, targets = most_similar(u, texts, self.graph_k)
        return cosine.clamp_min(0) ** self.text_power, targets

    def _terms(self) -> int:
        """Terms of Σ α^i after which the rest, α^(i+1) / (1 − α), is negligible."""
        alpha = self.propagation
        return 0 if alpha == 0 else math.ceil(math.log(REST * (1 - alpha)) / math.log(alpha))


@dataclass(kw_only=True, eq=False, repr=False)
class ECALP(EmbeddingMethod):
    """ECALP: labels propagate over a graph of texts and images that grows with the test set.

    Nodes are the class texts and all images so far. An image has edges to its k nearest images, of which the first is
    itself, by a cosine that is reweighted by context, the variance v of the texts in each dimension,

        s_ij = max(0, unit(v ⊙ z_i) · z_j)^γ

    and to its nearest texts by max(0, z_i · t_c)^γ. With W the symmetric sum of edges and D its row sums, the scores F
    of the images follow from those at the start in a few rounds of

        F ← rows of the images of D^(−½) W D^(−½) [Y; F]

    where Y are one-hot rows for the texts. New images start at 0; the others at a fifth of their largest score of the
    last time, for its class alone. New rows (``predict``) join a copy of the graph, one at a time.

    Li, Su, Goodge, Jia and Xu, "Efficient and Context-Aware Label Propagation for Zero-/Few-Shot Training-Free
    Adaptation of Vision-Language Model", ICLR 2025 (arXiv 2412.18303), zero-shot form. Differs: all images of a batch
    join at once, and only once, and every edge is reweighted on the same side.
    """

    name = "ecalp"
    summary = "labels propagate from the texts over a graph that grows with the test images"
    updates = "class scores of a graph"

    image_neighbours: Count = 8  # k
    text_neighbours: Count = 3  # texts that an image is connected with
    edge_power: Amount = 10.0  # γ
    rounds: Count = 3  # of propagation

    def clear(self) -> None:
        texts = prototypes(self.classifier)
        self.images_, self.starts_ = texts.new_empty(0, texts.shape[1]), texts.new_empty(0, len(texts))
        self.near_ = texts.new_empty(0, 0), torch.empty(0, 0, dtype=torch.int64, device=texts.device)

    def logits(self, z: Tensor, join: bool) -> Tensor:
        u = directions(self.classifier, z).to(self.images_)
        if join:
            self.near_ = self._neighbours(u)
            self.images_ = torch.cat([self.images_, u])
            every = self._propagate(self.images_, self.near_)
            largest, classes = every.max(dim=1, keepdim=True)
            self.starts_ = torch.zeros_like(every).scatter_(1, classes, CARRIED * largest)
            scores = every[-len(u) :]
        else:
            alone = [(torch.cat([self.images_, row[None]]), self._neighbours(row[None])) for row in u]
            scores = torch.cat([self._propagate(*graph)[-1:] for graph in alone])
        return finite_log(scores).to(z)

    def _neighbours(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and indices of the nearest images of each when rows ``(n, d)`` have joined."""
        context, old = prototypes(self.classifier).to(u).var(dim=0), len(self.images_)
        images = torch.cat([self.images_, u])
        cosine, index = most_similar(unit(u * context), images, self.image_neighbours)
        if not old:
            return cosine, index
        to_new = unit(self.images_ * context) @ u.T
        values = torch.cat([self.near_[0], to_new], dim=1)
        targets = torch.cat([self.near_[1], torch.arange(old, len(images), device=u.device).expand_as(to_new)], dim=1)
        values, columns = values.topk(cosine.shape[1])
        return torch.cat([values, cosine]), torch.cat([targets.gather(1, columns), index])

    def _propagate(self, images: Tensor, near: tuple[Tensor, Tensor]) -> Tensor:
        """The scores of all images."""
        texts = prototypes(self.classifier).to(images)
        c, new = len(texts), len(images) - len(self.starts_)
        to_texts, near_texts = most_similar(images, texts, self.text_neighbours)
        weights = torch.cat([near[0], to_texts], dim=1).clamp_min(0) ** self.edge_power
        graph = Graph.of_images(weights, torch.cat([near[1] + c, near_texts], dim=1), c)
        scale = 1 / (graph.degrees().sqrt() + APART)
        scores = torch.cat([self.starts_, self.starts_.new_zeros(new, c)])
        labels = torch.eye(c, dtype=scores.dtype, device=scores.device)
        for _ in range(self.rounds):
            both = scale[:, None] * torch.cat([labels, scores])
            scores = scale[c:, None] * (graph @ both)[c:]
        return scores
