"""Linear layers and attention of a model by oneDNN, which computes float32 twice as fast as MKL on an AMD processor.

PyTorch multiplies float32 matrices with MKL, which does without AVX-512 there (benchmarks/README.md has both rates).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

_LINEAR = torch.ops.aten.linear.default
_ATTENTION = torch.ops.aten._native_multi_head_attention.default


def fast_layers(device: torch.device) -> AbstractContextManager[object]:
    """Within it, and in inference mode, float32 layers of this thread are computed by oneDNN on a CPU with AVX-512."""
    if device.type != "cpu" or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return nullcontext()
    if not torch.backends.mkldnn.is_available():  # PyTorch's name of oneDNN
        return nullcontext()
    return OneDNN()  # type: ignore[no-untyped-call]


class OneDNN(TorchDispatchMode):
    """Replaces two operations of PyTorch; the others stay as they are."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The result of the operation ``func``."""
        if not kwargs and args and isinstance(args[0], Tensor) and args[0].dtype == torch.float32:
            if func is _LINEAR:
                return _linear(*args)
            mask_and_weights = args[9:11]
            if func is _ATTENTION and args[0] is args[1] is args[2] and mask_and_weights == (None, False):
                return _self_attention(args[0], *args[4:9]), None
        return func(*args, **(kwargs or {}))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x weightᵀ + bias`` by the operation that ``torch.compile`` uses for it."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


def _self_attention(x: Tensor, heads: int, w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor) -> Tensor:
    """Attention ``(n, length, d)`` of ``nn.MultiheadAttention``, which hides its two linear layers in one operation."""
    n, length, d = x.shape
    query, key, value = _linear(x, w_in, b_in).view(n, length, 3, heads, d // heads).permute(2, 0, 3, 1, 4)
    y = functional.scaled_dot_product_attention(query, key, value)
    return _linear(y.transpose(1, 2).reshape(n, length, d), w_out, b_out)
