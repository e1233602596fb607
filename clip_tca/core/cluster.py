"""A connection to Ray: to a cluster of machines, or to processes of this one."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from clip_tca.core.checks import install, one_line

Item = TypeVar("Item")
Result = TypeVar("Result")

TRIES = 3
"""How often a task is tried again whose worker dies, or whose files can't be reached."""


@contextmanager
def connect(address: str | None = None) -> Iterator[Any]:
    """The module ``ray``, connected to the cluster at ``address`` or ``RAY_ADDRESS``; else Ray starts on this machine.

    A connection that the caller has made is used, and stays. One that is made here ends with the block.

    Raises:
        ValueError: If the package is missing, or no cluster answers at the address.
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
    options |= {"max_retries": TRIES, "retry_exceptions": [OSError], "max_calls": 0}
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
