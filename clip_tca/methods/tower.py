"""Methods on the image tower: which weights change, how they are restored, gradients in micro-batches.

The weights θ are those of the normalisation layers, as in TENT, CLIPArTT and WATT. BatchNorm layers (ResNet, FastViT)
normalise by the statistics of the current batch, as in TENT and CLIPArTT; the running statistics stay untouched.

With ``micro_batch`` the memory is that of a part of the batch, and the step is the same up to rounding: first all
embeddings z, without a graph, then one part after another: ∂L/∂θ = Σ_parts (∂z_part/∂θ)ᵀ ∂L/∂z_part.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from clip_tca.core.checks import Count, Flag, Positive, check_fields, check_whole
from clip_tca.methods.base import Method, Task, UnsuitableModelError, scaled_rows
from clip_tca.methods.registry import Nature

NORMS = (nn.LayerNorm, nn.GroupNorm, BatchNorm)


def norm_parameters(tower: nn.Module) -> list[nn.Parameter]:
    """Weights and biases of the normalisation layers; an error if there are none, or in half precision."""
    layers = [module for module in tower.modules() if isinstance(module, NORMS)]
    parameters = [parameter for layer in layers for parameter in layer.parameters(recurse=False)]
    kind = type(getattr(tower, "trunk", tower)).__name__  # open_clip wraps every timm tower in one class
    if not parameters:
        raise UnsuitableModelError(
            f"{kind}: an image tower without normalisation weights (LayerNorm, GroupNorm, BatchNorm), "
            "which is what this method updates; use a method that works on embeddings"
        )
    if any(torch.finfo(parameter.dtype).bits < 32 for parameter in parameters):
        raise ValueError(
            f"{kind}: normalisation weights in {parameters[0].dtype}, too coarse for these steps; load the model in "
            "float32"
        )
    return parameters


@dataclass(kw_only=True, eq=False, repr=False)
class TowerMethod(Method):
    """A method that updates normalisation weights of the image tower by gradient steps; all others stay frozen.

    Predictions use g (``ensemble``), or of prompts the first (plain) template alone: ``rows`` are the class weights
    ``(classes, d)`` without their scale, on the model's device.

    Args:
        task: Classifier and model.
        lr: Learning rate.
        steps: Gradient steps for each batch.
        continual: Continue from the last batch instead of starting from the original weights, as CLIPArTT and WATT do.
        micro_batch: Images to back-propagate through at a time; None takes the whole batch.
    """

    updates = "normalisation weights of the image tower"
    backpropagation = True
    sees = "images"
    nature: ClassVar[Nature] = "batch"
    ensemble: ClassVar[bool] = False

    task: Task = field(kw_only=False)
    lr: Positive
    steps: Count
    continual: Flag = False
    micro_batch: Annotated[int | None, partial(check_whole, also=None)] = None

    def __post_init__(self) -> None:
        """Check the options and take over the model's normalisation weights."""
        check_fields(self)
        task = self.task
        self.parameters = norm_parameters(task.model.visual)
        self._batch_norms = [module for module in task.model.visual.modules() if isinstance(module, BatchNorm)]
        if self.micro_batch is not None and self._batch_norms:
            raise ValueError(
                f"micro_batch: {self.micro_batch}, but the image tower has BatchNorm, whose statistics need the whole "
                "batch; leave micro_batch out and take smaller batches"
            )
        task.model.eval().requires_grad_(False)
        rows, self.scale = scaled_rows(task.classifier)
        with torch.inference_mode(False):  # copies that can be used with gradients, wherever they were made
            self._original = self.weights()
            self.rows, self.bias = (self._copied(part) for part in (rows, task.classifier.bias))
            if task.prompts is not None:
                texts = functional.normalize(self._copied(task.prompts.embeddings), dim=-1)
                self.rows = functional.normalize(texts.mean(dim=0), dim=1) if self.ensemble else texts[0]
        self.reset()

    def _copied(self, tensor: Tensor) -> Tensor:
        """A copy on the device and in the dtype of the weights."""
        return tensor.detach().clone().to(self.parameters[0])

    def reset(self) -> None:
        """Restore the original weights, with a new optimiser."""
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
        """Embed and predict with the current weights."""
        with self._batch_statistics(), torch.no_grad():
            z = self.embed_parts(batch)
            return z, self.logits(z)

    @abstractmethod
    def adapt(self, batch: Tensor) -> None:
        """Take the gradient steps for a batch."""

    def descend(self, batch: Tensor, loss: Callable[[Tensor], Tensor]) -> None:
        """One step down a loss of embeddings ``(n, d)``."""
        parts = self.parts(batch)
        if len(parts) == 1:
            loss(self.embed(batch)).backward()
        else:
            with torch.no_grad():
                z = self.embed_parts(batch)
            (slope,) = torch.autograd.grad(loss(z.requires_grad_()), z)
            for part, part_slope in zip(parts, slope.split(len(parts[0])), strict=True):
                self.embed(part).backward(part_slope)
        self.step()

    def step(self) -> None:
        """Let the optimiser use the gradients, and clear them."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def parts(self, batch: Tensor) -> tuple[Tensor, ...]:
        """The micro-batches of a batch."""
        parts: tuple[Tensor, ...] = batch.split(self.micro_batch or len(batch))
        return parts

    def embed_parts(self, batch: Tensor) -> Tensor:
        """As :meth:`embed`, one micro-batch at a time."""
        return torch.cat([self.embed(part) for part in self.parts(batch)])

    def embed(self, batch: Tensor) -> Tensor:
        """Embeddings ``(n, d)`` as g takes them, with gradient where it is on."""
        z: Tensor = self.task.model.encode_image(batch).to(self.rows.dtype)
        return functional.normalize(z, dim=1) if self.task.classifier.unit_rows else z

    def logits(self, z: Tensor) -> Tensor:
        """scale · z · rowsᵀ + bias, ``(n, classes)``."""
        return self.scale * z @ self.rows.T + self.bias

    @contextmanager
    def _batch_statistics(self) -> Iterator[None]:
        """Let BatchNorm use the statistics of the batch, without updating its running statistics.

        The convolutions between run channels-last, 1.5 times as fast on a CPU. The encoder gets its own order back, so
        that it rounds as before.
        """
        before = [(module.training, module.track_running_stats) for module in self._batch_norms]
        try:
            self._lay_out(torch.channels_last)
            for module in self._batch_norms:
                module.training, module.track_running_stats = True, False
            yield
        finally:
            self._lay_out(torch.contiguous_format)
            for module, (training, track) in zip(self._batch_norms, before, strict=True):
                module.training, module.track_running_stats = training, track

    @torch.inference_mode(False)
    def _lay_out(self, order: torch.memory_format) -> None:
        if self._batch_norms and self.parameters[0].device.type == "cpu":
            self.task.model.visual.to(memory_format=order)


@dataclass(kw_only=True, eq=False, repr=False)
class ContinualMethod(TowerMethod):
    """A method that is made for streams: a step for each batch, carried over; all templates predict."""

    nature = "online"
    ensemble = True

    lr: Positive = 1e-3
    steps: Count = 1
    continual: Flag = True


class ScaledMethod(ContinualMethod):
    """With SGD of momentum 0.9, and ``lr`` the learning rate for 64 images: it grows in proportion to the batch."""

    def new_optimizer(self) -> torch.optim.Optimizer:
        """SGD on the updated weights."""
        return torch.optim.SGD(self.parameters, lr=self.lr, momentum=0.9)

    def scale_rate(self, images: int) -> None:
        """Set the learning rate for a batch of so many images."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * images / 64
