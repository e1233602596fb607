"""Which classes a block of rows may still belong to: the others are left out of a round of ConditionalTCA, by a bound.

In many dimensions a row is sure of its class, and most classes have so little of it that float32 can't tell it from
nothing. Once a block of rows has been scored for all classes, its next scores U_ic = P_ic + β(yᵢ·t_c − b_c), where
t_c = S⁻¹m_c, b_c = ½m_cᵀt_c and P_ic = λ log p⁰ + γ log π_c, are bounded by the earlier ones. With s = β′/β,

    U′_ic  ≤  s U_ic + (1−s) P_ic + P′_c − P_c + β′(‖yᵢ‖_Λ ‖t′_c − t_c‖_Λ⁻¹ + b_c − b′_c)                          (3)

in the metric of the covariance Λ⁻¹ of all rows, where P′_c − P_c is the change of the prior. Leaving out a row's own
share only lowers a score. A class whose bound is so far below the best score of every row of the block that all such
classes together are less than the rounding of 1 need not be scored. How many are left is what the bound says; where it
says too little, all are scored again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clip_tca.adapters.gaussians import Gaussians

Drift = tuple[Tensor, Tensor, Tensor]
"""‖t′_c − t_c‖, b_c − b′_c and P′_c − P_c, each ``(c,)``."""


def drift(earlier: Gaussians, later: Gaussians, widths: Tensor) -> Drift:
    """How far classes have moved; ``widths`` ``(r,)`` are the standard deviations of all rows along the axes."""
    moved = torch.linalg.vector_norm((later.towards - earlier.towards) * widths, dim=1)
    return moved, 0.5 * (earlier.squares - later.squares), later.log_prior - earlier.log_prior


@dataclass
class Sight:
    """What is remembered of the scores of a block of m rows for all classes.

    Attributes:
        fitted: The Gaussians by which they were scored.
        best: ``(m,)`` the best score of each row, without the −½β‖yᵢ‖² that all its scores share.
        evidence: ``(m,)`` P of the class that has it.
        gaps: ``(c,)`` by how much the score of a class is above the best, at most over the rows (below zero mostly).
        most: ``(c,)`` by how much P of a class is above that of the best, at most over the rows.
        least: ``(c,)`` the same, at least.
    """

    fitted: Gaussians
    best: Tensor
    evidence: Tensor
    gaps: Tensor
    most: Tensor
    least: Tensor

    @classmethod
    def of(cls, fitted: Gaussians, scores: Tensor, upper: Tensor, evidence: Tensor, shared: Tensor) -> Sight:
        """Of ``scores``, U = ``upper`` and P = ``evidence``, all ``(m, c)``; the latter two are overwritten.

        ``shared`` ``(m,)`` is −½β‖yᵢ‖².
        """
        best, named = scores.max(dim=1, keepdim=True)
        own = evidence.gather(1, named)
        gaps, evidence = upper.sub_(best).amax(dim=0), evidence.sub_(own)
        return cls(fitted, best[:, 0] - shared, own[:, 0], gaps, evidence.amax(dim=0), evidence.amin(dim=0))

    def bound(self, later: Gaussians, moved: Drift, reach: float) -> Tensor:
        """(3) less what is expected of the best score, s ``best`` + (1−s) ``evidence``, at most over the rows ``(c,)``.

        ``reach`` is the largest ‖yᵢ‖ of the block.
        """
        s = float(later.trust / self.fitted.trust)
        towards, bias, prior = moved
        return (
            s * self.gaps
            + (1 - s) * (self.most if s < 1 else self.least)
            + prior
            + later.trust * (reach * towards + bias)
        )

    def shortfall(self, later: Gaussians, best: Tensor) -> float:
        """By how much the ``best`` scores ``(m,)`` of the rows, as in :attr:`best`, are less than expected at most."""
        s = float(later.trust / self.fitted.trust)
        return float((s * self.best + (1 - s) * self.evidence - best).amax())
