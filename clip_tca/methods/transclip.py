"""TransCLIP: a Gaussian mixture of all test embeddings, held by a graph of neighbours and by zero-shot.

The mixture of :mod:`clip_tca.methods.mixture` with class means μ_c of unit length and one diagonal covariance for all
classes: the usual means and variances, weighted by the assignments.

Zanella, Gérin and Ben Ayed, "Boosting Vision-Language Models with Transduction", NeurIPS 2024 (arXiv 2406.01837): the
zero-shot form. :mod:`clip_tca.methods.mixture` says where objective, rounds, λ = 1 and 3 neighbours are from. A summary
of the paper (sciencestack.ai/paper/2406.01837) has updates in closed form of "class means and diagonals". That all
classes share one diagonal, that means have unit length, and that variances start at 1/d was found by running the
authors' program (AGPL), whose outputs are the reference of the tests. That a class mean starts as that of the 8
embeddings of highest ŷ_c, weighted by it, is from the guide beside that program. The scale in ŷ is the model's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from clip_tca.core.checks import Count
from clip_tca.core.tensors import unit
from clip_tca.methods.mixture import SMALLEST, MixtureMethod


@dataclass(kw_only=True, eq=False, repr=False)
class TransCLIP(MixtureMethod):
    """Class assignments of all embeddings of a call; the other options are those of :class:`MixtureMethod`.

    Args:
        start_shots: Embeddings whose mean a class mean starts from.
    """

    name = "transclip"
    summary = "Gaussian mixture of all test embeddings, held by a graph of neighbours and by zero-shot"
    updates = "class assignments, class means and a diagonal covariance"

    start_shots: Count = 8

    def start(self, u: Tensor, log_p: Tensor) -> None:
        """Means of the most confident embeddings of each class."""
        top = log_p.topk(min(self.start_shots, len(u)), dim=0)
        self.means_ = unit((u[top.indices] * top.values.exp()[..., None].to(u.dtype)).sum(dim=0))
        self.variance_ = u.new_full((u.shape[1],), 1 / u.shape[1])

    def update(self, u: Tensor, assigned: Tensor) -> None:
        """Weighted means and their common variances."""
        sums, counts = assigned.T @ u, assigned.sum(dim=0)
        self.means_ = unit(sums)
        spread = (u * u).sum(dim=0) - (2 * sums * self.means_ - counts[:, None] * self.means_**2).sum(dim=0)
        self.variance_ = (spread / len(u)).clamp_min(SMALLEST)

    def log_likelihood(self, u: Tensor) -> Tensor:
        """−½ (z − μ_c)ᵀ Σ⁻¹ (z − μ_c) without the square of z."""
        scaled = self.means_.to(u) / self.variance_.to(u)
        return u @ scaled.T - (scaled * self.means_.to(u)).sum(dim=1) / 2
