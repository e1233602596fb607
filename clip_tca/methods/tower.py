"""What methods on the image tower share: which weights change, how they are put back, embeddings with gradient."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from clip_tca.methods.base import Method, Task

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d)


def norm_parameters(tower: nn.Module) -> list[nn.Parameter]:
    """Weights and biases of the normalisation layers.

    Raises:
        ValueError: If the tower has none.
    """
    found = [
        parameter
        for module in tower.modules()
        if isinstance(module, NORMS)
        for parameter in module.parameters(recurse=False)
    ]
    if not found:
        raise ValueError(
            f"{type(tower).__name__}: an image tower without normalisation layers; these methods need some"
        )
    return found


class TowerMethod(Method):
    """A method that updates normalisation weights of the image tower by gradient steps.

    Every batch starts from the original weights (``continual=False``, as CLIPArTT and WATT do), or from where the last
    one ended. Everything else in the model stays frozen, in evaluation mode.
    """

    updates: ClassVar[str] = "normalisation weights of the image tower"
    backpropagation: ClassVar[bool] = True
    sees: ClassVar[Literal["images", "embeddings"]] = "images"

    def __init__(self, task: Task, *, lr: float, steps: int, continual: bool = False) -> None:
        """Take over the model's normalisation weights.

        Args:
            task: Model and prompts.
            lr: Learning rate.
            steps: Gradient steps for each batch.
            continual: Go on from the last batch instead of starting anew.
        """
        self.task, self.lr, self.steps, self.continual = task, lr, steps, continual
        task.model.eval().requires_grad_(False)
        self.parameters = norm_parameters(task.model.visual)
        self._original = [parameter.detach().clone() for parameter in self.parameters]
        self.reset()

    def reset(self) -> None:
        """The original weights, and a new optimiser."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self._original, strict=True):
                parameter.copy_(value)
        self.optimizer = self.new_optimizer()

    def new_optimizer(self) -> torch.optim.Optimizer:
        """Adam, as in CLIPArTT and WATT."""
        return torch.optim.Adam(self.parameters, lr=self.lr, betas=(0.9, 0.999))

    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Adapt to the batch, then embed and predict it."""
        if not self.continual:
            self.reset()
        with torch.inference_mode(False), torch.enable_grad():
            for parameter in self.parameters:
                parameter.requires_grad_(True)
            try:
                self.adapt(batch.clone() if batch.is_inference() else batch)
            finally:
                for parameter in self.parameters:
                    parameter.requires_grad_(False)
        with torch.no_grad():
            z = self.embed(batch)
            return z, self.logits(z)

    @abstractmethod
    def adapt(self, batch: Tensor) -> None:
        """Take the gradient steps for a batch."""

    def embed(self, batch: Tensor) -> Tensor:
        """Unit embeddings ``(n, d)``, with gradient where it is on."""
        return functional.normalize(self.task.model.encode_image(batch), dim=1)

    def logits(self, z: Tensor) -> Tensor:
        """scale · z · textᵀ with the mean of the templates, ``(n, classes)``."""
        text = functional.normalize(self.task.text.mean(dim=0), dim=1)
        return self.task.scale * z @ text.T
