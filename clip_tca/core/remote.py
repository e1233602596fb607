"""Files in object stores by URL (``s3://``, ``gs://``, ``hf://``, ``memory://``), with the part of pathlib used here.

fsspec opens the stores; local paths never import it. What is read is read by ranges, nothing is downloaded whole first.
What is written appears whole under its name, or not at all: object stores show an object when its upload is complete;
any other store gets it under a temporary name, which is then moved. No store has locks, or a rename of many files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import IO, Any

from clip_tca.core.checks import install, one_line

_URL = re.compile(r"[a-z][a-z0-9+.-]*:(//|:)", re.IGNORECASE)

WHOLE_UPLOADS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf", "oss", "oci", "r2"}
"""Stores that show an object only when its upload is complete."""

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}
"""The extra that brings what fsspec needs for a store."""

_MARKS = ("ETag", "etag", "md5Hash", "blob_id", "mtime", "LastModified", "last_modified", "created")
"""What stores call a mark that changes with the content of a file, the best first."""


class RemotePath:
    """A file or folder in a store; ``name``, ``stem`` and ``suffix`` are those of pathlib."""

    def __init__(self, fs: Any, key: str, url: str) -> None:
        """``key`` is its name in the store ``fs``, ``url`` the whole address."""
        self.fs, self.key, self.url = fs, key, url
        last = PurePosixPath(key.rstrip("/"))
        self.name, self.stem, self.suffix = last.name, last.stem, last.suffix

    @property
    def parent(self) -> RemotePath:
        """The folder it is in."""
        return RemotePath(self.fs, self.key.rstrip("/").rpartition("/")[0], self.url.rstrip("/").rpartition("/")[0])

    def __truediv__(self, part: str) -> RemotePath:
        return RemotePath(self.fs, f"{self.key.rstrip('/')}/{part}", f"{self.url.rstrip('/')}/{part}")

    def __str__(self) -> str:
        return self.url

    def open(self, mode: str = "rb") -> IO[bytes]:
        """The file, read by ranges."""
        with self._saying("can't be read"):
            file: IO[bytes] = self.fs.open(self.key, mode)
            return file

    def read_bytes(self) -> bytes:
        """The whole content."""
        with self._saying("can't be read"):
            content: bytes = self.fs.cat_file(self.key)
            return content

    def read_text(self, encoding: str = "utf-8") -> str:
        """The whole content as text."""
        return self.read_bytes().decode(encoding)

    def get(self, local: Path) -> None:
        """Download it."""
        with self._saying("can't be read"):
            self.fs.get_file(self.key, str(local))

    def info(self) -> dict[str, Any]:
        """What the store says about it."""
        with self._saying("can't be read"):
            found: dict[str, Any] = self.fs.info(self.key)
            return found

    def stat(self) -> SimpleNamespace:
        """Its size, called ``st_size`` as for a local file."""
        return SimpleNamespace(st_size=int(self.info().get("size") or 0))

    def exists(self) -> bool:
        """Whether there is a file or folder."""
        return self._type() is not None

    def is_file(self) -> bool:
        """Whether it is a file."""
        return self._type() == "file"

    def is_dir(self) -> bool:
        """Whether there are files below it."""
        return self._type() == "directory"

    def _type(self) -> str | None:
        """Unlike fsspec's own functions, tell a store that does not answer from one without the file."""
        try:
            return str(self.info()["type"])
        except FileNotFoundError:
            return None

    def iterdir(self) -> Iterator[RemotePath]:
        """What is in the folder."""
        with self._saying("can't be read"):
            found = self.fs.ls(self.key, detail=False)
        return (self / key.rstrip("/").rpartition("/")[2] for key in found if key.rstrip("/") != self.key.rstrip("/"))

    def files(self) -> dict[str, tuple[RemotePath, list[Any]]]:
        """Every file below the folder, by its name in it, with its stamp; a file is alone in it."""
        if self.is_file():
            return {self.name: (self, stamp(self))}
        with self._saying("can't be read"):
            found = self.fs.find(self.key, detail=True)
        start = len(self.fs._strip_protocol(self.url).rstrip("/")) + 1
        return {key[start:]: (self._other(key), _stamp(info)) for key, info in found.items()}

    def matches(self) -> list[RemotePath]:
        """The files that it stands for as a glob pattern."""
        with self._saying("can't be read"):
            found = self.fs.glob(self.key, detail=True)
        return [self._other(key) for key, info in found.items() if info["type"] == "file"]

    def _other(self, key: str) -> RemotePath:
        return RemotePath(self.fs, key, self.fs.unstrip_protocol(key))

    def put(self, local: Path) -> None:
        """Upload a file: it appears whole, or not at all, and replaces one that is there."""
        from secrets import token_hex  # it loads OpenSSL, and every command imports this module

        with self._saying("can't be written"):
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
        """Remove it."""
        with self._saying("can't be removed"):
            try:
                self.fs.rm_file(self.key)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    @contextmanager
    def _saying(self, what: str) -> Iterator[None]:
        """Errors of the store's library, whatever their class, as OSError with the address."""
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.url}: no such file, folder or bucket; check the address") from None
        except Exception as error:
            raise OSError(
                f"{self.url} {what} ({one_line(error)}); check the address, the network and your access rights"
            ) from error


Location = Path | RemotePath
"""A file on this machine or in a store."""


def is_url(address: object) -> bool:
    """Whether it is an address in a store, and no local path."""
    return isinstance(address, RemotePath) or (isinstance(address, str) and bool(_URL.match(address)))


def locate(address: str | Location) -> Location:
    """The file that a path or URL names.

    Raises:
        ValueError: If the kind of store is not known, or a package for it is missing.
    """
    if not isinstance(address, str):
        return address
    if not is_url(address):
        return Path(address)
    import fsspec

    protocol = address.partition(":")[0].lower()
    try:
        fs, key = fsspec.core.url_to_fs(address, use_listings_cache=False)
    except ImportError as error:
        extra = EXTRAS.get(protocol)
        remedy = install(extra) if extra else one_line(error)
        raise ValueError(f"{address}: a package for {protocol}:// is missing; {remedy}") from None
    except Exception as error:
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
