"""ZLaP: labels propagate from the class texts over a graph of texts and test images.

Nodes are the c class texts and the n images. An image has edges to its nearest images, weighted by their cosine s, and
to its nearest texts, weighted by s^γ, which brings the smaller similarities between modalities into proportion. With
W the symmetric sum of edges, D its row sums and Y one-hot rows for the texts,

    F = (I − α D^(−½) W D^(−½))⁻¹ Y

gives an image the class of its largest entry.

Stojnić, Kalantidis and Tolias, "Label Propagation for Zero-shot Classification with Vision-Language Models", CVPR 2024
(github.com/vladan-stojnic/ZLaP), transductive form on text, with its k = 5, γ = 5, α = 0.3. As in that code an image
is the first of its own k neighbours, so 4 others remain. The authors solve by conjugate gradients; here the series
Y + αAY + (αA)²Y + … is summed until its rest is below 1e-6, to the same result. Cosines are the model's, without scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from clip_tca.core.checks import Amount, Count, check_number
from clip_tca.methods.base import TransductiveMethod, directions, prototypes
from clip_tca.methods.neighbours import Graph, nearest

REST = 1e-6
"""What the sum of the series may lack, relative to the labels."""


@dataclass(kw_only=True, eq=False, repr=False)
class ZLaP(TransductiveMethod):
    """Class scores of all embeddings of a call, propagated together.

    New rows (``predict``) take the scores of their nearest nodes, as in the paper's inductive form.

    Args:
        graph_k: k, nearest images of an image (the first is itself), and nearest texts.
        text_power: γ.
        propagation: α, how far labels travel; below 1.
    """

    name = "zlap"
    summary = "labels propagate from the texts over a graph of texts and test images"
    updates = "class scores of a graph"

    graph_k: Count = 5
    text_power: Amount = 5.0
    propagation: Annotated[float, partial(check_number, high=0.99)] = 0.3

    def solve(self, z: Tensor) -> Tensor:
        """Logarithm of the propagated scores."""
        u, texts = directions(self.classifier, z), prototypes(self.classifier).to(z)
        c = len(texts)
        to_images, images = nearest(u, u, self.graph_k - 1, itself=False)
        to_texts, nearest_texts = self._text_edges(u, texts)
        weights = torch.cat([to_images.clamp_min(0), to_texts], dim=1)
        graph = Graph.of_images(weights, torch.cat([images + c, nearest_texts], dim=1), c)
        degree = graph.degrees()
        scale = torch.where(degree > 0, degree, 1).rsqrt()[:, None]
        labels = torch.eye(c, dtype=u.dtype, device=u.device)
        scores = term = torch.cat([labels, labels.new_zeros(len(u), c)])
        for _ in range(_terms(self.propagation)):
            term = self.propagation * scale * (graph @ (scale * term))
            scores = scores + term
        self.nodes_, self.scores_ = u, scores
        return _log(scores[c:])

    def place(self, z: Tensor) -> Tensor:
        """Logarithm of the scores of the nearest nodes, weighted as edges are."""
        u, texts, scores = directions(self.classifier, z), prototypes(self.classifier).to(z), self.scores_.to(z)
        to_images, images = nearest(u, self.nodes_.to(z), self.graph_k)
        to_texts, nearest_texts = self._text_edges(u, texts)
        from_images = (to_images.clamp_min(0)[..., None] * scores[images + len(texts)]).sum(dim=1)
        return _log(from_images + (to_texts[..., None] * scores[nearest_texts]).sum(dim=1))

    def _text_edges(self, u: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
        cosine, targets = nearest(u, texts, self.graph_k)
        return cosine.clamp_min(0) ** self.text_power, targets


def _terms(alpha: float) -> int:
    """Terms of Σ α^i after which the rest, α^(i+1) / (1 − α), is negligible."""
    return 0 if alpha == 0 else math.ceil(math.log(REST * (1 - alpha)) / math.log(alpha))


def _log(scores: Tensor) -> Tensor:
    return scores.clamp_min(torch.finfo(scores.dtype).tiny).log()
