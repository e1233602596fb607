"""A connection to Ray: to a cluster of machines, or to processes of this one."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from clip_tca.core.checks import install, one_line


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
