"""TEA: test-time energy adaptation.

The classifier is read as an energy model, ``E(x) = −log Σ_k exp f_k(x)``. A step lowers the energy of the test images
and raises that of samples x̃ from the model, ``loss = mean E(x) − mean E(x̃)``. Samples come from Langevin dynamics,
``x̃ ← x̃ − α ∇E(x̃) + σ noise``, that goes on where an earlier chain ended (a replay buffer) or starts from noise. Yuan
et al., "TEA: Test-time Energy Adaptation", CVPR 2024 (github.com/yuanyige/tea).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clip_tca.core.checks import Amount, Count, Natural, Share
from clip_tca.methods.tower import ContinualMethod

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
"""CLIP's normalisation of pixels, for a model whose configuration has none."""


@dataclass(kw_only=True, eq=False, repr=False)
class TEA(ContinualMethod):
    """Test images get a lower energy, samples from the model a higher one.

    By Adam. The original's inputs are pixels from 0 to 1, CLIP's are normalised: the chains are in pixels,
    start uniformly from −1 to 1 as published, and pass through the model's own normalisation, so that α and σ keep
    their meaning. As in the original, they are not clamped.

    A chain is stored after its first visit (0.6 MB at 224 × 224, in main memory); its initial noise is drawn then.

    Args:
        langevin_steps: Steps of a chain each time it is visited.
        langevin_lr: α, how far a step follows the gradient.
        langevin_std: σ of the noise in a step.
        buffer: Number of chains.
        restart: Share of chains that start from noise again.
        seed: Of the samples.
    """

    name = "tea"
    summary = "lower energy for test images, higher energy for samples from the model"
    changed = (
        "Samples are drawn in pixels and pass through CLIP's normalisation, since CLIP's inputs are normalised and the "
        "original's are not."
    )

    langevin_steps: Natural = 20
    langevin_lr: Amount = 0.1
    langevin_std: Amount = 0.01
    buffer: Count = 10_000
    restart: Share = 0.05
    seed: Natural = 0

    def __post_init__(self) -> None:
        config = getattr(self.task.model.visual, "preprocess_cfg", None) or {}
        self._normalisation = config.get("mean", MEAN), config.get("std", STD)
        super().__post_init__()

    def reset(self) -> None:
        """Restore the original weights, with a new optimiser, no chains, and the generator at its seed."""
        super().reset()
        self.chains: dict[int, Tensor] = {}
        self.generator = torch.Generator().manual_seed(self.seed)

    def adapt(self, batch: Tensor) -> None:
        """Lower the energy of the batch against that of as many samples."""
        for _ in range(self.steps):
            for images, sign in ((self.sample(batch), -1), (batch, 1)):
                for part in self.parts(images):
                    (sign * self.energy(part).sum() / len(batch)).backward()
            self.step()

    def energy(self, batch: Tensor) -> Tensor:
        """−log Σ_k exp logit_k of preprocessed images, ``(n,)``."""
        return -self.logits(self.embed(batch)).logsumexp(dim=1)

    def sample(self, batch: Tensor) -> Tensor:
        """As many samples from the model as there are images, in the shape and range of the model's input."""
        mean, std = (batch.new_tensor(values)[:, None, None] for values in self._normalisation)
        # Drawn on the CPU, so that a seed gives the same samples on every device.
        places = torch.randint(self.buffer, (len(batch),), generator=self.generator).tolist()
        start = torch.empty(batch.shape).uniform_(-1, 1, generator=self.generator)
        restarts = (torch.rand(len(batch), generator=self.generator) < self.restart).tolist()
        for row, (place, again) in enumerate(zip(places, restarts, strict=True)):
            if place in self.chains and not again:
                start[row] = self.chains[place]
        x = start.to(batch)
        for _ in range(self.langevin_steps):
            slopes: list[Tensor] = []
            for part in self.parts(x.requires_grad_()):
                slopes += torch.autograd.grad(self.energy((part - mean) / std).sum(), part)
            noise = torch.randn(batch.shape, generator=self.generator).to(batch)
            x = x.detach() - self.langevin_lr * torch.cat(slopes) + self.langevin_std * noise
        self.chains.update((place, row.clone()) for place, row in zip(places, x.float().cpu(), strict=True))
        return (x - mean) / std
