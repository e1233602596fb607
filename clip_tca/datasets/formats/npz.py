"""``.npz`` files: an archive of ``.npy`` files, compressed or not, each read from its beginning to its end."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from clip_tca.datasets.formats.arrays import ArrayFile, ArrayHeader
from clip_tca.datasets.formats.base import damaged
from clip_tca.datasets.formats.npy import PackedSink, read_header, read_rows


class NpzSink(PackedSink):
    """One ``.npz`` file, not compressed."""

    def _pack(self) -> None:
        with zipfile.ZipFile(self.path, "w", allowZip64=True) as archive:
            for kind, part in self.parts.items():  # without the time: a clock before 1980 would be an error
                with part.open("rb") as source, archive.open(f"{self.names[kind]}.npy", "w", force_zip64=True) as to:
                    shutil.copyfileobj(source, to, 1 << 20)


class NpzFile(ArrayFile[np.ndarray]):
    """A ``.npz`` file."""

    sink = NpzSink

    def _open(self) -> dict[str, ArrayHeader]:
        headers = {}
        with self.path.open("rb") as source, zipfile.ZipFile(source) as archive:
            for member in [name for name in archive.namelist() if name.endswith(".npy")]:
                with archive.open(member) as file:
                    headers[member.removesuffix(".npy")] = read_header(file)
        return headers

    def _read(self, name: str) -> np.ndarray:
        with self.path.open("rb") as source, np.load(source, allow_pickle=False) as archive:
            return np.asarray(archive[name])

    def windows(self, name: str, rows: int) -> Iterator[np.ndarray]:
        """A matrix, ``rows`` at a time."""
        with ExitStack() as stack:
            try:
                archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(self.path.open("rb"))))
                member = stack.enter_context(archive.open(f"{name}.npy"))
                read_header(member)
            except (zipfile.BadZipFile, KeyError, ValueError, EOFError, OSError) as error:
                raise damaged(self.path, error) from None
            yield from read_rows(member, self.headers[name], rows, self.path)
