"""Input and output tensors or NumPy arrays, checked once at the public interface.

Inside the package an embedding matrix is a tensor ``(n, d)`` on the device it came on. Half-precision input is
computed in float32; statistics are accumulated in float64 whatever the input (float32 on devices without float64).
"""

from __future__ import annotations

import math
import warnings
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from clip_tca.core.conversion import as_array, holds_tensors

Array = TypeVar("Array", Tensor, np.ndarray)

CHUNK = 2048
"""Rows processed at a time, so that no temporary is as large as the input."""


def to_tensor(z: Any, name: str = "embeddings") -> Tensor:
    """A tensor of floats, not copied where it need not be, of whatever :func:`as_array` takes; else a TypeError."""
    array = as_array(z, name)
    if isinstance(array, np.ndarray):
        if array.dtype.kind != "f" or array.dtype.itemsize > 8:
            raise TypeError(
                f"{name}: dtype {array.dtype} is not supported; use float16, float32 or float64: z.astype('float32')"
            )
        native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
        with warnings.catch_warnings():  # a read-only array (a memory map) is only read here
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(native)
    if array.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise TypeError(
            f"{name}: dtype {array.dtype} is not supported; use float16, bfloat16, float32 or float64: z.float()"
        )
    return array.detach()


def like(result: Tensor, source: Array) -> Array:
    """``result`` in the type of the input: a tensor for tensors, and a NumPy array for anything else."""
    answer: Any = result if holds_tensors(source) else result.cpu().numpy()
    return cast("Array", answer)


def check_rows(z: Tensor, dim: int | None = None, name: str = "embeddings") -> None:
    """Raise ValueError, with the shape or the bad rows, unless ``z`` is a finite, non-empty ``(n, dim)`` matrix."""
    if z.ndim != 2:
        raise ValueError(f"{name}: expected a matrix (n, d), got shape {tuple(z.shape)}; for one row use z[None]")
    if z.shape[0] == 0 or z.shape[1] == 0:
        raise ValueError(f"{name}: empty, shape {tuple(z.shape)}; at least one row is needed")
    if dim is not None and z.shape[1] != dim:
        raise ValueError(
            f"{name}: dimension {z.shape[1]}, but the classifier has {dim}; both must come from the same model"
        )
    if math.isfinite(float(z.sum(dtype=compute_dtype(z.dtype)))):  # NaN and infinity survive a sum
        return
    bad = torch.cat([(~torch.isfinite(part)).any(dim=1) for part in z.split(CHUNK)])
    if bool(bad.any()):
        rows = bad.nonzero()[:, 0].tolist()
        listed = ", ".join(map(str, rows[:5])) + (", …" if len(rows) > 5 else "")
        raise ValueError(
            f"{name}: {len(rows)} of {len(z)} rows hold NaN or infinity (rows {listed}); drop or repair them first"
        )


def check_labels(labels: Tensor | np.ndarray | list[int], n: int, classes: int, device: torch.device) -> Tensor:
    """Class indices ``(n,)`` as int64 on ``device``; ValueError unless ``n`` whole numbers below ``classes``."""
    use = f"use whole numbers from 0 to {classes - 1}"
    try:
        y = labels.detach() if isinstance(labels, Tensor) else torch.as_tensor(np.asarray(labels))
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"labels: not a vector of numbers; {use}") from None
    if y.ndim != 1 or len(y) != n:
        raise ValueError(f"labels: shape {tuple(y.shape)}, but there are {n} embeddings; one label for each is needed")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise ValueError(f"labels: dtype {y.dtype} is not allowed; {use}")
    y = y.to(device=device, dtype=torch.int64)
    if bool(((y < 0) | (y >= classes)).any()):
        raise ValueError(f"labels: values {int(y.min())} to {int(y.max())}; allowed are 0 to {classes - 1}")
    return y


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which rows of ``dtype`` are multiplied: float64 stays, everything else is float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def double(z: Tensor) -> Tensor:
    """``z`` in the dtype in which statistics are kept: float64, except on ``mps``, which has none."""
    return z.to(torch.float32 if z.device.type == "mps" else torch.float64)


def unit(z: Tensor) -> Tensor:
    """Rows scaled to length one; a row of zeros stays zero."""
    z = z.to(compute_dtype(z.dtype))
    length: Tensor = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    if bool(((length > 1e-12) & (length < 1e12)).all()):
        return torch.div(z, length)
    peak = z.abs().amax(dim=-1, keepdim=True)  # divided out first, so that squares neither overflow nor underflow
    z = torch.div(z, torch.where(peak > 0, peak, 1.0))
    return torch.div(z, torch.linalg.vector_norm(z, dim=-1, keepdim=True).clamp_min(1.0))
