"""What methods on the image tower share: which weights change, how they are put back, gradients in parts.

The weights θ are those of the normalisation layers, as in TENT, CLIPArTT and WATT. Where a tower has BatchNorm (ResNet,
FastViT), it normalises by the statistics of the batch at hand, as TENT and CLIPArTT do; the stored ones stay untouched.

With ``micro_batch`` the memory is that of a part of the batch, and the step is the same up to rounding. A loss that is
a mean over images is summed up part by part. One that couples the images needs all embeddings z first, without a
graph, and then one part after another: ∂L/∂θ = Σ_parts (∂z_part/∂θ)ᵀ ∂L/∂z_part.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from clip_tca.core.checks import check_flag, check_positive, check_whole
from clip_tca.methods.base import Method, Task

NORMS = (nn.LayerNorm, nn.GroupNorm, BatchNorm)


def norm_parameters(tower: nn.Module) -> list[nn.Parameter]:
    """Weights and biases of the normalisation layers.

    Raises:
        ValueError: If the tower has none, or has them in half precision.
    """
    found = [
        parameter
        for module in tower.modules()
        if isinstance(module, NORMS)
        for parameter in module.parameters(recurse=False)
    ]
    kind = type(getattr(tower, "trunk", tower)).__name__  # open_clip wraps every timm tower in one class
    if not found:
        raise ValueError(
            f"{kind}: an image tower without normalisation weights (LayerNorm, GroupNorm, BatchNorm), "
            "which is what this method updates; use a method that works on embeddings"
        )
    if any(torch.finfo(parameter.dtype).bits < 32 for parameter in found):
        raise ValueError(
            f"{kind}: normalisation weights in {found[0].dtype}, too coarse for these steps; load the model in float32"
        )
    return found


class TowerMethod(Method):
    """A method that updates normalisation weights of the image tower by gradient steps.

    Every batch starts from the original weights (``continual=False``, as CLIPArTT and WATT do), or from where the last
    one ended. Everything else in the model stays frozen, in evaluation mode.

    Attributes:
        ensemble: Whether predictions use the mean of the templates, or the first (plain) one alone.
        texts: Unit text embeddings on the model's device ``(templates, classes, d)``.
        text: Those that predict ``(classes, d)``.
        parameters: What is updated.
    """

    updates: ClassVar[str] = "normalisation weights of the image tower"
    backpropagation: ClassVar[bool] = True
    sees: ClassVar[Literal["images", "embeddings"]] = "images"
    ensemble: ClassVar[bool] = False

    def __init__(
        self, task: Task, *, lr: float, steps: int, continual: bool = False, micro_batch: int | None = None
    ) -> None:
        """Take over the model's normalisation weights, which must be the original ones now.

        Args:
            task: Model and prompts.
            lr: Learning rate.
            steps: Gradient steps for each batch.
            continual: Go on from the last batch instead of starting anew.
            micro_batch: Images to back-propagate through at a time; None takes the whole batch.
        """
        check_positive("lr", lr)
        check_whole("steps", steps)
        check_whole("micro_batch", micro_batch, also=None)
        check_flag("continual", continual)
        self.task, self.lr, self.steps, self.continual, self.micro_batch = task, lr, steps, continual, micro_batch
        self.parameters = norm_parameters(task.model.visual)
        self._batch_norms = [module for module in task.model.visual.modules() if isinstance(module, BatchNorm)]
        if micro_batch is not None and self._batch_norms:
            raise ValueError(
                f"micro_batch: {micro_batch}, but the image tower has BatchNorm, whose statistics need the whole "
                "batch; leave micro_batch out and take smaller batches"
            )
        task.model.eval().requires_grad_(False)
        with torch.inference_mode(False):  # what is kept must be usable with gradients, wherever it was made
            self._original = self.weights()
            self.texts = functional.normalize(task.text.detach().clone().to(self.parameters[0]), dim=-1)
            self.text = functional.normalize(self.texts.mean(dim=0), dim=1) if self.ensemble else self.texts[0]
        self.reset()

    def reset(self) -> None:
        """The original weights, and a new optimiser."""
        self.load(self._original)
        self.optimizer = self.new_optimizer()

    def new_optimizer(self) -> torch.optim.Optimizer:
        """Adam, as in CLIPArTT and WATT."""
        return torch.optim.Adam(self.parameters, lr=self.lr, betas=(0.9, 0.999))

    def weights(self) -> list[Tensor]:
        """A copy of the updated weights."""
        return [parameter.detach().clone() for parameter in self.parameters]

    def load(self, weights: list[Tensor]) -> None:
        """Put weights into the tower."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, weights, strict=True):
                parameter.copy_(value)

    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Adapt to the batch, then embed and predict it."""
        if not len(batch):
            raise ValueError("batch: no images; at least 1 is needed")
        if not self.continual:
            self.reset()
        with self._batch_statistics(), torch.inference_mode(False), torch.enable_grad():
            for parameter in self.parameters:
                parameter.requires_grad_(True)
            try:
                self.adapt(batch.clone() if batch.is_inference() else batch)
            finally:
                self.optimizer.zero_grad()
                for parameter in self.parameters:
                    parameter.requires_grad_(False)
        return self.predict(batch)

    def predict(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Embed and predict with the weights as they are."""
        with self._batch_statistics(), torch.no_grad():
            z = torch.cat([self.embed(part) for part in batch.split(self.micro_batch or len(batch))])
            return z, self.logits(z)

    @abstractmethod
    def adapt(self, batch: Tensor) -> None:
        """Take the gradient steps for a batch."""

    def descend(self, batch: Tensor, loss: Callable[[Tensor], Tensor], *, coupled: bool) -> None:
        """One step of the optimiser.

        Args:
            batch: Images.
            loss: Of their unit embeddings ``(n, d)``.
            coupled: Whether one image's share in the loss depends on the others; False for a mean over images.
        """
        size = self.micro_batch or len(batch)
        parts = batch.split(size)
        if len(parts) == 1:
            loss(self.embed(batch)).backward()
        elif not coupled:
            for part in parts:
                (loss(self.embed(part)) * (len(part) / len(batch))).backward()
        else:
            with torch.no_grad():
                z = torch.cat([self.embed(part) for part in parts])
            (slope,) = torch.autograd.grad(loss(z.requires_grad_()), z)
            for part, part_slope in zip(parts, slope.split(size), strict=True):
                self.embed(part).backward(part_slope)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def embed(self, batch: Tensor) -> Tensor:
        """Unit embeddings ``(n, d)``, with gradient where it is on."""
        return functional.normalize(self.task.model.encode_image(batch).to(self.text.dtype), dim=1)

    def logits(self, z: Tensor) -> Tensor:
        """scale · z · textᵀ, ``(n, classes)``."""
        return self.task.scale * z @ self.text.T

    @contextmanager
    def _batch_statistics(self) -> Iterator[None]:
        """BatchNorm by the statistics of the batch, without counting them into the stored ones."""
        before = [(module.training, module.track_running_stats) for module in self._batch_norms]
        try:
            for module in self._batch_norms:
                module.training, module.track_running_stats = True, False
            yield
        finally:
            for module, (training, track) in zip(self._batch_norms, before, strict=True):
                module.training, module.track_running_stats = training, track
