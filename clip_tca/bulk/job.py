"""The job of ``clip-tca adapt``: sharded embeddings in, their adapted copy out, in constant memory.

There are two passes: the first collects statistics, the second applies the map. With a ``batch`` there is one pass, in
order: every batch is predicted as soon as the statistics include it. Several processes each take a share of the rows;
the first one merges their statistics, solves, and gives the solution to all.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
import torch

from clip_tca.adapters.base import Adapter
from clip_tca.bulk.application import Application
from clip_tca.bulk.layout import Layout
from clip_tca.bulk.overlap import read_ahead, write_behind
from clip_tca.bulk.reading import CheckedBlock, checked_blocks
from clip_tca.bulk.shards import WorkUnit, share
from clip_tca.bulk.staging import FULL, Staging
from clip_tca.core.processes import Processes
from clip_tca.core.progress import Progress
from clip_tca.core.tensors import to_tensor
from clip_tca.datasets.formats.base import Result, Sink, block_rows
from clip_tca.datasets.formats.registry import ARRAYS


@dataclass
class Tally:
    """Counts of a run: rows used, rows left out by work unit, correct predictions after and before; and seconds.

    ``same`` is the row that all of the first pass were equal to; None if they differ, or there were none.
    """

    rows: int = 0
    bad: dict[int, list[int]] = field(default_factory=dict)
    right: int = 0
    right_before: int = 0
    fitting_seconds: float = 0.0
    adapting_seconds: float = 0.0
    same: np.ndarray | None = None

    def __add__(self, other: Tally) -> Tally:
        """The counts of two processes."""
        return Tally(
            self.rows + other.rows,
            {**self.bad, **other.bad},
            self.right + other.right,
            self.right_before + other.right_before,
            max(self.fitting_seconds, other.fitting_seconds),
            max(self.adapting_seconds, other.adapting_seconds),
            _same(self, other),
        )

    def look(self, z: np.ndarray) -> None:
        """Add rows ``(n, d)`` of the first pass, before they are counted."""
        if len(z) and (self.rows == 0 or self.same is not None):
            first = z[0].copy() if self.same is None else self.same
            self.same = first if bool((z == first).all()) else None

    def leave_out(self, checked: CheckedBlock) -> None:
        """Add the bad rows of a block."""
        if len(checked.bad):
            self.bad.setdefault(checked.unit.number, []).extend(checked.bad.tolist())


@dataclass
class Job:
    """Embeddings to adapt, and how.

    An adapter that was ``fitted`` before is used as it is. Any other learns in the first of two passes or, with a
    ``batch``, from that many rows at a time in one pass, and is saved in the file ``state``. ``labels`` ``(n,)``, the
    true classes, are for scoring only. ``drop_bad`` leaves out rows that hold NaN or infinity.
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
        """Raise ValueError for options that contradict each other."""
        rows = self.layout.source.rows
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
                tally = self.adapt(stage.staged()[0])
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
        all_units = self.layout.source.units()
        units = share(all_units, self.processes.rank, self.processes.size)
        fitting = Tally()
        if self.batch is None and not self.fitted:
            fitting = self._fit(units)
        elif self.batch is None and self.drop_bad:  # how many rows are left has to be known before the first is written
            fitting = self._sum(lambda: self._scan(units, lambda _checked: None))
        tally = self._sum(lambda: self.adapt_units(units, lambda unit: self._sink(out, unit, all_units, fitting.bad)))
        tally.fitting_seconds = fitting.fitting_seconds
        return tally

    def _fit(self, units: list[WorkUnit]) -> Tally:
        adapter, processes = self.adapter, self.processes
        began = time.perf_counter()
        dtype = torch.float64 if self.layout.source.dtype == np.float64 else torch.float32
        adapter.begin(self.device, dtype, units[0].first if units else 0)
        tally = self._sum(lambda: self._scan(units, self._learn))
        processes.together(lambda: _check_rows(tally, 2))
        processes.together(lambda: _check_variance(tally))
        others = processes.gather(adapter, self.device)[1:]
        if processes.first:
            for other in others:
                adapter.absorb(other)
        solution = processes.together(lambda: adapter.solve() if processes.first else {})
        adapter.use(processes.broadcast(solution, self.device))
        if processes.first:
            adapter.warn()
        processes.together(self._save)
        tally.fitting_seconds = time.perf_counter() - began
        return tally

    def _save(self) -> None:
        if self.state is not None and self.processes.first:
            self.adapter.save(self.state)

    def _learn(self, checked: CheckedBlock) -> None:
        if checked.last:
            self.adapter.end_segment(checked.unit.number)
            return
        if checked.block.first == checked.unit.start:
            self.adapter.begin_segment(checked.unit.first)
        if len(checked.block):
            self.adapter.partial_fit(to_tensor(checked.block.z).to(self.device))

    def _scan(self, units: list[WorkUnit], use: Callable[[CheckedBlock], None]) -> Tally:
        tally = Tally()
        with self._bar(units, "fitting") as bar:
            for checked in read_ahead(checked_blocks(self.layout.source, units, self.drop_bad)):
                tally.leave_out(checked)
                tally.look(checked.block.z)
                tally.rows += len(checked.block)
                use(checked)
                bar.update(checked.read)
        return tally

    def adapt_units(self, units: list[WorkUnit], sink_of: Callable[[WorkUnit], Sink]) -> Tally:
        """Read, adapt and write, all at the same time, shard after shard."""
        apply = Application(self.adapter, self.layout.kinds, self.device, self.labels is not None, self.batch)
        tally, began = Tally(), time.perf_counter()
        blocks = read_ahead(checked_blocks(self.layout.source, units, self.drop_bad, self._rows()))
        with write_behind() as call, self._bar(units, "adapting") as bar:
            for _, group in groupby(blocks, key=lambda checked: checked.unit.shard):
                sink = None
                for checked in group:
                    sink = sink or sink_of(checked.unit)
                    tally.leave_out(checked)
                    if len(checked.block):
                        result = apply(checked.block)
                        call(sink.write, result)
                        self._score(checked, result, tally)
                    bar.update(checked.read)
                if sink is not None:
                    call(sink.close)
        if self.batch:
            _check_rows(tally, 1)
            self._save()
        tally.adapting_seconds = time.perf_counter() - began
        return tally

    def _score(self, checked: CheckedBlock, result: Result, tally: Tally) -> None:
        tally.rows += len(result)
        if self.labels is not None and result.before is not None:
            labels = checked.labels(self.labels)
            tally.right += int(np.sum(result.arrays["labels"] == labels))
            tally.right_before += int(np.sum(result.before == labels))

    def _rows(self) -> int:
        """Rows of a block: whole batches; of a stream one, so that its answer does not wait for the next."""
        rows = block_rows(self.layout.source.dim)
        if not self.batch:
            return rows
        return self.batch * (1 if self.layout.source.rows is None else max(rows // self.batch, 1))

    def _sink(self, out: Path, unit: WorkUnit, units: list[WorkUnit], bad: dict[int, list[int]]) -> Sink:
        shard = self.layout.source.shards[unit.shard]
        if self.batch or shard.rows is None:
            return self.layout.sink(out, shard)
        dropped = {other.start: len(bad.get(other.number, ())) for other in units if other.shard == unit.shard}
        before = sum(count for start, count in dropped.items() if start < unit.start)
        return self.layout.sink(out, shard, unit.start - before, shard.rows - sum(dropped.values()))

    def _sum(self, work: Callable[[], Tally]) -> Tally:
        """Count in every process; all of them get the sum."""
        return sum(self.processes.all_gather(self.processes.together(work)), Tally())

    def _bar(self, units: list[WorkUnit], title: str) -> Progress:
        total = sum(unit.stop - unit.start for unit in units) or None
        return Progress(total, title, "row", self.progress and self.processes.first)

    def _check_classes(self) -> None:
        """A pseudo-source has rows for every class: refuse more classes than fit into half of the memory."""
        classifier, k = self.adapter.classifier, getattr(self.adapter, "k", "auto")
        needed = classifier.n_classes * classifier.dim * 4 * (40 if k == "auto" else int(k) + 20)
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else needed
        if needed > memory // 2 and getattr(self.adapter, "shares", "") != "global":
            raise ValueError(
                f"text: {classifier.n_classes} classes need about {needed / 1e9:.0f} of the {memory / 1e9:.0f} GB of "
                "memory; name fewer classes, or use a smaller --k"
            )

    def _check_space(self, folder: Path) -> None:
        source = self.layout.source
        if source.rows is None or source.shards[0].path.suffix.lower() not in ARRAYS:  # tables are compressed
            return
        needed, free = self.layout.row_bytes() * source.rows, shutil.disk_usage(folder).free
        if needed > free:
            raise ValueError(
                f"output: {needed / 1e6:,.1f} MB are needed and {free / 1e6:,.1f} are free in {folder}; make room"
            )

    def _full(self, error: OSError, target: Path) -> ValueError:
        state = "nothing was kept"
        if self.state is not None and self.state.is_file():
            state = f"the fitted state is kept in {self.state}: go on with --load-state"
        return ValueError(f"output: {target} can't be written ({error.strerror}); nothing is left there, {state}")


def _same(one: Tally, other: Tally) -> np.ndarray | None:
    """The row that all rows of both are equal to, if there is one."""
    if not (one.rows and other.rows):
        return other.same if other.rows else one.same
    equal = one.same is not None and other.same is not None and np.array_equal(one.same, other.same)
    return one.same if equal else None


def _check_variance(tally: Tally) -> None:
    if tally.same is not None:
        raise ValueError(
            f"embeddings: all {tally.rows} rows are the same, and nothing can be learned from them; "
            "check how they were made"
        )


def _check_rows(tally: Tally, least: int) -> None:
    if tally.rows < least:
        raise ValueError(
            f"embeddings: {tally.rows} {'row' if tally.rows == 1 else 'rows'} that can be used; "
            f"at least {least} {'is' if least == 1 else 'are'} needed"
        )
