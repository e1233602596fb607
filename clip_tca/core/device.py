"""The choice of device and precision."""

from __future__ import annotations

import os
from functools import cache

import torch

PRECISIONS = ("auto", "fp32", "fp16", "bf16")


def choose_device(name: str) -> torch.device:
    """``auto`` is CUDA if there is one, else the CPU: MPS is reported to give wrong embeddings without an error."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    try:
        device = torch.device(name)
        count = counts[device.type]
    except (RuntimeError, KeyError):
        raise ValueError(f"device: {name!r}; allowed are auto, cpu, cuda, cuda:N and mps") from None
    if (device.index or 0) >= count:
        raise ValueError(f"device: {name!r}, but this machine has {count} of that kind; use auto or cpu")
    return device


@cache
def check_bf16() -> None:
    """ValueError if this processor can't compute in bfloat16: an illegal instruction ends a child process, not us."""
    if not hasattr(os, "fork"):
        return
    if not (child := os.fork()):
        try:
            torch.set_num_threads(1)
            x = torch.ones(2, 64, 16, 16, dtype=torch.bfloat16)
            rows = torch.nn.functional.conv2d(x, x.new_ones(64, 64, 3, 3)).flatten(2)
            torch.nn.functional.scaled_dot_product_attention(rows @ rows.mT, rows @ rows.mT, rows @ rows.mT)
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        raise ValueError("precision: 'bf16', but this processor can't compute in it; use fp32")


def choose_precision(name: str, device: torch.device) -> str:
    """``auto`` is fp16 autocast on CUDA and fp32 elsewhere, so that figures from CPUs agree."""
    if name not in PRECISIONS:
        raise ValueError(f"precision: {name!r}; allowed are {', '.join(PRECISIONS)}")
    return name if name != "auto" else ("fp16" if device.type == "cuda" else "fp32")
