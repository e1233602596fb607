"""SAR: sharpness-aware and reliable entropy minimisation.

A step first climbs to the sharpest point near the weights θ, ``θ + ρ · g / ‖g‖`` with g the gradient of the mean
entropy of the reliable images (``H(p) < 0.4 · ln C``), and then descends from θ along the gradient found there. When
the moving average of that loss falls below 0.2, the model is about to collapse and the weights are restored. Niu et
al., "Towards Stable Test-Time Adaptation in Dynamic Wild World", ICLR 2023 (github.com/mr-eggplant/SAR).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clip_tca.core.checks import Amount, Share
from clip_tca.methods.tent import entropy
from clip_tca.methods.tower import ScaledMethod

LAYER_NUMBER = re.compile(r"(?:^|\.)(?:resblocks|blocks|stages|features|layers?|encoder_layer_)\.?(\d+)(?:\.|$)")
"""A block or stage in the name of a module, such as ``transformer.resblocks.3``, ``layer3`` or ``encoder_layer_3``."""


def lower_parameters(tower: nn.Module, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    """The parameters below the last quarter of the tower's blocks.

    In a ViT-B these are blocks 0 to 8 of 12 and what comes before them, in a ResNet stages 1 to 3 of 4. All parameters
    if there are none below.
    """
    names = {id(parameter): name for name, parameter in tower.named_parameters()}
    matches = [LAYER_NUMBER.search(names[id(parameter)]) for parameter in parameters]
    blocks = sorted({int(match[1]) for match in matches if match})
    if not blocks:
        return parameters
    top = blocks[len(blocks) - max(1, len(blocks) // 4)]
    first = next(number for number, match in enumerate(matches) if match)
    lower = [
        parameter
        for number, (parameter, match) in enumerate(zip(parameters, matches, strict=True))
        if (int(match[1]) < top if match else number < first)
    ]
    return lower or parameters


@dataclass(kw_only=True, eq=False, repr=False)
class SAR(ScaledMethod):
    """Sharpness-aware entropy minimisation on reliable images, with recovery from collapse.

    The defaults are those for ViT with LayerNorm; the learning rate is doubled for a single image. The last quarter of
    the blocks and the norm after them stay as they are. As in the published code, recovery keeps momentum and moving
    average. With few classes and certain predictions the loss may lie below 0.2 from the start; then every step is
    taken back, and ``recovery=0`` turns that off.

    Args:
        margin: Largest entropy of a reliable image, as a share of ln C.
        rho: ρ, how far the first half of a step climbs.
        recovery: Restore the weights when the moving average of the loss falls below this.
    """

    name = "sar"
    summary = "sharpness-aware entropy minimisation on reliable images, with recovery"
    updates = "normalisation weights of the image tower below its last quarter of blocks"
    changed = "A batch is predicted after its step instead of before."

    margin: Share = 0.4
    rho: Amount = 0.05
    recovery: Amount = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._limit = self.margin * math.log(self.task.classifier.n_classes)

    def reset(self) -> None:
        """Restore the original weights, with a new optimiser and no moving average."""
        self.adapted = lower_parameters(self.task.model.visual, self.parameters)
        super().reset()
        self.average: float | None = None

    def new_optimizer(self) -> torch.optim.Optimizer:
        """SGD with momentum 0.9, on the lower part of the tower."""
        return torch.optim.SGD(self.adapted, lr=self.lr, momentum=0.9)

    def adapt(self, batch: Tensor) -> None:
        """Climb, take the gradient there, go back, descend; restore the weights if the loss has collapsed."""
        self.scale_rate(max(2, len(batch)))
        for _ in range(self.steps):
            every_image = torch.ones(len(batch), dtype=torch.bool, device=batch.device)
            gradients, _, reliable = self.slope(batch, every_image)
            before = self.climb(gradients)
            gradients, loss, reliable = self.slope(batch, reliable)
            with torch.no_grad():
                for parameter, value, gradient in zip(self.adapted, before, gradients, strict=True):
                    parameter.copy_(value)
                    parameter.grad = gradient
            self.step()
            if reliable.any():
                self.average = loss if self.average is None else 0.9 * self.average + 0.1 * loss
            if self.average is not None and self.average < self.recovery:
                self.load(self._original)

    def slope(self, batch: Tensor, among: Tensor) -> tuple[tuple[Tensor, ...], float, Tensor]:
        """Gradients of the mean entropy of the reliable images ``among`` some, that mean, and their mask ``(n,)``.

        Without reliable images the gradients are 0, and the step that follows is by momentum only.
        """
        parts = self.parts(batch)
        single = len(parts) == 1
        with torch.set_grad_enabled(single):
            z = self.embed_parts(batch)
        uncertainty = entropy(self.logits(z if single else z.requires_grad_()))
        reliable = among & (uncertainty.detach() < self._limit)
        loss = uncertainty[reliable].sum() / reliable.sum().clamp(min=1)
        if single:
            return self._gradients(loss), loss.item(), reliable
        (slope,) = torch.autograd.grad(loss, z)
        gradients = [
            self._gradients(self.embed(part), part_slope)
            for part, part_slope in zip(parts, slope.split(len(parts[0])), strict=True)
        ]
        return tuple(torch.stack(terms).sum(dim=0) for terms in zip(*gradients, strict=True)), loss.item(), reliable

    @torch.no_grad()
    def climb(self, gradients: tuple[Tensor, ...]) -> list[Tensor]:
        """Move the weights by ρ along the gradient; returns the weights before."""
        before = [parameter.clone() for parameter in self.adapted]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for parameter, gradient in zip(self.adapted, gradients, strict=True):
            parameter.add_(gradient * (self.rho / (norm + 1e-12)))
        return before

    def _gradients(self, of: Tensor, slope: Tensor | None = None) -> tuple[Tensor, ...]:
        return torch.autograd.grad(of, self.adapted, slope, allow_unused=True, materialize_grads=True)
