"""Whether the Hugging Face hub can be reached."""

from __future__ import annotations

import os
import socket
import sys
from urllib.parse import urlsplit


def spare_waiting() -> None:
    """Where the hub can't be reached, tell its client at once: it would try for most of a minute before it said so.

    Has to come before that client is imported, and does nothing after. What is in its cache is found all the same.
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
