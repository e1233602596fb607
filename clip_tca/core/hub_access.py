"""Offline mode of the Hugging Face hub, when it can't be reached."""

from __future__ import annotations

import os
import socket
import sys
from urllib.parse import urlsplit

_found_offline: list[bool] = []
"""Not empty if offline mode was set here, and not by the user."""


def told_offline() -> bool:
    """Whether the user has asked for offline mode."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE") and not _found_offline


def go_offline_if_unreachable() -> None:
    """Set the hub's client to offline mode if the hub can't be reached: it would retry for most of a minute.

    Must be called before that client is imported, and does nothing after. Its cache is used in any case.
    """
    proxies = {name.lower() for name in os.environ} & {"http_proxy", "https_proxy", "all_proxy"}
    if "HF_HUB_OFFLINE" in os.environ or proxies or "huggingface_hub" in sys.modules:
        return
    address = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((address.hostname or "", port), timeout=5).close()
    except (OSError, ValueError):
        os.environ["HF_HUB_OFFLINE"] = "1"
        _found_offline.append(True)
