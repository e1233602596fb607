"""Copies of the benchmarks on this machine, as ``clip-tca data get`` makes them and ``eval`` finds them.

    ROOT/NAME/                       the images as they were published; RECEIPT says where from, with hashes and counts
    ROOT/.downloads/NAME/            unfinished downloads: the next run goes on with them
    ROOT/.NAME.part/                 unpacking; renamed to NAME when it is whole

Each mirror is tried in turn; one whose images do not have the published counts is not used. One run works on a data set
at a time, others wait for it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clip_tca.core.cache_folder import data_root
from clip_tca.core.checks import one_line
from clip_tca.core.download import download, file_hashes
from clip_tca.core.files import PART, lock, write_text
from clip_tca.core.progress import Progress
from clip_tca.datasets.archives import is_archive, unpack
from clip_tca.datasets.hub_files import hub_files, hub_headers
from clip_tca.datasets.image_set import ImageSet
from clip_tca.datasets.mirrors import Mirror, RemoteFile, mirrors_of
from clip_tca.datasets.registry import BENCHMARKS, Benchmark

log = logging.getLogger("clip_tca")

RECEIPT = "clip-tca.json"
DOWNLOADS = ".downloads"


def found(name: str) -> Path | None:
    """The folder of a benchmark on this machine, or None."""
    folder = data_root() / name
    return folder if folder.is_dir() and any(folder.iterdir()) else None


def load_copy(folder: Path, benchmark: Benchmark) -> ImageSet:
    """The images of a copy: published folders and arrays, or Parquet files; its origin has the receipt's mirror."""
    from clip_tca.datasets.corrupted_sets import load_corrupted
    from clip_tca.datasets.folder import load_benchmark
    from clip_tca.datasets.hub import load_hub

    if next(folder.rglob("*.parquet"), None) is not None:
        data = load_hub(str(folder), benchmark)
    else:
        data = (load_corrupted if benchmark.corrupted else load_benchmark)(folder, benchmark)
    if (folder / RECEIPT).is_file():
        data.origin["mirror"] = receipt(folder)["mirror"]
    return data


