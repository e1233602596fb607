"""This machine: its devices, what a record says about it, and Ray, which connects several."""

from __future__ import annotations

import logging
import os
import platform
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch

from clip_tca.core.checks import install, one_line
from clip_tca.core.version import __version__

Item = TypeVar("Item")
Result = TypeVar("Result")

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
    """``auto`` is fp16 autocast on CUDA and fp32 elsewhere, so that figures from CPUs agree."""
    if name not in PRECISIONS:
        raise ValueError(f"precision: {name!r}; allowed are {', '.join(PRECISIONS)}")
    return name if name != "auto" else ("fp16" if device.type == "cuda" else "fp32")


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


@contextmanager
def connect(address: str | None = None) -> Iterator[Any]:
    """The module ``ray``, connected to the cluster at ``address`` or ``RAY_ADDRESS``; else Ray starts on this machine.

    A connection that the caller has made is used, and stays. One that is made here ends with the block.
    """
    try:
        import ray
    except ImportError:
        raise ValueError(f"ray: the package is missing; {install('ray')}") from None
    if ray.is_initialized():
        yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    own: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        if port.isdecimal():  # Ray itself would wait for two minutes
            socket.create_connection((host, int(port)), timeout=5).close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of a default that Ray will change, for GPUs unused here
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"ray: no cluster at {address} ({one_line(error)}); check the address, or leave it out"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def ray_map(
    function: Callable[..., Result], items: Sequence[Item], *arguments: Any, gpu: bool = False, cores: int = 1
) -> Iterator[Result]:
    """``function(item, *arguments)`` for every item, each as a task of Ray on so many cores, in order.

    What a task raises is raised here, without Ray's trace.
    """
    import ray

    options: dict[str, Any] = {"num_cpus": cores, "num_gpus": int(gpu)}
    # without max_calls a worker that has used a GPU would end, and the next task load everything anew
    options |= {"max_retries": 3, "retry_exceptions": [OSError], "max_calls": 0}
    task = ray.remote(**options)(function)
    tasks = [task.remote(item, *arguments) for item in items]
    try:
        for each in tasks:
            yield ray.get(each)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", error)
        if isinstance(cause, ray.exceptions.RayError):
            raise OSError(f"ray: a worker failed ({one_line(cause)}); the same command goes on") from None
        raise cause from None
    finally:
        for each in tasks:
            ray.cancel(each)
