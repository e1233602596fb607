"""The provenance in every record: versions, commit and peak memory."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch

from clip_tca.core.version import __version__


def versions() -> dict[str, str]:
    """Versions of this package, of Python and of the packages that results depend on."""
    packages = ("torch", "torchvision", "open_clip_torch", "datasets", "numpy", "pillow", "safetensors")
    return {"clip-tca": __version__, "python": platform.python_version(), **{name: version(name) for name in packages}}


def commit() -> str | None:
    """Commit of the checkout that this package runs from; None if it is installed."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None


def peak_memory(device: torch.device) -> dict[str, int | None]:
    """Peak resident memory of this process, and peak memory on the GPU."""
    resident = None
    if sys.platform != "win32":
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    on_device = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {"resident": resident, "device": on_device}