def receipt(folder: Path) -> dict[str, Any]:
    """What RECEIPT says: ``mirror``, ``revision``, ``files`` with their hashes, and ``domains`` with their counts."""
    try:
        content: dict[str, Any] = json.loads((folder / RECEIPT).read_text(encoding="utf-8"))
        return {**content, "mirror": str(content["mirror"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / RECEIPT} can't be read ({error}); remove it, and check with data check") from None


@dataclass(frozen=True)
class Getter:
    """Gets a copy of a benchmark below ``root`` from the first of the ``mirrors`` that has it whole."""

    benchmark: Benchmark
    mirrors: Sequence[Mirror]
    root: Path
    progress: bool = False

    @classmethod
    def of(
        cls, name: str, addresses: Sequence[str] = (), root: str | Path | None = None, progress: bool = False
    ) -> Getter:
        """For a benchmark by its name; ``addresses`` replace its mirrors (see :meth:`Mirror.at`)."""
        mirrors = tuple(Mirror.at(address) for address in addresses) or mirrors_of(name)
        if name not in BENCHMARKS or not mirrors:
            allowed = ", ".join(known for known in BENCHMARKS if mirrors_of(known))
            own = f", or {name} with --mirror ADDRESS" if name in BENCHMARKS else ""
            raise ValueError(f"data: {name!r} can't be got; allowed are {allowed}{own}")
        place = data_root() if root is None else Path(root).expanduser()
        return cls(BENCHMARKS[name], mirrors, place, progress)

    @property
    def folder(self) -> Path:
        """Where the copy is, or will be."""
        return self.root / self.benchmark.name

    def get(self, failures: Sequence[tuple[str, str]] = ()) -> Path:
        """The folder of the copy; ValueError names every mirror and why it failed, with earlier ``failures`` first."""
        self.root.mkdir(parents=True, exist_ok=True)
        failed = list(failures)
        with self._alone():
            if self.folder.exists():
                self._adopt()
                return self.folder
            for mirror in self.mirrors:
                try:
                    self._from(mirror)
                    return self.folder
                except (ValueError, OSError) as error:
                    failed.append((str(mirror), one_line(error)))
        raise ValueError(self._failure(failed))

    def _failure(self, failed: list[tuple[str, str]]) -> str:
        lines = "".join(f"\n  {address}: {why}" for address, why in failed)
        name = self.benchmark.name
        return (
            f"{name} could not be got from any of its {len(failed)} mirrors; get it another way, then "
            f"--data-dir DIR, or clip-tca data get {name} --mirror ARCHIVE{lines}\n  the folder must look like "
            f"{self.benchmark.layout()}"
        )

    def _from(self, mirror: Mirror) -> None:
        """Load, unpack, count, and leave the receipt."""
        downloads = self.root / DOWNLOADS / self.benchmark.name
        downloads.mkdir(parents=True, exist_ok=True)
        revision, files = (
            hub_files(mirror.hub_id, mirror.revision, self.benchmark.split) if mirror.hub_id else (None, mirror.files)
        )
        loaded = [(file, *self._load(file, downloads, bool(mirror.hub_id))) for file in files]
        stage = self.root / f".{self.benchmark.name}{PART}"
        shutil.rmtree(stage, ignore_errors=True)
        try:
            for file, path, _ in loaded:
                self._place(path, stage / file.into, file)
            os.replace(stage, self.folder)
            self._count(str(mirror), revision, [{"url": f.url, **hashes} for f, _, hashes in loaded])
            shutil.rmtree(downloads, ignore_errors=True)
        except ValueError:  # what was loaded is not the data set; after any other end it is worth keeping
            shutil.rmtree(self.folder, ignore_errors=True)
            for file in files:
                (downloads / file.name).unlink(missing_ok=True)
            raise
        finally:
            shutil.rmtree(stage, ignore_errors=True)

    def _load(self, file: RemoteFile, downloads: Path, hub: bool) -> tuple[Path, dict[str, str]]:
        local = Path(file.url)
        if local.is_file():
            return local, file_hashes(local, {"sha256"})
        path = downloads / file.name
        hashes = download(file.address, path, file.hashes, hub_headers() if hub else None, self.progress)
        return path, hashes

    def _place(self, path: Path, folder: Path, file: RemoteFile) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if is_archive(path):
            unpack(path, folder, self.progress)
        elif path.suffix in (".parquet", ".txt", ".npy"):
            shutil.copyfile(path, folder / file.name.partition("-")[2])
        else:
            raise ValueError(f"{file.url} is neither a zip or tar archive nor a Parquet file")

    def _adopt(self) -> None:
        """Take a folder that is there already: of an earlier run, or put there by hand; count it if nobody has."""
        if not (self.folder / RECEIPT).is_file():
            try:
                self._count("put there by hand", None, [])
            except (ValueError, OSError) as error:
                raise ValueError(f"{self.folder} is there already, but {one_line(error)}; move it away first") from None

    def _count(self, mirror: str, revision: str | None, files: list[dict[str, str]]) -> None:
        """Compare with the published counts, then write the receipt: the last step."""
        with Progress(None, f"counting {self.benchmark.name}", "image", self.progress):
            usual = self.benchmark.only((), ()) if self.benchmark.corrupted else self.benchmark
            try:
                data = load_copy(self.folder, usual)
            except FileNotFoundError:
                raise ValueError(f"it does not look like {self.benchmark.layout()}") from None
            if wrong := data.differences():
                raise ValueError(f"it is not complete ({'; '.join(wrong[:3])}{'; …' if wrong[3:] else ''})")
            domains = {
                name: {"images": len(domain), "files_sha256": domain.fingerprint()}
                for name, domain in data.domains.items()
            }
        content = {"dataset": data.name, "mirror": mirror, "revision": revision, "files": files, "domains": domains}
        write_text(self.folder / RECEIPT, json.dumps(content, indent=1) + "\n")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of the data set, where the file system has locks."""
        guard = self.root / f".{self.benchmark.name}.lock"
        guard.touch()
        handle = None
        try:
            handle = lock(guard, wait=True)
        except OSError:
            log.info("no locks in %s", self.root)
        try:
            yield
        finally:
            if handle is not None:
                os.close(handle)


def without_hub(getter: Getter, hub_id: str) -> Getter:
    """The same without the mirror ``hub_id``, which was tried before."""
    return replace(getter, mirrors=tuple(mirror for mirror in getter.mirrors if mirror.hub_id != hub_id))
