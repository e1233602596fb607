"""TIPI: invariance to a simulated domain shift.

The shift is the small change of the input that moves the prediction most, ``‖δ‖_∞ ≤ ε``, found by one signed gradient
step from a random point. A step minimises ``KL(p(x + δ) ‖ p(x)) + H(p(x))`` with p(x) fixed in the first term, the
reverse of the usual divergence. Nguyen et al., "TIPI: Test Time Adaptation with Transformation Invariance", CVPR 2023
(github.com/atuannguyen/TIPI).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from clip_tca.core.checks import check_number, check_whole
from clip_tca.methods.base import Task
from clip_tca.methods.tent import entropy
from clip_tca.methods.tower import TowerMethod


class TIPI(TowerMethod):
    """Predictions become invariant to the input change of a given size that moves them most.

    Settings: those for ImageNet: SGD with momentum 0.9, learning rate 0.00025 for 64 images and proportional to the
    batch, ε = 2/255, random start, weight 1 for the entropy. ε counts in the model's normalised input, as it does in
    the original on ImageNet, and as there the shifted image is not clamped. Without the random start the divergence
    would have no gradient.
    """

    name: ClassVar[str] = "tipi"
    summary: ClassVar[str] = "invariance to an adversarial input shift, with entropy minimisation"
    changed: ClassVar[str] = (
        "The model runs in its own precision instead of half, and a tower with BatchNorm predicts unshifted images by "
        "the statistics of their batch instead of running ones."
    )
    ensemble: ClassVar[bool] = True

    def __init__(
        self,
        task: Task,
        *,
        lr: float = 2.5e-4,
        steps: int = 1,
        epsilon: float = 2 / 255,
        entropy_weight: float = 1.0,
        continual: bool = True,
        micro_batch: int | None = None,
        seed: int = 0,
    ) -> None:
        """Take over the model's normalisation weights.

        Args:
            task: Classifier and model.
            lr: Learning rate for a batch of 64 images; it grows in proportion.
            steps: Gradient steps for each batch.
            epsilon: ε, largest change of an input value.
            entropy_weight: Weight of the entropy beside the divergence.
            continual: Continue from the last batch instead of starting from the original weights.
            micro_batch: Images to back-propagate through at a time; None takes the whole batch.
            seed: Of the random starts.
        """
        check_number("epsilon", epsilon, 0)
        check_number("entropy_weight", entropy_weight, 0)
        check_whole("seed", seed, 0)
        self.epsilon, self.entropy_weight, self.seed = epsilon, entropy_weight, seed
        super().__init__(task, lr=lr, steps=steps, continual=continual, micro_batch=micro_batch)

    def reset(self) -> None:
        """Restore the original weights, with a new optimiser and the generator at its seed."""
        super().reset()
        self.generator = torch.Generator().manual_seed(self.seed)

    def new_optimizer(self) -> torch.optim.Optimizer:
        """SGD with momentum 0.9."""
        return torch.optim.SGD(self.parameters, lr=self.lr, momentum=0.9)

    def adapt(self, batch: Tensor) -> None:
        """Move predictions of shifted images towards the unshifted ones, and lower the entropy of these."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * len(batch) / 64
        for _ in range(self.steps):
            starts = torch.rand(batch.shape, generator=self.generator).to(batch)  # by the CPU: the same on every device
            size = self.micro_batch or len(batch)
            for part, start in zip(batch.split(size), starts.split(size), strict=True):
                plain = self.logits(self.embed(part))
                shifted = self.shift(part, (2 * start - 1) * self.epsilon, plain.detach())
                loss = self.divergence(shifted, plain.detach()) + self.entropy_weight * entropy(plain)
                (loss.sum() / len(batch)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def shift(self, batch: Tensor, delta: Tensor, plain: Tensor) -> Tensor:
        """Images changed by at most ε in every value, so that their predictions move away from ``plain``."""
        delta = delta.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.divergence(batch + delta, plain).sum(), delta)
        return batch + (delta.detach() + self.epsilon * gradient.sign()).clamp(-self.epsilon, self.epsilon)

    def divergence(self, batch: Tensor, plain: Tensor) -> Tensor:
        """KL(p(x) ‖ softmax(plain)) of each image, ``(n,)``."""
        log_p = self.logits(self.embed(batch)).log_softmax(dim=1)
        return (log_p.exp() * (log_p - plain.log_softmax(dim=1))).sum(dim=1)
