"""BN: BatchNorm layers normalise by the statistics of the test batch, mixed with those of the source.

With mean and variance of the source in a layer (its running statistics) and of the n images of the batch:

    μ = N/(N+n) μ_source + n/(N+n) μ_batch        σ² = N/(N+n) σ²_source + n/(N+n) σ²_batch

N is how many images the source counts as. Nothing is trained, and nothing is carried over to the next batch. Schneider
et al., "Improving robustness against common corruptions by covariate shift adaptation", NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from clip_tca.core.checks import Amount, check_fields
from clip_tca.methods.base import Method, Task, UnsuitableModelError


@dataclass(kw_only=True, eq=False, repr=False)
class BN(Method):
    """Statistics of BatchNorm layers from each batch and from the source.

    Args:
        task: Classifier and model.
        prior: N, how many images the statistics of the source count as; 0 takes those of the batch alone.
    """

    name = "bn"
    summary = "BatchNorm statistics of the batch, mixed with those of the source"
    updates = "statistics of the BatchNorm layers"
    backpropagation = False
    sees = "images"
    nature = "batch"

    task: Task = field(kw_only=False)
    prior: Amount = 16

    def __post_init__(self) -> None:
        check_fields(self)
        tower = self.task.model.visual
        self._layers = [m for m in tower.modules() if isinstance(m, BatchNorm) and m.running_mean is not None]
        if not self._layers:
            kind = type(getattr(tower, "trunk", tower)).__name__
            raise UnsuitableModelError(
                f"method: 'bn' changes the statistics of BatchNorm layers, and {kind} has none; use a model that has, "
                "such as torchvision:resnet18, or another method, such as tent"
            )

    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Embed and predict the batch with its own statistics."""
        if not len(batch):
            raise ValueError("batch: no images; at least 1 is needed")
        with torch.no_grad(), self._mixed_statistics():
            z = self.task.classifier.prepared(self.task.model.encode_image(batch))
        return z, self.task.classifier.logits(z)

    predict = __call__  # there is no state but the batch

    def reset(self) -> None:
        """Do nothing: the model is as it was after every batch."""

    @contextmanager
    def _mixed_statistics(self) -> Iterator[None]:
        """Let every BatchNorm layer mix its statistics with those of what it is given; afterwards as before."""
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
