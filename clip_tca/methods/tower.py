"""Methods on the image tower: which weights change, how they are restored, gradients in micro-batches; and BN.

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
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from clip_tca.core.checks import Amount, Count, Flag, Positive, check_fields, check_whole
from clip_tca.methods.base import Method, Task, UnsuitableModelError, scaled_rows
from clip_tca.methods.registry import Nature

NORMS = (nn.LayerNorm, nn.GroupNorm, BatchNorm)


def tower_kind(tower: nn.Module) -> str:
    """The class of an image tower; open_clip wraps every timm tower in one class."""
    return type(getattr(tower, "trunk", tower)).__name__


def norm_parameters(tower: nn.Module) -> list[nn.Parameter]:
    """Weights and biases of the normalisation layers; an error if there are none, or in half precision."""
    layers = [module for module in tower.modules() if isinstance(module, NORMS)]
    parameters = [parameter for layer in layers for parameter in layer.parameters(recurse=False)]
    if not parameters:
        raise UnsuitableModelError(
            f"{tower_kind(tower)}: an image tower without normalisation weights (LayerNorm, GroupNorm, BatchNorm), "
            "which is what this method updates; use a method that works on embeddings"
        )
    if any(torch.finfo(parameter.dtype).bits < 32 for parameter in parameters):
        raise ValueError(
            f"{tower_kind(tower)}: normalisation weights in {parameters[0].dtype}, too coarse for these steps; load "
            "the model in float32"
        )
    return parameters


def check_images(batch: Tensor) -> None:
    """ValueError for a batch without images."""
    if not len(batch):
        raise ValueError("batch: no images; at least 1 is needed")


@dataclass(kw_only=True, eq=False, repr=False)
class TowerMethod(Method):
    """A method that updates normalisation weights of the image tower by gradient steps; all others stay frozen.

    Predictions use g (``ensemble``), or of prompts the first (plain) template alone: ``rows`` are the class weights
    ``(classes, d)`` without their scale, on the model's device.
    """

    updates = "normalisation weights of the image tower"
    backpropagation = True
    sees = "images"
    nature: ClassVar[Nature] = "batch"
    ensemble: ClassVar[bool] = False

    task: Task = field(kw_only=False)
    lr: Positive
    steps: Count  # for each batch
    continual: Flag = False  # go on from the last batch, not from the original weights
    micro_batch: Annotated[int | None, partial(check_whole, also=None)] = None  # images to back-propagate through

    def __post_init__(self) -> None:
        check_fields(self)
        task = self.task
        self.parameters = self.adapted(task.model.visual)
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

    def adapted(self, tower: nn.Module) -> list[nn.Parameter]:
        """The weights to update."""
        return norm_parameters(tower)

    def _copied(self, tensor: Tensor) -> Tensor:
        """A copy on the device and in the dtype of the weights."""
        return tensor.detach().clone().to(self.parameters[0])

    def reset(self) -> None:
        self.load(self._original)
        self.optimizer = self.new_optimizer()

    def new_optimizer(self) -> torch.optim.Optimizer:
        """Adam, as in CLIPArTT and WATT."""
        return torch.optim.Adam(self.parameters, lr=self.lr, betas=(0.9, 0.999))

    def weights(self) -> list[Tensor]:
        """A copy of the updated weights."""
        return [parameter.detach().clone() for parameter in self.parameters]

    def load(self, weights: list[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.parameters, weights, strict=True):
                parameter.copy_(value)

    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        check_images(batch)
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
        with self._batch_statistics(), torch.no_grad():
            z = self.embed_parts(batch)
            return z, self.logits(z)

    @abstractmethod
    def adapt(self, batch: Tensor) -> None:
        """Take the gradient steps for a batch."""

    def descend(self, batch: Tensor, loss: Callable[[Tensor], Tensor]) -> None:
        """One step down a loss of embeddings ``(n, d)``."""
        self.backward(batch, loss)
        self.step()

    def backward(self, batch: Tensor, loss: Callable[[Tensor], Tensor]) -> None:
        """The gradients of a loss of embeddings ``(n, d)``."""
        parts = self.parts(batch)
        if len(parts) == 1:
            loss(self.embed(batch)).backward()
        else:
            with torch.no_grad():
                z = self.embed_parts(batch)
            (slope,) = torch.autograd.grad(loss(z.requires_grad_()), z)
            for part, part_slope in zip(parts, slope.split(len(parts[0])), strict=True):
                self.embed(part).backward(part_slope)

    def step(self) -> None:
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
        return torch.optim.SGD(self.parameters, lr=self.lr, momentum=0.9)

    def scale_rate(self, images: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * images / 64


@dataclass(kw_only=True, eq=False, repr=False)
class BN(Method):
    """BN: BatchNorm layers normalise by the statistics of the test batch, mixed with those of the source.

    With mean and variance of the source in a layer (its running statistics) and of the n images of the batch:

        μ = N/(N+n) μ_source + n/(N+n) μ_batch        σ² = N/(N+n) σ²_source + n/(N+n) σ²_batch

    Nothing is trained, and nothing is carried over to the next batch.

    Schneider et al., "Improving robustness against common corruptions by covariate shift adaptation", NeurIPS 2020.
    """

    name = "bn"
    summary = "BatchNorm statistics of the batch, mixed with those of the source"
    updates = "statistics of the BatchNorm layers"
    backpropagation = False
    sees = "images"
    nature = "batch"

    task: Task = field(kw_only=False)
    prior: Amount = 16  # N, images that the source counts as; 0 takes the statistics of the batch alone

    def __post_init__(self) -> None:
        check_fields(self)
        tower = self.task.model.visual
        self._layers = [m for m in tower.modules() if isinstance(m, BatchNorm) and m.running_mean is not None]
        if not self._layers:
            raise UnsuitableModelError(
                f"method: 'bn' changes the statistics of BatchNorm layers, and {tower_kind(tower)} has none; use a "
                "model that has, such as torchvision:resnet18, or another method, such as tent"
            )

    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        check_images(batch)
        with torch.no_grad(), self._mixed_statistics():
            z = self.task.classifier.prepared(self.task.model.encode_image(batch))
        return z, self.task.classifier.logits(z)

    predict = __call__  # there is no state but the batch

    def reset(self) -> None:
        """Do nothing: the model is as it was after every batch."""

    @contextmanager
    def _mixed_statistics(self) -> Iterator[None]:
        before: list[Any] = [(layer.running_mean, layer.running_var) for layer in self._layers]
        hooks = [
            layer.register_forward_pre_hook(partial(self._mix, mean, variance))
            for layer, (mean, variance) in zip(self._layers, before, strict=True)
        ]
        try:
            yield
        finally:
            for layer, hook, (mean, variance) in zip(self._layers, hooks, before, strict=True):
                hook.remove()
                layer.running_mean, layer.running_var = mean, variance

    def _mix(self, mean: Tensor, variance: Tensor, layer: Any, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].to(mean.dtype)
        share = len(x) / (self.prior + len(x))
        others = [dim for dim in range(x.ndim) if dim != 1]
        layer.running_mean = torch.lerp(mean, x.mean(dim=others), share)
        layer.running_var = torch.lerp(variance, x.var(dim=others, correction=0), share)
