"""A whole run of ``clip-tca adapt``: fit on rows of all shards, adapt every shard, here or on Ray, write the record.

The fit is kept in the output folder, and every finished shard has a mark: a run that was killed goes on.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clip_tca.adapters.base import Adapter
from clip_tca.adapters.state import load
from clip_tca.bulk.classifiers import GivenClassifier
from clip_tca.bulk.one_shard import (
    MARKS,
    RECORD,
    Output,
    ShardResult,
    adapter_key,
    label_names,
    output_exists,
    read_ahead,
    read_mark,
    usable,
)
from clip_tca.bulk.rivals import Rival
from clip_tca.core.files import scratch, write_text
from clip_tca.core.machine import commit, connect, peak_memory, ray_map, versions
from clip_tca.core.progress import Progress
from clip_tca.core.remote import Location, RemotePath
from clip_tca.core.tensors import to_tensor
from clip_tca.core.version import __version__
from clip_tca.data.formats import Kind
from clip_tca.data.shards import ROWS, Block, Shard, ShardedEmbeddings, block_rows

# Rows of a run for the fit: few, so that many classes of sorted rows are seen; more if every run is a request.
NEAR, FAR = 64, 2048


@dataclass
class Run:
    """Embeddings to adapt, and how. An adapter of a saved state is used as it is, any other is fitted first."""

    source: ShardedEmbeddings
    adapter: Adapter | Rival  # a rival writes no embeddings and needs all rows at once, or a batch
    given: GivenClassifier
    method: str
    device: torch.device
    target: Location | None = None  # None: there is only a fit
    kinds: tuple[Kind, ...] = ("embeddings",)
    dtype: str | None = None
    names: bool = False
    labels: np.ndarray | None = None  # true classes (n,) of all rows, for scoring only
    drop_bad_rows: bool = False
    overwrite: bool = False
    fit_rows: int | None = 200_000  # at most; None: all
    batch: int | None = None  # learn from that many rows at a time, in order
    ray: str | None = None  # address of a cluster whose workers adapt the shards, or "" for this machine
    gpus: bool = True  # of the cluster
    shown: bool = False

    @cached_property
    def outputs(self) -> list[Output]:
        if self.target is None:
            return []
        shards, names = self.source.shards, label_names(self.adapter, self.kinds) if self.names else None
        ends = list(accumulate(shard.rows for shard in shards))
        parts = [None] * len(shards) if self.labels is None else np.split(self.labels, ends[:-1])
        how = (self.target, self.kinds, self.dtype, names, self.drop_bad_rows)
        return [Output(shard, *how, part) for shard, part in zip(shards, parts, strict=True)]

    def check(self) -> None:
        shards, rows = self.source.shards, self.source.rows
        if self.labels is not None and len(self.labels) != rows:
            raise ValueError(f"labels: {len(self.labels)}, but there are {rows} rows; one label for each is needed")
        if len({shard.path.name for shard in shards}) < len(shards):
            raise ValueError("embeddings: two shards have the same file name, and so would their outputs; rename one")
        if isinstance(self.adapter, Rival):
            self._check_rival()
        for output in self.outputs:
            if output.single and not self.source.single:
                raise ValueError(f"output: {self.target} is one file, and there are shards to write; name a folder")
            output.check()
            if not self.overwrite and not output.mark.exists():
                output.check_free()

    def _check_rival(self) -> None:
        rows = self.source.rows
        if "embeddings" in self.kinds:
            raise ValueError(f"write: {self.method} predicts and moves no embeddings; add --write labels, or scores")
        if self.target is None or self.ray is not None:
            raise ValueError(f"method: {self.method} keeps no state; leave out --ray and --fit-only")
        if not self.batch and self.fit_rows is not None and rows > self.fit_rows:
            raise ValueError(
                f"embeddings: {rows} rows, and {self.method} holds all of them in memory; allow that by "
                "--fit-rows all, or go through them in order by --online"
            )

    def fit(self) -> None:
        """Fit, or take the fit that an earlier run has left in the output folder."""
        output = next((output for output in self.outputs if not output.single), None)
        if output is None or isinstance(self.adapter, Rival):
            self._fit()
            return
        name, folder = f"fit-{self.key()}.safetensors", output.place / MARKS
        fits = [path for path in folder.iterdir() if path.name.startswith("fit-")] if folder.is_dir() else []
        for path in fits:
            if path.name == name:
                with suppress(ValueError):  # a damaged one is made again
                    self.adapter = load(path, self.device)
                    return
            elif not self.overwrite:
                raise output_exists(output.place)
        self._fit()
        for path in fits:
            path.unlink()
        if isinstance(folder, Path):
            folder.mkdir(parents=True, exist_ok=True)
        self.adapter.save(folder / name)

    def _fit(self) -> None:
        with closing(self._batches()) as batches:
            self.adapter.fit(batches)

    def key(self) -> str:
        shards = [[shard.path.name, shard.rows, shard.stamp()] for shard in self.source.shards]
        adapter, g = self.adapter, self.adapter.g
        how = [self.method, adapter.options(), self.fit_rows, self.batch, self.drop_bad_rows]
        content = [__version__, shards, how, g.fingerprint(), g.classes]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def _batches(self) -> Generator[Tensor, None, None]:
        """The rows to fit on, a block at a time."""
        waiting: list[np.ndarray] = []
        total = min(self.source.rows, self.fit_rows or self.source.rows)
        with Progress(total, "fitting", "row", self.shown) as bar:
            for shard, block in read_ahead(sampled(self.source.shards, self.fit_rows)):
                waiting.append(usable(shard, block, self.drop_bad_rows)[0].z)
                bar.update(len(block))
                if sum(map(len, waiting)) >= ROWS:
                    yield to_tensor(np.concatenate(waiting)).to(self.device)
                    waiting = []
            if sum(map(len, waiting)):
                yield to_tensor(np.concatenate(waiting)).to(self.device)

    def adapt(self) -> list[ShardResult]:
        """Fit if need be, adapt all shards that are not finished, and write the record; what was counted in each."""
        began = time.perf_counter()
        if self.given.kind != "state" and not self.batch:
            self.fit()
        fitted = time.perf_counter()
        adapter = self.adapter
        if self.ray is not None and isinstance(adapter, Adapter):
            results = self._adapt_on_ray(adapter)
        else:
            results = self._adapt_here()
        if self.batch and isinstance(adapter, Adapter):
            adapter.solve()  # the state of a stream that has ended is what one fit gives
        if self.outputs:
            took = {"fitting_seconds": fitted - began, "adapting_seconds": time.perf_counter() - fitted}
            cost = {"device": self.device.type, **took, "peak_memory_bytes": peak_memory(self.device)}
            record, output = self.describe(results) | {"cost": cost}, self.outputs[0]
            path = output.mark if output.single else output.place / RECORD
            record |= read_mark(path) if output.single else {}  # the mark of a single file is part of its record
            write_text(path, json.dumps(record, indent=1) + "\n")
        return results

    def _adapt_here(self) -> list[ShardResult]:
        adapter = self.adapter
        key = self.key() if self.batch or isinstance(adapter, Rival) else adapter_key(adapter)
        results = []
        with Progress(self.source.rows, "adapting", "row", self.shown) as bar:
            for output in self.outputs:
                results.append(output.adapt(self.adapter, key, self.overwrite, bar.update, self.batch))
                if results[-1].skipped:
                    bar.update(output.shard.rows)
                    if isinstance(adapter, Rival):
                        adapter.skip(results[-1].rows)
        return results

    def _adapt_on_ray(self, adapter: Adapter) -> list[ShardResult]:
        """Every shard is a task; one whose worker dies, or whose files can't be reached, is tried again."""
        with scratch() as folder:
            adapter.save(folder / "state.safetensors")
            content = (folder / "state.safetensors").read_bytes()
        results: list[ShardResult] = []
        with connect(self.ray or None) as ray, Progress(len(self.outputs), "adapting", "shard", self.shown) as bar:
            gpus = self.gpus and ray.cluster_resources().get("GPU", 0) > 0
            how = (ray.put(content), "cuda" if gpus else "cpu", self.overwrite)
            for result in ray_map(adapt_in_task, self.outputs, *how, gpu=gpus):
                results.append(result)
                bar.update()
        return results

    def describe(self, results: list[ShardResult]) -> dict[str, Any]:
        rows, adapter, shards = sum(result.rows for result in results), self.adapter, self.source.shards
        loaded = "loaded" if self.given.kind == "state" else "transductive"
        scored: dict[str, float] = {}
        if self.labels is not None and rows:
            for name, field in (("", "correct"), ("_zero_shot", "correct_before")):
                right = sum(getattr(result, field) for result in results)
                scored |= {f"correct{name}": right, f"accuracy{name}": 100 * right / rows}
        return {
            "schema_version": 1,
            "command": "adapt",
            "input": {
                "shards": [{"name": shard.path.name, "rows": shard.rows} for shard in shards],
                "dimensions": self.source.dim,
                "dtype": str(self.source.dtype),
            },
            self.given.kind: self.given.about,
            "classes": adapter.g.classes,
            "method": {"name": self.method, "parameters": adapter.options()},
            "setting": "online" if self.batch else loaded,
            "batch_size": self.batch,
            "fitted_rows": adapter.n_seen_,
            "rows": rows,
            "left_out": {
                shard.path.name: {"rows": result.left_out, "first": result.first_left_out}
                for shard, result in zip(shards, results, strict=True)
                if result.left_out
            },
            "written": {kind: str(dtype) for kind, dtype in self.outputs[0].dtypes.items()},
            "scored": scored or None,
            "versions": versions(),
            "commit": commit(),
        }


