"""TENT: entropy minimisation at test time.

Each step lowers the mean entropy of the batch's predictions p = softmax(g(z)):

    L = −1/n Σᵢ Σ_c p_ic log p_ic

by the normalisation weights of the image tower. Wang et al., "Tent: Fully Test-Time Adaptation by Entropy
Minimization", ICLR 2021. On CLIP as in the code of CLIPArTT (github.com/dosowiechi/CLIPArTT): LayerNorm in place of
BatchNorm where the tower is a transformer, 10 steps of Adam for each batch instead of one, one plain template, and the
prediction is made after the last step (TENT's own code predicts before it).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from clip_tca.core.checks import Count, Positive
from clip_tca.methods.tower import TowerMethod


@dataclass(kw_only=True, eq=False, repr=False)
class Tent(TowerMethod):
    """Entropy minimisation on the normalisation weights, reset for every batch.

    Of several templates the first predicts. The defaults are those of CLIPArTT's code. WATT's scripts have lr 1e-4 on
    PACS, OfficeHome and VLCS, for WATT itself: its repository has no TENT, so the rate behind the TENT rows it reports
    is not known. TENT's own code continues from the last batch by default, with weights and optimiser.
    """

    name = "tent"
    summary = "lowers the entropy of the predictions of a batch"
    changed = "As in CLIPArTT's code: LayerNorm too, 10 steps, and a batch is predicted after its last step."

    lr: Positive = 1e-3
    steps: Count = 10

    def adapt(self, batch: Tensor) -> None:
        """``steps`` steps on the mean entropy."""
        for _ in range(self.steps):
            self.descend(batch, lambda z: entropy(self.logits(z)).mean())


def entropy(logits: Tensor) -> Tensor:
    """−Σ p log p of each row's softmax, ``(n,)``."""
    return -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)
