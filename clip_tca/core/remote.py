"""Files in object stores by URL (``s3://``, ``gs://``, ``hf://``, ``memory://``), with the part of pathlib used here.

fsspec opens the stores; local paths never import it. Reads fetch byte ranges; files are not downloaded first.
Writes appear whole under their name, or not at all: object stores show an object when its upload is complete; any other
store gets it under a temporary name, which is then moved. No store has locks, or a rename of many files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import IO, Any, cast

from clip_tca.core.checks import one_line
from clip_tca.core.errors import OfflineError, is_offline

_URL = re.compile(r"[a-z][a-z0-9+.-]*:(//|:)", re.IGNORECASE)

WHOLE_UPLOADS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf", "oss", "oci", "r2"}
"""Stores that show an object only when its upload is complete."""

_MARKS = ("ETag", "etag", "md5Hash", "blob_id", "mtime", "LastModified", "last_modified", "created")
"""What stores call a mark that changes with the content of a file, the best first."""


class RemotePath:
    """A file or folder in a store, with the methods of pathlib that this package uses."""

    def __init__(self, fs: Any, key: str, url: str) -> None:
        self.fs, self.key, self.url = fs, key, url  # key: its name in the store fs; url: the whole address
        last = PurePosixPath(key.rstrip("/"))
        self.name, self.stem, self.suffix = last.name, last.stem, last.suffix

    @property
    def parent(self) -> RemotePath:
        return RemotePath(self.fs, self.key.rstrip("/").rpartition("/")[0], self.url.rstrip("/").rpartition("/")[0])

    def __truediv__(self, part: str) -> RemotePath:
        return RemotePath(self.fs, f"{self.key.rstrip('/')}/{part}", f"{self.url.rstrip('/')}/{part}")

    def __str__(self) -> str:
        return self.url

    def open(self, mode: str = "rb") -> IO[bytes]:
        return cast("IO[bytes]", self._read("open", mode))

    def read_bytes(self) -> bytes:
        return bytes(self._read("cat_file"))

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def get(self, local: Path) -> None:
        """Download it."""
        self._read("get_file", str(local))

    def info(self) -> dict[str, Any]:
        """The store's own record of it."""
        return dict(self._read("info"))

    def stat(self) -> SimpleNamespace:
        return SimpleNamespace(st_size=int(self.info().get("size") or 0))

    def exists(self) -> bool:
        return self._type() is not None

    def is_file(self) -> bool:
        return self._type() == "file"

    def is_dir(self) -> bool:
        return self._type() == "directory"

    def _type(self) -> str | None:
        try:
            return str(self.info()["type"])  # fsspec's own exists() takes a store that does not answer for an empty one
        except FileNotFoundError:
            return None

    def iterdir(self) -> Iterator[RemotePath]:
        keys = [key.rstrip("/") for key in self._read("ls", detail=False)]
        return (self / key.rpartition("/")[2] for key in keys if key != self.key.rstrip("/"))

    def files(self) -> dict[str, tuple[RemotePath, list[Any]]]:
        """Every file below the folder, by its name in it, with its stamp; a file is alone in it."""
        if self.is_file():
            return {self.name: (self, stamp(self))}
        start = len(self.fs._strip_protocol(self.url).rstrip("/")) + 1
        files = self._read("find", detail=True)
        return {key[start:]: (self._other(key), _stamp(info)) for key, info in files.items()}

    def matches(self) -> list[RemotePath]:
        """The files that it stands for as a glob pattern."""
        return [self._other(key) for key, info in self._read("glob", detail=True).items() if info["type"] == "file"]

    def _other(self, key: str) -> RemotePath:
        return RemotePath(self.fs, key, self.fs.unstrip_protocol(key))

    def put(self, local: Path) -> None:
        """Upload a file: it appears whole, or not at all, and replaces one that is there."""
        from secrets import token_hex  # it loads OpenSSL, and every command imports this module

        with self._errors("can't be written"):
            if WHOLE_UPLOADS & set(_protocols(self.fs)):
                self.fs.put_file(str(local), self.key)
                return
            part = (self.parent / f".{self.name}.{token_hex(4)}.part").key
            self.fs.makedirs(self.parent.key, exist_ok=True)
            try:
                self.fs.put_file(str(local), part)
                self.fs.mv(part, self.key)
            except BaseException:
                with suppress(Exception):
                    self.fs.rm_file(part)
                raise

    def unlink(self, missing_ok: bool = False) -> None:
        with suppress(FileNotFoundError) if missing_ok else nullcontext(), self._errors("can't be removed"):
            self.fs.rm_file(self.key)

    def _read(self, method: str, *arguments: Any, **options: Any) -> Any:
        with self._errors("can't be read"):
            return getattr(self.fs, method)(self.key, *arguments, **options)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Errors of the store's library, whatever their class, as OSError with the address."""
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.url}: no such file, folder or bucket; check the address") from None
        except Exception as error:
            kind = OfflineError if is_offline(error) else OSError
            raise kind(
                f"{self.url} {what} ({one_line(error)}); check the address, the network and your access rights"
            ) from error


Location = Path | RemotePath
"""A file on this machine or in a store."""


def is_url(address: object) -> bool:
    """Whether it is an address in a store, and no local path."""
    return isinstance(address, RemotePath) or (isinstance(address, str) and bool(_URL.match(address)))


def locate(address: str | Location) -> Location:
    """The file that a path or URL names; ValueError if the kind of store is unknown, or its package is missing."""
    if not isinstance(address, str):
        return address
    if not is_url(address):
        return Path(address)
    import fsspec

    try:
        fs, key = fsspec.core.url_to_fs(address, use_listings_cache=False)
    except Exception as error:  # of a missing package it says which one to install
        raise ValueError(
            f"{address}: {one_line(error)}; allowed are paths and the URLs of fsspec: s3://, gs://, hf://, memory://, …"
        ) from error
    return Path(key) if "file" in _protocols(fs) else RemotePath(fs, key, address)


def stamp(path: Location) -> list[Any]:
    """Size and time, or the store's mark, of a file: they differ if its content does."""
    if isinstance(path, RemotePath):
        return _stamp(path.info())
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _stamp(info: dict[str, Any]) -> list[Any]:
    return [info.get("size"), next((str(info[mark]) for mark in _MARKS if info.get(mark)), None)]


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