def adapt_in_task(output: Output, state: bytes, device: str, overwrite: bool) -> ShardResult:
    """Adapt a shard in a worker process, by the adapter of a saved ``state``."""
    with scratch() as folder:
        (folder / "state.safetensors").write_bytes(state)
        adapter = load(folder / "state.safetensors", device)
    return output.adapt(adapter, adapter_key(adapter), overwrite)


def sampled(shards: Sequence[Shard], limit: int | None) -> Iterator[tuple[Shard, Block]]:
    """All rows; if there are more than ``limit``, about as many, in short runs that are spread evenly over all shards.

    Of arrays only these runs are read. The rows of tables can't be read alone: a table is read whole.
    """
    total, start = sum(shard.rows for shard in shards), 0
    for shard in shards:
        if limit is None or total <= limit:
            blocks = shard.blocks(block_rows(shard.dim or 1))
        else:
            far = isinstance(shard.path, RemotePath) and shard.path.suffix.lower() in (".npy", ".safetensors")
            run = FAR if far else NEAR
            blocks = shard.runs(_multiples(total * run / limit, start, shard.rows), run)
        yield from ((shard, block) for block in blocks)
        start += shard.rows


def _multiples(step: float, start: int, count: int) -> list[int]:
    """The multiples of ``step`` among ``count`` numbers from ``start`` on, counted from there."""
    numbers = range(math.ceil(start / step), math.ceil((start + count) / step))
    return [min(max(int(number * step) - start, 0), count - 1) for number in numbers]
