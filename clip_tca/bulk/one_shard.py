"""One shard of embeddings in, its adapted copy out: the unit of work of ``clip-tca adapt``, in this process or in many.

OUT/NAME                   a shard, which appears whole under its name, or not at all; OUT/KIND/NAME if several kinds of
                           results are written and the format holds a single array
OUT/.clip-tca/NAME.json    its mark: what it was made of, the stamps of its files, what was counted

If OUT is a file, its mark is OUT.json. A shard whose mark says that the same work is done is not adapted again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from clip_tca.adapters.base import Adapter
from clip_tca.adapters.state import checksum, load
from clip_tca.bulk.rivals import Rival
from clip_tca.core.files import scratch, write_text
from clip_tca.core.machine import choose_device
from clip_tca.core.remote import Location, RemotePath, locate, stamp
from clip_tca.core.tensors import to_tensor, unit
from clip_tca.core.version import __version__
from clip_tca.data.formats import FORMATS, KINDS, Kind
from clip_tca.data.shards import Arrays, Block, Shard, block_rows, open_one

T = TypeVar("T")
Progressing = Callable[[int], object]

RECORD = "_clip-tca.json"  # in an output folder: readers of data sets skip names that begin with an underscore
MARKS = ".clip-tca"  # folder of the marks in an output folder


@dataclass(frozen=True)
class ShardResult:
    """What was counted in a shard."""

    rows: int  # that were written
    left_out: int = 0  # rows of NaN or infinity
    first_left_out: list[int] = field(default_factory=list)  # at most a hundred
    correct: int | None = None  # if there were labels
    correct_before: int | None = None  # without adaptation
    skipped: bool = False  # whether an earlier call had done the work


def adapt_shard(
    adapter: Adapter | str | Location,
    source: str | Location,
    target: str | Location,
    *,
    write: Sequence[Kind] = ("embeddings",),
    column: str | None = None,
    dtype: str | None = None,
    names: bool = False,
    labels: np.ndarray | None = None,
    drop_bad_rows: bool = False,
    overwrite: bool = False,
) -> ShardResult:
    """Adapt one file of embeddings, in constant memory; if that is done already, do nothing.

    Args:
        adapter: A fitted adapter, or the file of a saved one, which is loaded onto a GPU if there is one.
        source: A ``.npy``, ``.npz``, ``.safetensors``, ``.parquet`` or Arrow file. Every file here is a path or a URL.
        target: A file of the same format, or a folder, which gets a file of the same name. It appears whole.
        write: What is written: ``embeddings``, ``labels``, ``scores``.
        column: Array, tensor or list column with the embeddings; None looks for the usual names.
        dtype: ``float16`` or ``float32``, of the embeddings that are written; None: as they came.
        names: Write labels as names of the classes, not as numbers.
        labels: True classes ``(n,)``, for scoring only.
        drop_bad_rows: Leave out rows that hold NaN or infinity; they are an error otherwise.
        overwrite: Replace a target that was made of other inputs or with other options.

    Raises:
        ValueError: For bad rows, for a damaged file, or for a target that is there and not to be replaced.
    """
    if not isinstance(adapter, Adapter):
        adapter = load(adapter, choose_device("auto"))
    kinds = tuple(kind for kind in KINDS if kind in write)
    spelled = label_names(adapter, kinds) if names else None
    output = Output(open_one(locate(source), column), locate(target), kinds, dtype, spelled, drop_bad_rows, labels)
    output.check()
    return output.adapt(adapter, adapter_key(adapter), overwrite)


def label_names(adapter: Adapter | Rival, kinds: Sequence[Kind]) -> tuple[str, ...]:
    """The names to write in place of labels."""
    if "labels" not in kinds:
        raise ValueError("names: they stand for labels, which are not written; add --write labels")
    if adapter.g.classes is None:
        raise ValueError("names: the classes have none; give a file with one a line: --class-names FILE")
    return tuple(adapter.g.classes)


def adapter_key(adapter: Adapter) -> str:
    """A hash of the options, the classifier and everything learned: which map an adapter applies."""
    about = [type(adapter).__name__, adapter.options(), adapter.g.fingerprint()]
    learned = adapter.learned()
    return checksum(json.dumps(about, default=str), {k: v for k, v in learned.items() if isinstance(v, Tensor)})


def output_exists(path: Location) -> ValueError:
    """The error for an output of another run."""
    advice = "choose another name, or replace it: --overwrite"
    return ValueError(f"output: {path} exists, of other inputs or options; {advice}")


@dataclass(frozen=True)
class Output:
    """The output for one shard: where it goes, as what, and whether it is there already."""

    shard: Shard
    target: Location
    kinds: tuple[Kind, ...]
    dtype: str | None = None
    names: tuple[str, ...] | None = None
    drop_bad_rows: bool = False
    labels: np.ndarray | None = None

    @property
    def single(self) -> bool:
        return self.target.suffix.lower() in FORMATS

    @property
    def place(self) -> Location:
        return self.target.parent if self.single else self.target

    @property
    def written(self) -> list[str]:
        return [self.target.name] if self.single else self.shard.written(self.kinds)

    @property
    def mark(self) -> Location:
        if self.single:
            return self.place / f"{self.target.name}.json"
        return self.place / MARKS / f"{self.shard.path.name}.json"

    @property
    def dtypes(self) -> dict[Kind, np.dtype[Any]]:
        labels = np.dtype("<i8") if self.names is None else np.dtype(f"<U{max(map(len, self.names))}")
        came = "float16" if self.shard.dtype == np.float16 else "float32"
        embeddings = np.dtype(self.dtype or came).newbyteorder("<")
        dtypes = {"embeddings": embeddings, "labels": labels, "scores": np.dtype("<f4")}
        return {kind: dtypes[kind] for kind in self.kinds}

    def check(self) -> None:
        shard, target, suffix = self.shard, self.target, self.shard.path.suffix.lower()
        if self.single and target.suffix.lower() != suffix:
            raise ValueError(
                f"output: {target}; the output has the format of the input: name a {suffix} file, or a folder"
            )
        if self.single and (len(shard.sources()) > 1 or (shard.single_array and len(self.kinds) > 1)):
            raise ValueError(
                f"output: {target} can hold one array, not {' and '.join(self.kinds)}; name a folder, or write one"
            )
        shard.check_added(self.kinds)
        if self.names is not None and suffix == ".safetensors":
            raise ValueError(
                "names: a .safetensors file holds numbers alone; leave out --names, or give .npy or .parquet"
            )
        if self.labels is not None and len(self.labels) != shard.rows:
            raise ValueError(f"labels: {len(self.labels)}, but {shard.path} has {shard.rows} rows; one each is needed")
        sources = {_identity(path) for path in shard.sources()}
        if any(_identity(self.place / name) in sources for name in self.written):
            raise ValueError(f"output: {target} is the input; choose another name")
        if isinstance(target, Path) and not target.parent.is_dir():
            raise FileNotFoundError(f"output: the folder {target.parent} does not exist; create it first")

    def check_free(self) -> None:
        for path in [self.place / name for name in self.written] + ([self.mark] if self.single else []):
            if path.exists():
                raise output_exists(path)

    def fingerprint(self, key: str) -> str:
        """Of everything that decides what is written and counted; ``key`` stands for the adapter."""
        dtypes = {kind: str(dtype) for kind, dtype in self.dtypes.items()}
        labels = b"" if self.labels is None else np.asarray(self.labels, np.int64).tobytes()
        shard = [self.shard.path.name, self.shard.stamp()]
        content = [__version__, key, shard, dtypes, self.names, self.drop_bad_rows]
        return hashlib.sha256(json.dumps(content).encode() + labels).hexdigest()

    def adapt(
        self,
        adapter: Adapter | Rival,
        key: str,
        overwrite: bool = False,
        progress: Progressing = lambda _rows: None,
        batch: int | None = None,
    ) -> ShardResult:
        """Read, adapt and write the shard, unless that is done; with a ``batch`` learn on the way, in any case."""
        fingerprint, mark = self.fingerprint(key), read_mark(self.mark)
        if batch is None and (done := self._done(mark, fingerprint)):
            return done
        if not overwrite and mark.get("fingerprint") != fingerprint:
            self.check_free()
        with scratch(self.mark.parent / self.mark.stem) as folder:
            result = self._write(folder, adapter, batch, progress)
            write_text(self.mark, json.dumps({"fingerprint": fingerprint}))  # whatever is there from now on is ours
            if not self.single:
                (self.place / RECORD).unlink(missing_ok=True)  # of an earlier run: where it is, all shards are its own
            for name in self.written:
                path = self.place / name
                if isinstance(path, RemotePath):
                    path.put(folder / name)
                else:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(folder / name, os.path.realpath(path))
        mark = {"fingerprint": fingerprint, "files": self._stamps(), "counts": asdict(result)}
        write_text(self.mark, json.dumps(mark))
        return result

    def _done(self, mark: dict[str, Any], fingerprint: str) -> ShardResult | None:
        """What was counted, if all files are there and as they were written."""
        with suppress(FileNotFoundError, KeyError, TypeError):
            if mark["fingerprint"] == fingerprint and mark["files"] == self._stamps():
                return ShardResult(**{**mark["counts"], "skipped": True})
        return None

    def _stamps(self) -> dict[str, Any]:
        return {name: stamp(self.place / name) for name in self.written}

    def _write(self, folder: Path, adapter: Adapter | Rival, batch: int | None, progress: Progressing) -> ShardResult:
        """Write the files below ``folder``, under the names that they will have."""
        outputs = dict.fromkeys(self.kinds, self.target.name) if self.single else self.shard.outputs(self.kinds)
        paths: dict[Kind, Path] = {kind: folder / name for kind, name in outputs.items()}
        for path in paths.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        writer = self.shard.writer(paths, self.dtypes)
        rows = block_rows(self.shard.dim or 1)
        blocks = self.shard.blocks(rows if batch is None else batch * max(rows // batch, 1))
        counts = Counter[str]()
        bad: list[int] = []

        def computed() -> Iterator[tuple[Arrays, Block, int]]:
            for good, numbers, dropped in read_ahead(usable(self.shard, b, self.drop_bad_rows) for b in blocks):
                bad.extend(dropped.tolist())
                arrays = self._adapted(good, numbers, adapter, batch, counts) if len(good) else {}
                yield arrays, good, len(good) + len(dropped)

        try:
            for arrays, good, length in read_ahead(computed()):
                if arrays:
                    writer.write(arrays, good.others)
                progress(length)
        except BaseException:
            with suppress(Exception):
                writer.close()  # or its files stay open
            raise
        writer.close()
        scored = (None, None) if self.labels is None else (counts["correct"], counts["correct before"])
        return ShardResult(counts["rows"], len(bad), bad[:100], *scored)

    def _adapted(
        self, block: Block, numbers: np.ndarray, adapter: Adapter | Rival, batch: int | None, counts: Counter[str]
    ) -> Arrays:
        """The output for finite rows of these ``numbers`` in the shard; adds to the ``counts``."""
        z = to_tensor(block.z).to(adapter.g.weight.device)
        arrays = apply(adapter, z, self.kinds if self.labels is None else (*self.kinds, "labels"), batch)
        counts["rows"] += len(block)
        if self.labels is not None:
            unadapted = adapter.g.predict(unit(z) if adapter.options()["normalize"] else z)
            counts["correct"] += int(np.sum(arrays["labels"] == self.labels[numbers]))
            counts["correct before"] += int(np.sum(unadapted.cpu().numpy() == self.labels[numbers]))
        if self.names is not None:
            arrays["labels"] = np.array(self.names)[arrays["labels"]]
        return arrays


def apply(adapter: Adapter | Rival, z: Tensor, kinds: tuple[Kind, ...], batch: int | None = None) -> Arrays:
    """Results of ``kinds`` for finite rows ``(n, d)``; with a ``batch`` learn from that many rows before each."""
    if batch is not None:
        parts = [apply(adapter.partial_fit(part), part, kinds) for part in z.split(batch)]
        return {kind: np.concatenate([part[kind] for part in parts]) for kind in parts[0]}
    if isinstance(adapter, Adapter) and kinds == ("embeddings",):
        return {"embeddings": adapter.transform(z).cpu().numpy()}
    arrays: Arrays = {}
    if isinstance(adapter, Adapter) and "embeddings" in kinds:
        moved, logits = adapter.adapt(z)
        arrays["embeddings"] = moved.cpu().numpy()
    else:
        logits = adapter.logits(z)
    best = logits.max(dim=1)
    arrays["labels"] = best.indices.cpu().numpy()
    if "scores" in kinds:
        arrays["scores"] = (best.values - logits.logsumexp(dim=1)).exp().cpu().numpy()
    return arrays


def usable(shard: Shard, block: Block, drop: bool) -> tuple[Block, np.ndarray, np.ndarray]:
    """A block without rows of NaN or infinity, the numbers of its rows in the shard, and those of the bad ones."""
    rows, bad = block.first + np.arange(len(block)), block.bad()
    if len(bad) and not drop:
        listed = ", ".join(map(str, rows[bad[:5]].tolist())) + (", …" if len(bad) > 5 else "")
        raise ValueError(f"{shard.path}: NaN or infinity in row {listed}; repair it, or leave it out: --drop-bad-rows")
    return block.without(bad) if len(bad) else block, np.delete(rows, bad), rows[bad]


def read_ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items; a thread makes the next one while the caller works on one: ``adapt`` is 1.2 times as fast."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


def read_mark(path: Location) -> dict[str, Any]:
    """The content of a mark; empty if there is none, or if it is damaged."""
    with suppress(FileNotFoundError, ValueError, RecursionError):
        mark = json.loads(path.read_text(encoding="utf-8"))
        return mark if isinstance(mark, dict) else {}
    return {}


def _identity(path: Location) -> object:
    """The same for all names of a file."""
    return path.key if isinstance(path, RemotePath) else Path(os.path.realpath(path))
