"""Whether the Hugging Face hub can be reached, and what of it is on this machine.

Without a network the hub's client retries for most of a minute. Ask here first, to fail at once or to use the cache.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit


def told_offline() -> bool:
    """Whether the user has asked for offline mode."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def hub_address() -> str:
    """The address of the hub."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def hub_reachable() -> bool:
    """Whether the hub answers; True without asking where its client does not: in offline mode, or behind a proxy."""
    proxies = {name.lower() for name in os.environ} & {"http_proxy", "https_proxy", "all_proxy"}
    if "HF_HUB_OFFLINE" in os.environ or proxies:
        return True
    address = urlsplit(hub_address())
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((address.hostname or "", port), timeout=5).close()
    except (OSError, ValueError):
        return False
    return True


@contextmanager
def hub_or_cache() -> Iterator[None]:
    """Let the hub's client use its cache alone, as in offline mode, while the hub does not answer."""
    from huggingface_hub import constants

    told = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = told or not hub_reachable()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = told


def cached_file(hub_id: str, *names: str, revision: str | None = None) -> Path:
    """The first of these files of a model that the hub's cache has.

    Raises:
        ConnectionError: If there is none: the hub would have to be reached.
    """
    from huggingface_hub import try_to_load_from_cache

    for name in names:
        if isinstance(found := try_to_load_from_cache(hub_id, name, revision=revision), str):
            return Path(found)
    raise ConnectionError(f"{hub_address()} can't be reached, and its cache has no {names[0]} of {hub_id}")
