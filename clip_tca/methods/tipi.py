"""TIPI: invariance to a simulated domain shift.

The shift is the small change of the input that moves the prediction most, ``‖δ‖_∞ ≤ ε``, found by one signed gradient
step from a random point. A step minimises ``KL(p(x + δ) ‖ p(x)) + H(p(x))`` with p(x) fixed in the first term, the
reverse of the usual divergence. Nguyen et al., "TIPI: Test Time Adaptation with Transformation Invariance", CVPR 2023
(github.com/atuannguyen/TIPI).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clip_tca.core.checks import Amount, Natural, Positive
from clip_tca.methods.tent import entropy
from clip_tca.methods.tower import ScaledMethod


@dataclass(kw_only=True, eq=False, repr=False)
class TIPI(ScaledMethod):
    """Predictions become invariant to the input change of a given size that moves them most.

    The defaults are those for ImageNet. ε counts in the model's normalised input, as it does in the original on
    ImageNet, and as there the shifted image is not clamped. Without the random start the divergence would have no
    gradient.

    Args:
        epsilon: ε, largest change of an input value.
        entropy_weight: Weight of the entropy beside the divergence.
        seed: Of the random starts.
    """

    name = "tipi"
    summary = "invariance to an adversarial input shift, with entropy minimisation"
    changed = (
        "The model runs in its own precision instead of half, and a tower with BatchNorm predicts unshifted images by "
        "the statistics of their batch instead of running ones."
    )

    lr: Positive = 2.5e-4
    epsilon: Amount = 2 / 255
    entropy_weight: Amount = 1.0
    seed: Natural = 0

    def reset(self) -> None:
        """Restore the original weights, with a new optimiser and the generator at its seed."""
        super().reset()
        self.generator = torch.Generator().manual_seed(self.seed)

    def adapt(self, batch: Tensor) -> None:
        """Move predictions of shifted images towards the unshifted ones, and lower the entropy of these."""
        self.scale_rate(len(batch))
        for _ in range(self.steps):
            starts = torch.rand(batch.shape, generator=self.generator).to(batch)  # by the CPU: the same on every device
            for part, start in zip(self.parts(batch), self.parts(starts), strict=True):
                plain = self.logits(self.embed(part))
                shifted = self.shift(part, (2 * start - 1) * self.epsilon, plain.detach())
                loss = self.divergence(shifted, plain.detach()) + self.entropy_weight * entropy(plain)
                (loss.sum() / len(batch)).backward()
            self.step()

    def shift(self, batch: Tensor, delta: Tensor, plain: Tensor) -> Tensor:
        """Images changed by at most ε in every value, so that their predictions move away from ``plain``."""
        delta = delta.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.divergence(batch + delta, plain).sum(), delta)
        return batch + (delta.detach() + self.epsilon * gradient.sign()).clamp(-self.epsilon, self.epsilon)

    def divergence(self, batch: Tensor, plain: Tensor) -> Tensor:
        """KL(p(x) ‖ softmax(plain)) of each image, ``(n,)``."""
        log_p = self.logits(self.embed(batch)).log_softmax(dim=1)
        return (log_p.exp() * (log_p - plain.log_softmax(dim=1))).sum(dim=1)
