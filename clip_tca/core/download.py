"""Files over HTTP: a broken or killed download goes on where it was, and a file is whole and checked, or not there.

Unfinished files end in ``.part``. The server's mark of the version (ETag) is kept beside them, so that two versions are
never put together. We do this ourselves as pooch and ``urlretrieve`` begin again, and the archives have up to 50 GB.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from clip_tca.core.checks import one_line
from clip_tca.core.files import PART
from clip_tca.core.progress import Progress
from clip_tca.core.version import __version__

TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as broken."""

ATTEMPTS = 5
"""Connections for one file; each goes on where the last one broke."""


class DownloadError(ValueError):
    """Why a file could not be downloaded."""


def download(url: str, target: Path, md5: str = "", progress: bool = False) -> None:
    """Load ``url`` into the file ``target``, compared with the published ``md5``; DownloadError has the reason."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise DownloadError("the address must begin with http:// or https://")
    part = target.with_name(f"{target.name}{PART}")
    for attempt in range(0 if target.is_file() else ATTEMPTS):
        before = _size(part)
        try:
            _load(url, part, progress)
            os.replace(part, target)
            _tag(part).unlink(missing_ok=True)
            break
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            if attempt == ATTEMPTS - 1 or _size(part) == before:
                raise DownloadError(f"broken off after {_size(part)} bytes ({one_line(error)})") from None
    if md5 and (found := _md5(target)) != md5.lower():
        target.unlink()
        raise DownloadError(f"its MD5 is {found}, not {md5} as published")


def _load(url: str, part: Path, progress: bool) -> None:
    """Load what is missing of ``part``, in one connection."""
    start, tag = _size(part), _tag(part)
    request = Request(url, headers={"User-Agent": f"clip-tca/{__version__}"})  # noqa: S310  # http or https
    if start:
        request.add_header("Range", f"bytes={start}-")
        if tag.is_file() and (known := tag.read_text(encoding="utf-8")):
            request.add_header("If-Range", known)
    try:
        answer = urlopen(request, timeout=TIMEOUT)  # noqa: S310
    except HTTPError as error:
        if error.code == 416 and start:
            if error.headers.get("Content-Range", "").endswith(f"/{start}"):
                return  # nothing is left after ``start``
            part.unlink()
            raise ConnectionError("the file on the server has changed") from None
        raise DownloadError(f"HTTP {error.code} {error.reason}") from None
    except (URLError, OSError, http.client.HTTPException) as error:
        raise DownloadError(one_line(getattr(error, "reason", error))) from None
    with answer:
        if answer.headers.get_content_type() == "text/html":
            drive = ": it is gone, not shared, or was loaded too often today" if "google" in url else ""
            raise DownloadError(f"the server sent a web page instead of the file{drive}")
        start = start if answer.status == 206 else 0
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length else None
        free = shutil.disk_usage(part.parent).free
        if total and total - start > free:
            raise DownloadError(f"{total / 1e9:.1f} GB are needed, but only {free / 1e9:.1f} are free in {part.parent}")
        mark = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        tag.write_text("" if mark.startswith("W/") else mark, encoding="utf-8")
        title = part.name.removesuffix(PART)
        with (
            part.open("ab" if start else "wb", buffering=0) as file,
            Progress(total, title, "B", progress, start) as bar,
        ):
            while block := answer.read1(1 << 18):  # what has come, at once: a kill loses nothing
                file.write(block)
                bar.update(len(block))
            if total is not None and file.tell() != total:
                raise ConnectionError(f"{total} were announced")


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _tag(part: Path) -> Path:
    return part.with_name(f"{part.name}.tag")
