"""The job of ``clip-tca adapt``: a shelf in, its adapted copy out, in constant memory.

Two passes: statistics and bank, then the map. With ``online`` there is one, in order: every batch is predicted when the
statistics have seen it and those before it. Several processes each take a part of the shelf; the first one merges what
they have seen, solves, and gives the solution to all.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from clip_tca.adapters.base import Adapter
from clip_tca.bulk.application import Application
from clip_tca.bulk.block import Result, block_rows
from clip_tca.bulk.layout import Layout
from clip_tca.bulk.overlap import Behind, ahead
from clip_tca.bulk.reading import Piece, pieces
from clip_tca.bulk.shards import Unit, share
from clip_tca.bulk.sinks import Sink
from clip_tca.bulk.staging import FULL, Staging
from clip_tca.core.processes import Processes
from clip_tca.core.tensors import to_tensor


@dataclass
class Tally:
    """What has been counted: rows used, rows left out (by unit), right predictions after and before; and seconds."""

    rows: int = 0
    bad: dict[int, list[int]] = field(default_factory=dict)
    right: int = 0
    right_before: int = 0
    fitting_seconds: float = 0.0
    adapting_seconds: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        """Of two processes."""
        return Tally(
            self.rows + other.rows,
            {**self.bad, **other.bad},
            self.right + other.right,
            self.right_before + other.right_before,
            max(self.fitting_seconds, other.fitting_seconds),
            max(self.adapting_seconds, other.adapting_seconds),
        )

    def leave_out(self, piece: Piece) -> None:
        """Note the bad rows of a piece."""
        if len(piece.bad):
            self.bad.setdefault(piece.unit.number, []).extend(piece.bad.tolist())


@dataclass
class Job:
    """What to adapt, and how.

    Attributes:
        layout: What is read, and what is written of it.
        adapter: New, or fitted before (``fitted``): then nothing is learned.
        device: Where to compute.
        fitted: Whether the adapter is used as it is.
        batch: Rows to learn from and predict at a time, in one pass; None makes two passes.
        drop_bad: Go on without rows that hold NaN or infinity.
        labels: True classes ``(n,)``, for scoring only.
        state: File to save the fitted adapter in.
        progress: Show a bar on stderr, if that is a terminal.
        processes: Those of this run.
    """

    layout: Layout
    adapter: Adapter
    device: torch.device
    fitted: bool = False
    batch: int | None = None
    drop_bad: bool = False
    labels: np.ndarray | None = None
    state: Path | None = None
    progress: bool = False
    processes: Processes = field(default_factory=Processes)

    def check(self) -> None:
        """Raise ValueError for what can't go together."""
        rows = self.layout.shelf.rows
        if self.labels is not None and rows is None:
            raise ValueError("labels: a stream says how many rows it has only at its end; score the output instead")
        if self.labels is not None and len(self.labels) != rows:
            raise ValueError(f"labels: {len(self.labels)}, but there are {rows} rows; one label for each is needed")
        if self.batch and self.processes.size > 1:
            raise ValueError("online: rows are taken in order, one after another; start one process")
        if self.batch and self.fitted:
            raise ValueError("online: learns from every batch, and a loaded state is used as it is; choose one of them")
        if self.fitted and self.state is not None:
            raise ValueError(
                "save_state: a loaded state is used as it is, and there is nothing new to save; leave it out"
            )
        self.adapter.check_options()
        self._check_classes()

    def run(self, target: Path, overwrite: bool, record: Callable[[Tally], str]) -> Tally:
        """Write ``target`` and its record; the counts of all processes."""
        together, first = self.processes.together, self.processes.first
        stage = together(lambda: Staging(target, single=self.layout.single, overwrite=overwrite, first=first))
        try:
            with ExitStack() as stack:
                together(lambda: stack.enter_context(stage) if first else None)  # the first has the lock,
                if not first:  # or nobody goes in
                    stack.enter_context(stage)
                together(lambda: self._check_space(stage.folder.parent))
                tally = self.adapt(stage.inside()[0])
                if first:
                    stage.record.write_text(record(tally), encoding="utf-8")
                    stage.commit()
        except OSError as error:
            if error.errno in FULL:
                raise self._full(error, target) from error
            raise
        return tally

    def adapt(self, out: Path) -> Tally:
        """Fit, and write everything below ``out`` (a folder or a file)."""
        units = self.layout.shelf.units()
        mine = share(units, self.processes.rank, self.processes.size)
        found = Tally()
        if self.batch is None and not self.fitted:
            found = self._fit(mine)
        elif self.batch is None and self.drop_bad:  # how many rows are left has to be known before the first is written
            found = self._all(lambda: self._look(mine, lambda _piece: None))
        done = self._all(lambda: self.pour(mine, lambda unit: self._sink(out, unit, units, found.bad)))
        done.fitting_seconds = found.fitting_seconds
        return done

    # -- first pass ----------------------------------------------------------------------------------------------------

    def _fit(self, mine: list[Unit]) -> Tally:
        adapter, processes = self.adapter, self.processes
        began = time.perf_counter()
        dtype = torch.float64 if self.layout.shelf.dtype == np.float64 else torch.float32
        adapter.begin(self.device, dtype, mine[0].first if mine else 0)
        found = self._all(lambda: self._look(mine, self._learn))
        processes.together(lambda: _check_rows(found, 2))
        others = processes.gather(adapter, self.device)[1:]
        if processes.first:
            for other in others:
                adapter.absorb(other)
        solution = processes.together(lambda: adapter.solve() if processes.first else {})
        adapter.use(processes.broadcast(solution, self.device))
        if processes.first:
            adapter.warn()
        processes.together(self._keep)
        found.fitting_seconds = time.perf_counter() - began
        return found

    def _keep(self) -> None:
        if self.state is not None and self.processes.first:
            self.adapter.save(self.state)

    def _learn(self, piece: Piece) -> None:
        if piece.last:
            self.adapter.end_segment(piece.unit.number)
            return
        if piece.block.first == piece.unit.start:
            self.adapter.begin_segment(piece.unit.first)
        if len(piece.block):
            self.adapter.partial_fit(to_tensor(piece.block.z).to(self.device))

    def _look(self, mine: list[Unit], see: Callable[[Piece], None]) -> Tally:
        tally = Tally()
        with self._bar(mine, "fitting") as bar:
            for piece in ahead(pieces(self.layout.shelf, mine, self.drop_bad)):
                tally.leave_out(piece)
                tally.rows += len(piece.block)
                see(piece)
                bar.update(piece.read)
        return tally

    # -- second pass, or the only one ----------------------------------------------------------------------------------

    def pour(self, mine: list[Unit], sink_of: Callable[[Unit], Sink]) -> Tally:
        """Read, adapt and write, all at the same time, shard after shard."""
        apply = Application(self.adapter, self.layout.kinds, self.device, self.labels is not None, self.batch)
        tally, began = Tally(), time.perf_counter()
        read = ahead(pieces(self.layout.shelf, mine, self.drop_bad, self._rows()))
        with Behind() as writing, self._bar(mine, "adapting") as bar:
            for _, group in groupby(read, key=lambda piece: piece.unit.shard):
                sink = None
                for piece in group:
                    sink = sink or sink_of(piece.unit)
                    tally.leave_out(piece)
                    if len(piece.block):
                        result = apply(piece.block)
                        writing.call(sink.write, result)
                        self._score(piece, result, tally)
                    bar.update(piece.read)
                if sink is not None:
                    writing.call(sink.close)
        if self.batch:
            _check_rows(tally, 1)
            self._keep()
        tally.adapting_seconds = time.perf_counter() - began
        return tally

    def _score(self, piece: Piece, result: Result, tally: Tally) -> None:
        tally.rows += len(result)
        if self.labels is not None and result.before is not None:
            truth = piece.truth(self.labels)
            tally.right += int(np.sum(result.arrays["labels"] == truth))
            tally.right_before += int(np.sum(result.before == truth))

    def _rows(self) -> int:
        """Rows of a block: whole batches; of a stream one, so that its answer need not wait for the next."""
        rows = block_rows(self.layout.shelf.dim)
        if not self.batch:
            return rows
        return self.batch * (1 if self.layout.shelf.rows is None else max(rows // self.batch, 1))

    def _sink(self, out: Path, unit: Unit, units: list[Unit], bad: dict[int, list[int]]) -> Sink:
        shard = self.layout.shelf.shards[unit.shard]
        if self.batch or shard.rows is None:
            return self.layout.sink(out, shard)
        lost = {one.start: len(bad.get(one.number, ())) for one in units if one.shard == unit.shard}
        before = sum(count for start, count in lost.items() if start < unit.start)
        return self.layout.sink(out, shard, unit.start - before, shard.rows - sum(lost.values()))

    # -- around it -----------------------------------------------------------------------------------------------------

    def _all(self, work: Callable[[], Tally]) -> Tally:
        """Count in every process; the sum, known to all."""
        return sum(self.processes.all_gather(self.processes.together(work)), Tally())

    @contextmanager
    def _bar(self, units: list[Unit], title: str) -> Iterator[tqdm[Any]]:
        total = sum(unit.stop - unit.start for unit in units) or None
        hidden = None if self.progress and self.processes.first else True
        with tqdm(total=total, desc=title, unit="row", unit_scale=True, disable=hidden, leave=False) as bar:
            yield bar

    def _check_classes(self) -> None:
        """A pseudo-source has rows for every class: refuse more classes than fit into half of the memory."""
        known, k = self.adapter.classifier, getattr(self.adapter, "k", "auto")
        needed = known.n_classes * known.dim * 4 * (40 if k == "auto" else int(k) + 20)
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else needed
        if needed > there // 2 and getattr(self.adapter, "balance", "") != "global":
            raise ValueError(
                f"text: {known.n_classes} classes need about {needed / 1e9:.0f} of the {there / 1e9:.0f} GB of memory; "
                "name fewer classes, or use a smaller --k"
            )

    def _check_space(self, folder: Path) -> None:
        shelf = self.layout.shelf
        if shelf.rows is None or shelf.shards[0].path.suffix.lower() not in (".npy", ".npz", ".safetensors"):
            return
        needed, free = self.layout.row_bytes() * shelf.rows, shutil.disk_usage(folder).free
        if needed > free:
            raise ValueError(
                f"output: {needed / 1e6:,.1f} MB are needed and {free / 1e6:,.1f} are free in {folder}; make room"
            )

    def _full(self, error: OSError, target: Path) -> ValueError:
        kept = "nothing was kept"
        if self.state is not None and self.state.is_file():
            kept = f"the fitted state is kept in {self.state}: go on with --load-state"
        return ValueError(f"output: {target} can't be written ({error.strerror}); nothing is left there, {kept}")


def _check_rows(tally: Tally, least: int) -> None:
    if tally.rows < least:
        raise ValueError(
            f"embeddings: {tally.rows} {'row' if tally.rows == 1 else 'rows'} that can be used; "
            f"at least {least} {'is' if least == 1 else 'are'} needed"
        )
