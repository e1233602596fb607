"""Shelves of several files, the folder of an unfinished run, and addresses in stores."""

from __future__ import annotations

import io
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.robustness.fuzzing.damage import damaged, damaged_text
from tests.robustness.fuzzing.embeddings import TEXT, Z, encoded, npy
from tests.robustness.fuzzing.target import Target, Unclear, command, content


class ClipRetrieval(Target):
    """A folder of clip-retrieval with one damaged file."""

    name = "clip-retrieval"

    @cached_property
    def seeds(self) -> dict[str, list[bytes]]:
        return {
            "img_emb/img_emb_1.npy": [encoded(Z, ".npy"), encoded(Z[:7], ".npy")],
            "metadata/metadata_1.parquet": [encoded(Z, ".parquet"), encoded(Z[:7], ".parquet")],
        }

    def cases(self) -> SearchStrategy[Any]:
        vectors, tables = self.seeds
        made_up = damaged(self.seeds[vectors]) | npy()
        return st.tuples(st.just(vectors), made_up) | st.tuples(st.just(tables), damaged(self.seeds[tables]))

    def run(self, case: Any, folder: Path) -> bool | None:
        """Adapt it; both files have as many rows."""
        name, data = case
        (folder / "text.npy").write_bytes(TEXT)
        for kind, (seed, _) in self.seeds.items():
            (folder / "case" / kind).parent.mkdir(parents=True)
            for number in (0, 1):
                (folder / "case" / kind.replace("1", str(number))).write_bytes(seed)
        (folder / "case" / name).write_bytes(data)
        words = ["adapt", "case", "--text", "text.npy", "--write", "embeddings,labels", "--drop-bad-rows", "-o", "out"]
        if not command(words, ("case", "rows")):
            return False
        import pyarrow.parquet as pq

        for number in (0, 1):
            rows = pq.read_metadata(folder / f"out/metadata/metadata_{number}.parquet").num_rows
            if len(np.load(folder / f"out/img_emb/img_emb_{number}.npy")) != rows:
                raise Unclear(f"part {number} has another number of rows than its metadata")
        return True


class Unfinished(Target):
    """The folder of a killed run with one damaged file: the result is that of an undisturbed run."""

    name = "unfinished runs"

    @cached_property
    def seeds(self) -> tuple[Path, dict[str, bytes], dict[str, bytes]]:
        """A folder with inputs and what a killed run has left there, its files, and the finished output."""
        from clip_tca.bulk.staging import Staging
        from clip_tca.cli import main

        self._holder = tempfile.TemporaryDirectory()  # goes with this process
        place = Path(self._holder.name)
        (place / "in").mkdir()
        (place / "text.npy").write_bytes(TEXT)
        for number in range(3):
            np.save(place / "in" / f"{number}.npy", Z + number)
        words = self.words(place)
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            main([*words, "-o", str(place / "whole")])
            with patch.object(Staging, "commit", side_effect=KeyboardInterrupt):
                main([*words, "-o", str(place / "out")])
        left = place / ".out.part"
        files = {str(path.relative_to(left)): path.read_bytes() for path in left.rglob("*") if path.is_file()}
        whole = {path.name: path.read_bytes() for path in (place / "whole").glob("*.npy")}
        return place, files, whole

    def words(self, place: Path) -> list[str]:
        return ["adapt", str(place / "in"), "--text", str(place / "text.npy"), "--write", "labels"]

    def cases(self) -> SearchStrategy[Any]:
        _, files, _ = self.seeds
        return st.sampled_from(sorted(files)).flatmap(
            lambda name: st.tuples(st.just(name), damaged([files[name]]) | st.none())
        )

    def run(self, case: Any, folder: Path) -> bool | None:
        """Go on with it; what is damaged is refused, in that the result is right without it."""
        name, data = case
        place, files, whole = self.seeds
        for each, content_ in {**files, name: data}.items():
            (folder / ".out.part" / each).parent.mkdir(parents=True, exist_ok=True)
            if content_ is not None:
                (folder / ".out.part" / each).write_bytes(content_)
        if not command([*self.words(place), "-o", str(folder / "out")]):
            raise Unclear(f"refused: {name}")
        found = {path.name: path.read_bytes() for path in (folder / "out").glob("*.npy")}
        if found != whole or (folder / ".out.part").exists():
            raise Unclear(f"another result with a damaged {name}")
        return bool(data == files[name])


NETWORKS = ("http", "ftp", "s3", "gs:", "gcs", "hf:", "ssh", "smb", "git", "hdfs", "abfs", "az:", "dav", "oci", "oss")


class Addresses(Target):
    """Odd addresses; none of a store that would be asked over the network."""

    name = "addresses"

    def cases(self) -> SearchStrategy[Any]:
        known = ["memory://case/in", "memory://case/in/0.npy", "memory://case/*.npy", "memory:///", "memory://"]
        odd = [
            "nowhere://case",
            "file://case/in",
            "simplecache::memory://case/in",
            "::",
            "a::b://c",
            "memory://case/\0",
        ]
        return st.tuples(damaged_text([*known, *odd]) | st.sampled_from([*known, *odd]), st.sampled_from(range(4)))

    def run(self, case: Any, folder: Path) -> bool | None:
        """As input, text, output and state."""
        import fsspec

        address, place = case
        if any(scheme in address.lower() for scheme in NETWORKS):
            return None
        store = fsspec.filesystem("memory")
        for name, data in {"in/0.npy": Z, "in/1.npy": Z + 1, "text.npy": Z[:4]}.items():
            store.pipe_file(f"/case/{name}", content(lambda path, data=data: np.save(path, data), ".npy"))
        words = ["adapt", "memory://case/in", "--text", "memory://case/text.npy", "-o", "memory://case/out"]
        words[(1, 3, 5, 5)[place]] = address
        words += ["--write", "labels"] if place < 3 else ["--save-state", address]
        try:
            return command(words, (), codes=(0, 1, 2))
        finally:
            store.store.clear()
            store.pseudo_dirs[:] = [""]
