"""ZERO: the most certain views of an image vote for its class.

An image is seen as itself and as 63 random crops. Of these the 30 % whose predictions have the lowest entropy are kept
(set K), and the softmax of each is taken at temperature 0, which leaves a vote for its largest class. The mean of the
votes is the prediction:

    p̄ = 1/|K| Σ_{v ∈ K} lim_{τ→0} softmax(g(z_v) / τ)

Equal votes are decided by the other views, the most certain first: by the first that votes for one of the tied classes.
If none does, the first of them decides by its scores of these classes.

Farina, Franchi, Iacca, Mancini and Ricci, "Frustratingly Easy Test-Time Adaptation of Vision-Language Models", NeurIPS
2024 (arXiv 2405.18330; github.com/FarinaMatteo/zero, MIT, whose votes are the reference of the tests), with its 64
views and 30 %. In the last case of a tie that program may name a class that is not tied, by a mask that is inverted.
Logits are the logarithms of p̄, with a vote more for the winner of a tie, so confidences are shares of votes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clip_tca.core.checks import Part
from clip_tca.methods.views import PooledViews, most_certain_first


@dataclass(kw_only=True, eq=False, repr=False)
class Zero(PooledViews):
    """A vote of the views of each image.

    Args:
        keep: Part of the views that votes, rounded down, at least one.
    """

    name = "zero"
    summary = "the most certain crops of each image vote for its class"
    updates = "nothing"

    keep: Part = 0.3

    def pool(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The embedding of the image itself, and the logarithms of the shares of votes."""
        logits = self.task.classifier.logits(z)
        logits = logits[most_certain_first(logits.log_softmax(dim=1))]
        classes, kept = logits.argmax(dim=1), max(1, int(len(z) * self.keep))
        votes = classes[:kept].bincount(minlength=logits.shape[1])
        tied = votes == votes.max()
        if int(tied.sum()) > 1:
            others = classes[kept:]
            deciding = others[tied[others]]
            nearest = logits[min(kept, len(z) - 1)].masked_fill(~tied, -torch.inf).argmax()
            votes[deciding[0] if len(deciding) else nearest] += 1
        return z[0], (votes / votes.sum()).clamp_min(torch.finfo(z.dtype).tiny).log().to(z.dtype)
