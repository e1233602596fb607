"""The choice of device and precision."""

from __future__ import annotations

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


def choose_precision(name: str, device: torch.device) -> str:
    """``auto`` is fp16 autocast on CUDA and fp32 elsewhere: bf16 can crash on a CPU that only claims to support it."""
    if name not in PRECISIONS:
        raise ValueError(f"precision: {name!r}; allowed are {', '.join(PRECISIONS)}")
    return name if name != "auto" else ("fp16" if device.type == "cuda" else "fp32")
