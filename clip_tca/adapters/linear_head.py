"""An adapted classifier folded into one linear layer: text′ = text Wᵀ and a bias, for plain code and other runtimes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clip_tca.core.tensors import compute_dtype, unit


@dataclass(frozen=True)
class LinearHead:
    """logits = z · weightᵀ + bias.

    Attributes:
        weight: ``(c, d)``, the logit scale included.
        bias: ``(c,)``.
        normalize: Whether ``z`` is scaled to unit length first.
    """

    weight: Tensor
    bias: Tensor
    normalize: bool = True

    def logits(self, z: Tensor) -> Tensor:
        """Class scores ``(n, c)`` of embeddings ``(n, d)``, in float32 (float64 for float64 input)."""
        rows = unit(z) if self.normalize else z.to(compute_dtype(z.dtype))
        return torch.addmm(self.bias.to(rows), rows, self.weight.to(rows).T)

    def linear(self) -> nn.Linear:
        """A ``torch.nn.Linear`` in float32; give it unit embeddings if :attr:`normalize` is set."""
        classes, dim = self.weight.shape
        layer = nn.Linear(dim, classes, device=self.weight.device)
        with torch.no_grad():
            layer.weight.copy_(self.weight)
            layer.bias.copy_(self.bias)
        return layer.requires_grad_(False)
