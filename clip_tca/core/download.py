"""Files over HTTP: a broken or killed download goes on where it was, and a file is whole and checked, or not there.

Unfinished files end in ``.part``. The server's mark of the version (ETag) is kept beside them, so that two versions are
never put together. Google Drive sends a page before large files; its answer is sent back.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from clip_tca.core.checks import one_line
from clip_tca.core.files import PART
from clip_tca.core.progress import Progress
from clip_tca.core.version import __version__

TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as broken."""

ATTEMPTS = 5
"""Connections for one file; each goes on where the last one broke."""

BYTES_AT_ONCE = 1 << 18


class DownloadError(ValueError):
    """Why a file could not be downloaded."""


def download(
    url: str,
    target: Path,
    hashes: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    progress: bool = False,
) -> dict[str, str]:
    """Load ``url`` into the file ``target``; its SHA-256, and what ``hashes`` names, as hexadecimal digits.

    ``hashes`` are the published ones, such as ``{"md5": "…"}``; ``headers`` go to the first server only, not to those
    that it redirects to. DownloadError has the reason.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise DownloadError("the address begins neither with http:// nor with https://")
    part = target.with_name(f"{target.name}{PART}")
    if not target.is_file():
        for attempt in range(ATTEMPTS):
            before = _size(part)
            try:
                _load(url, part, headers or {}, progress)
                break
            except _BrokenError as error:
                if attempt == ATTEMPTS - 1 or _size(part) <= before:
                    raise DownloadError(str(error)) from None
        os.replace(part, target)
        _tag_file(part).unlink(missing_ok=True)
    found = file_hashes(target, {"sha256", *(hashes or {})})
    for name, published in (hashes or {}).items():
        if found[name] != published.lower():
            target.unlink()
            raise DownloadError(f"its {name.upper()} is {found[name]}, not {published} as published")
    return found


class _BrokenError(Exception):
    """A connection ended early: another one may go on."""


def _load(url: str, part: Path, headers: Mapping[str, str], progress: bool) -> None:
    """Load what is missing of ``part``, in one connection."""
    start, tag = _size(part), _tag_file(part)
    try:
        answer = _open(url, start, tag.read_text(encoding="utf-8") if start and tag.is_file() else "", headers)
    except HTTPError as error:
        if error.code == 416 and start:  # nothing is left after ``start``, or the file is another one now
            if not error.headers.get("Content-Range", "").endswith(f"/{start}"):
                part.unlink()
                _load(url, part, headers, progress)
            return
        raise DownloadError(f"HTTP {error.code} {error.reason}") from None
    except (URLError, OSError, http.client.HTTPException) as error:
        raise DownloadError(one_line(getattr(error, "reason", error))) from None
    with answer:
        if answer.headers.get_content_type() == "text/html":
            _load(_confirmed(url, answer.read(1 << 20).decode("utf-8", "replace")), part, headers, progress)
            return
        if answer.status != 206:
            start = 0
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length else None
        free = shutil.disk_usage(part.parent).free
        if total and total - start > free:
            raise DownloadError(f"{total / 1e9:.1f} GB are needed and {free / 1e9:.1f} are free in {part.parent}")
        tag.write_text(answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "", encoding="utf-8")
        _copy(answer, part, start, total, progress)


def _copy(answer: http.client.HTTPResponse, part: Path, start: int, total: int | None, progress: bool) -> None:
    done = start
    with (
        part.open("ab" if start else "wb", buffering=0) as file,
        Progress(total, _name(part), "B", progress, start) as bar,
    ):
        try:
            while block := answer.read1(BYTES_AT_ONCE):  # what has come, at once: a kill loses nothing
                file.write(block)
                done += len(block)
                bar.update(len(block))
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            raise _BrokenError(f"broken off after {done} of {total or '?'} bytes ({one_line(error)})") from None
    if total is not None and done != total:
        raise _BrokenError(f"ended after {done} of {total} bytes")


def _open(url: str, start: int, tag: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
    request = Request(url, headers={"User-Agent": f"clip-tca/{__version__}"})  # noqa: S310  # http or https
    for name, value in headers.items():
        request.add_unredirected_header(name, value)
    if start:
        request.add_header("Range", f"bytes={start}-")
        if tag and not tag.startswith("W/"):
            request.add_header("If-Range", tag)
    answer: http.client.HTTPResponse = urlopen(request, timeout=TIMEOUT)  # noqa: S310
    return answer


def _confirmed(url: str, page: str) -> str:
    """The address behind the page that Google Drive sends before a large file."""
    fields = dict(re.findall(r'<input[^>]*\bname="([^"]*)"[^>]*\bvalue="([^"]*)"', page))
    action = re.search(r'<form[^>]*\baction="(http[^"]*)"', page)
    if action is None or "uuid" not in fields or f"uuid={fields['uuid']}" in url:
        drive = ": it is gone, not shared, or was loaded too often today" if "google" in url else ""
        raise DownloadError(f"a web page came instead of the file{drive}")
    return f"{unescape(action[1])}?{urlencode({name: unescape(value) for name, value in fields.items()})}"


def file_hashes(path: Path, names: set[str]) -> dict[str, str]:
    """Several hashes of a file, read once."""
    digests = {name: hashlib.new(name, usedforsecurity=False) for name in sorted(names)}
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            for digest in digests.values():
                digest.update(block)
    return {name: digest.hexdigest() for name, digest in digests.items()}


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _tag_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.tag")


def _name(part: Path) -> str:
    return part.name.removesuffix(PART)
