"""MTA: the mode of an image's views, sought by a mean shift that weighs every view by how well it fits.

An image is seen as itself and as 63 random crops with embeddings f_p and zero-shot probabilities s_p. An inlierness y_p
of every view, with Σ_p y_p = 1, and the mode m decrease in turn

    −Σ_p y_p K(f_p − m) − λ/2 Σ_pq s_p·s_q y_p y_q + λ_y Σ_p y_p log y_p        K(f_p − m) = exp(−‖f_p − m‖² / h_p²)

by a few rounds of

    y_p ∝ exp((K(f_p − m) + λ Σ_q s_p·s_q y_q) / λ_y)        m ← unit(Σ_p y_p K(f_p − m) f_p)

where h_p² is the mean squared distance of f_p from the nearest 30 % of the other views. The mode starts at the image
itself, y at 1/n, and g predicts the mode.

Zanella and Ben Ayed, "On the test-time zero-shot generalization of vision-language models: Do we really need prompt
learning?", CVPR 2024 (arXiv 2405.02266; github.com/MaxZanella/MTA, MIT, whose logits are the reference of the tests),
with its λ = 4, λ_y = 0.2, and 5 rounds of at most 5 updates of y and then of m. A head on raw features has a mode that
is not scaled to unit length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clip_tca.core.checks import Amount, Count, Positive
from clip_tca.core.tensors import unit
from clip_tca.methods.views import PooledViews

NEAREST = 0.3
"""Part of the other views that decides the bandwidth of one."""

SAME = 1e-6
"""Change of y or m below which updates end."""


@dataclass(kw_only=True, eq=False, repr=False)
class MTA(PooledViews):
    """The mode of the views of each image.

    Args:
        affinity_weight: λ, of the agreement of predictions.
        entropy_weight: λ_y.
        rounds: Of both updates in turn, and at most so many of each in a round.
    """

    name = "mta"
    summary = "predicts the mode of each image's crops, sought by a robust mean shift"
    updates = "nothing"

    affinity_weight: Amount = 4.0
    entropy_weight: Positive = 0.2
    rounds: Count = 5

    def pool(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The mode, and what g says of it."""
        g, n = self.task.classifier, len(z)
        p = g.log_probabilities(z).exp().to(z.dtype)
        affinity = p @ p.T
        squares = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist").square().sort(dim=1).values
        bandwidth = squares[:, 1 : max(2, int(NEAREST * (n - 1)) + 1)].mean(dim=1).clamp_min(torch.finfo(z.dtype).eps)
        mode, inlierness = z[0], z.new_full((n,), 1 / n)
        for _ in range(self.rounds if n > 1 else 0):
            kernel = self._kernel(z, mode, bandwidth)
            for _ in range(self.rounds):
                old = inlierness
                fits = kernel + self.affinity_weight * affinity @ inlierness
                inlierness = (fits / self.entropy_weight).softmax(dim=0)
                if torch.linalg.vector_norm(old - inlierness) < SAME:
                    break
            for _ in range(self.rounds):
                old, weights = mode, self._kernel(z, mode, bandwidth) * inlierness
                mode = weights @ z / weights.sum()
                mode = unit(mode[None])[0] if g.unit_rows else mode
                if torch.linalg.vector_norm(old - mode) < SAME:
                    break
        return mode, g.logits(mode[None])[0]

    def _kernel(self, z: Tensor, mode: Tensor, bandwidth: Tensor) -> Tensor:
        return (-(z - mode).square().sum(dim=1) / bandwidth).exp()
