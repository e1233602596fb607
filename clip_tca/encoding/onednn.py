"""Linear layers and attention by oneDNN, which multiplies float32 matrices twice as fast as MKL on an AMD processor.

PyTorch gives linear layers to MKL, which does without AVX-512 there, and convolutions to oneDNN. A linear layer is a
convolution whose kernel has one weight for each channel (rates: benchmarks/README.md).
"""

from __future__ import annotations

import copy
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def gains(device: torch.device) -> bool:
    """Whether oneDNN, which PyTorch calls mkldnn, is there, and this is a CPU with AVX-512."""
    on_cpu = device.type == "cpu" and torch.backends.mkldnn.is_available()
    return on_cpu and torch.backends.cpu.get_cpu_capability() == "AVX512"


def with_onednn(model: Any) -> Any:
    """A copy of ``model`` that shares its weights and computes its layers by oneDNN; for float32."""
    fast = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
    for module in fast.modules():
        if type(module) is nn.Linear:
            module.forward = MethodType(_linear_forward, module)  # type: ignore[method-assign]
        elif type(module) is nn.MultiheadAttention and module.in_proj_weight is not None and module.bias_k is None:
            module.forward = MethodType(_attention_forward, module)  # type: ignore[method-assign]
    return fast


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x weightᵀ + bias``: the rows of ``x`` are the pixels of one image."""
    pixels = x.reshape(1, -1, 1, x.shape[-1]).permute(0, 3, 1, 2)  # "channels last" in memory: nothing is copied
    # dilation has no effect on a kernel of one weight, but without it PyTorch uses MKL if it has a single thread
    y = functional.conv2d(pixels, weight[:, :, None, None], bias, dilation=2)
    return y.permute(0, 2, 3, 1).reshape(*x.shape[:-1], len(weight))


def _linear_forward(layer: nn.Linear, x: Tensor) -> Tensor:
    return linear(x, layer.weight, layer.bias)


def _attention_forward(layer: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    # Self-attention of (n, length, d) without a mask; any other is PyTorch's own.
    used = {name: option for name, option in options.items() if option is not None}
    plain = layer.batch_first and not layer.add_zero_attn and query.ndim == 3 and used == {"need_weights": False}
    if not (plain and query is key is value):
        return nn.MultiheadAttention.forward(layer, query, key, value, **options)
    n, length, d = query.shape
    projected = linear(query, layer.in_proj_weight, layer.in_proj_bias).view(n, length, 3, layer.num_heads, -1)
    heads = functional.scaled_dot_product_attention(*projected.permute(2, 0, 3, 1, 4))
    out = layer.out_proj
    return linear(heads.transpose(1, 2).reshape(n, length, d), out.weight, out.bias), None
