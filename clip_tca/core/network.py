"""The network: whether the Hugging Face hub answers, what its cache holds, and downloads that continue."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from clip_tca.core.checks import one_line
from clip_tca.core.errors import OfflineError
from clip_tca.core.files import PART, digest
from clip_tca.core.progress import Progress
from clip_tca.core.version import __version__

TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as broken."""

ATTEMPTS = 5
"""Connections for one file; each continues where the last one broke."""


def told_offline() -> bool:
    """Whether the user has asked for offline mode."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def hub_address() -> str:
    """The address of the hub."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def hub_reachable() -> bool:
    """Whether the hub answers: its client alone would retry for most of a minute.

    True without asking where only the client knows: in offline mode, or behind a proxy.
    """
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
    """The first of these files of a model that the hub's cache has; OfflineError if it has none."""
    from huggingface_hub import try_to_load_from_cache

    for name in names:
        if isinstance(path := try_to_load_from_cache(hub_id, name, revision=revision), str):
            return Path(path)
    raise OfflineError(f"{hub_address()} can't be reached, and its cache has no {names[0]} of {hub_id}")


def download(url: str, target: Path, md5: str = "", progress: bool = False) -> None:
    """Load ``url`` into the file ``target``, which appears whole or not at all.

    What a broken connection or a killed run left in ``target.part`` is continued (archives have up to 50 GB).

    Raises:
        OfflineError: If the server can't be reached, or the connection breaks again and again.
        ValueError: If there is no such file, or its hash is not the published ``md5``.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError("the address must begin with http:// or https://")
    part = target.with_name(f"{target.name}{PART}")
    for attempt in range(0 if target.is_file() else ATTEMPTS):
        before = _size(part)
        try:
            _load(url, part, progress)
            os.replace(part, target)
            break
        except HTTPError as error:
            error.close()
            if error.code != 416 or not before:
                raise ValueError(f"HTTP {error.code} {error.reason}") from None
            part.unlink()  # it is as long as the file on the server, or longer
            download(url, target, progress=progress)
            break
        except (HTTPException, ConnectionError, TimeoutError, URLError) as error:
            reason = one_line(getattr(error, "reason", error))
            if attempt == ATTEMPTS - 1 or _size(part) == before:
                raise OfflineError(f"broken off after {_size(part)} bytes ({reason})") from None
    if md5 and (actual := digest(target, "md5")) != md5.lower():
        target.unlink()
        raise ValueError(f"its MD5 is {actual}, not {md5} as published")


def _load(url: str, part: Path, progress: bool) -> None:
    """One connection: append what ``part`` does not have yet."""
    start = _size(part)
    headers = {"User-Agent": f"clip-tca/{__version__}", **({"Range": f"bytes={start}-"} if start else {})}
    with urlopen(Request(url, headers=headers), timeout=TIMEOUT) as answer:  # noqa: S310  # http or https
        if answer.headers.get_content_type() == "text/html":
            drive = ": it is gone, not shared, or was loaded too often today" if "google" in url else ""
            raise ValueError(f"the server sent a web page instead of the file{drive}")
        start = start if answer.status == 206 else 0  # a server that knows no ranges sends all of it
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length else None
        title = part.name.removesuffix(PART)
        # unbuffered, so that a kill loses nothing
        with (
            part.open("ab" if start else "wb", buffering=0) as file,
            Progress(total, title, "B", progress, start) as bar,
        ):
            while block := answer.read1(1 << 18):
                file.write(block)
                bar.update(len(block))
            if total is not None and file.tell() != total:
                raise ConnectionError(f"{total} were announced")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
