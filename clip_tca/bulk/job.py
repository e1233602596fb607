"""The job of ``clip-tca adapt``: sharded embeddings in, their adapted copy out, in constant memory.

There are two passes: the first collects statistics, the second applies the map. With a ``batch`` there is one pass, in
order: every batch is predicted as soon as the statistics include it. Several processes each take a share of the rows;
the first one merges their statistics, solves, and gives the solution to all. Tasks are processes that know nothing of
each other: each saves its statistics, or takes a solution and adapts its share of the shards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clip_tca.adapters.base import Adapter
from clip_tca.adapters.partial import save_partial
from clip_tca.bulk.application import Application
from clip_tca.bulk.fingerprint import input_fingerprint, run_fingerprint
from clip_tca.bulk.layout import Layout
from clip_tca.bulk.limits import check_classes, check_space
from clip_tca.bulk.overlap import read_ahead, write_behind
from clip_tca.bulk.reading import CheckedBlock, checked_blocks
from clip_tca.bulk.shards import WorkUnit, share
from clip_tca.bulk.shared_output import SharedOutput
from clip_tca.bulk.staging import FULL, Staging
from clip_tca.bulk.tally import Tally
from clip_tca.core.processes import Processes
from clip_tca.core.progress import Progress
from clip_tca.core.remote import Location
from clip_tca.core.tensors import to_tensor
from clip_tca.datasets.formats.base import Result, Sink, block_rows


@dataclass
class Job:
    """Embeddings to adapt, and how.

    An adapter that was ``fitted`` before is used as it is. Any other learns in the first of two passes or, with a
    ``batch``, from that many rows at a time in one pass, and is saved in the file ``state``. ``labels`` ``(n,)``, the
    true classes, are for scoring only. ``drop_bad`` leaves out rows that hold NaN or infinity. ``task`` ``(i, n)`` is
    the i-th of n tasks that share the work without knowing of each other.
    """

    layout: Layout
    adapter: Adapter
    device: torch.device
    fitted: bool = False
    batch: int | None = None
    drop_bad: bool = False
    labels: np.ndarray | None = None
    state: Location | None = None
    progress: bool = False
    task: tuple[int, int] | None = None
    processes: Processes = field(default_factory=Processes)
    _whole_shards = False
    """Whether no shard is cut, because its output can only be written whole."""

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
        if self.task and (self.batch or self.processes.size > 1):
            raise ValueError("task: a task is one process that takes rows in any order; without --online and torchrun")
        if self.task and self.layout.single:
            raise ValueError("task: tasks do not share one output file; name a folder")
        if self.fitted and self.state is not None:
            raise ValueError(
                "save_state: a loaded state is used as it is, and there is nothing new to save; leave it out"
            )
        self.adapter.check_options()
        check_classes(self.adapter)

    def run(self, target: Location, overwrite: bool, record: Callable[[Tally], str]) -> Tally:
        """Write ``target`` and its record; the counts of all processes."""
        together, first = self.processes.together, self.processes.first
        output = together(lambda: self._output(target, overwrite))
        try:
            with ExitStack() as stack:
                together(lambda: stack.enter_context(output) if first else None)  # the first has the lock,
                if not first:  # or nobody goes in
                    stack.enter_context(output)
                tally = self.adapt(output)
                if first:
                    output.write_record(record(tally))
                    output.commit()
        except OSError as error:
            if error.errno in FULL:
                raise self._full(error, output) from error
            raise
        return tally

    def _output(self, target: Location, overwrite: bool) -> Staging | SharedOutput:
        """Where the output is written: at once if it can be, else shard by shard."""
        source = self.layout.source
        shards = source.shards if self.task is None else [source.shards[i] for i in self._shard_numbers(self._units())]
        several = len(source.shards) > 1 and not self.layout.single
        about: dict[str, Any] = {
            "single": self.layout.single,
            "overwrite": overwrite,
            "first": self.processes.first,
            "fingerprint": run_fingerprint(self) if several else None,
            "shards": self.layout.written(target, shards),
        }
        if isinstance(target, Path) and self.task is None:
            return Staging(target, **about)
        self._whole_shards = True
        return SharedOutput(target, task=self.task, **about)

    def _units(self) -> list[WorkUnit]:
        """The units of this process."""
        rank, size = (
            (self.processes.rank, self.processes.size) if self.task is None else (self.task[0] - 1, self.task[1])
        )
        return share(self.layout.source.units(), rank, size, self._whole_shards or self.task is not None)

    def _shard_numbers(self, units: list[WorkUnit]) -> list[int]:
        return sorted({unit.shard for unit in units})

    def adapt(self, output: Staging | SharedOutput) -> Tally:
        """Fit, and write everything that an earlier run has not finished."""
        units, source, processes = self._units(), self.layout.source, self.processes
        kept = {i: output.finished(source.shards[i].path.name) for i in self._shard_numbers(units)}
        beginning = {unit.shard for unit in units if unit.start == 0}  # a shard counts where its first rows are
        done = [replace(tally, kept=1) for i, tally in kept.items() if tally is not None and i in beginning]
        rest = [unit for unit in units if kept[unit.shard] is None]
        left = sum(processes.all_gather(sum(unit.stop - unit.start for unit in rest)))
        if isinstance(output, Staging):
            processes.together(lambda: check_space(self.layout, left, output.folder))
        fitting = self._first_pass(units, output)
        by_shard = {shard: list(group) for shard, group in groupby(source.units(), key=lambda unit: unit.shard)}
        own = {shard: list(group) for shard, group in groupby(units, key=lambda unit: unit.shard)}
        mine = {shard for shard in kept if own[shard] == by_shard[shard]}

        def finish(shard: int, tally: Tally, checksums: dict[Path, int]) -> None:
            if shard in mine:  # of a shard that several processes write, none knows when it is finished
                output.finish(source.shards[shard].path.name, tally, checksums)

        def sink_of(unit: WorkUnit) -> Sink:
            return self._sink(output.out, unit, by_shard[unit.shard], fitting.bad)

        tally = self._sum(lambda: sum(done, self.adapt_units(rest, sink_of, finish)))
        tally.fitting_seconds = fitting.fitting_seconds
        return tally

    def _first_pass(self, units: list[WorkUnit], output: Staging | SharedOutput) -> Tally:
        """Fit, or count the rows that are left, which has to be known before the first is written; once for a run."""
        if self.batch is not None or (self.fitted and not self.drop_bad):
            return Tally()
        progress = output.progress if self.task is None else None
        kept = None
        if progress is not None and self.processes.first:
            kept = progress.kept_fit(self.adapter.classifier, self.device)
        if (found := self.processes.broadcast(kept, self.device)) is not None:
            self.adapter = found[0] or self.adapter
            self.processes.together(self._save)
            return found[1]
        tally = self._sum(lambda: self._scan(units, lambda _checked: None)) if self.fitted else self._fit(units)
        if progress is not None and self.processes.first:
            progress.keep_fit(None if self.fitted else self.adapter, tally)
        return tally

    def fit_only(self) -> Tally:
        """Fit and save the state; of a task what it has observed, to be merged with that of the others."""
        if self.task is None:
            return self._fit(self._units())
        units = share(self.layout.source.units(), self.task[0] - 1, self.task[1])
        tally = self._observe(units)
        if self.state is not None:
            save_partial(self.adapter, self.state, self.task, input_fingerprint(self))
        return tally

    def _fit(self, units: list[WorkUnit]) -> Tally:
        adapter, processes = self.adapter, self.processes
        began = time.perf_counter()
        tally = self._observe(units)
        processes.together(lambda: tally.check_rows(2))
        processes.together(tally.check_variance)
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

    def _observe(self, units: list[WorkUnit]) -> Tally:
        dtype = torch.float64 if self.layout.source.dtype == np.float64 else torch.float32
        self.adapter.begin(self.device, dtype, units[0].first if units else 0)
        return self._sum(lambda: self._scan(units, self._learn))

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

    def adapt_units(
        self,
        units: list[WorkUnit],
        sink_of: Callable[[WorkUnit], Sink],
        finish: Callable[[int, Tally, dict[Path, int]], None] = lambda _shard, _tally, _checksums: None,
    ) -> Tally:
        """Read, adapt and write, all at the same time, shard after shard; ``finish`` is called after each."""
        apply = Application(self.adapter, self.layout.kinds, self.device, self.labels is not None, self.batch)
        total, began = Tally(), time.perf_counter()
        blocks = read_ahead(checked_blocks(self.layout.source, units, self.drop_bad, self._rows()))
        with write_behind() as call, self._bar(units, "adapting") as bar:
            for shard, group in groupby(blocks, key=lambda checked: checked.unit.shard):
                sink, tally = None, Tally()
                for checked in group:
                    sink = sink or sink_of(checked.unit)
                    tally.leave_out(checked)
                    if len(checked.block):
                        result = apply(checked.block)
                        call(sink.write, result)
                        self._score(checked, result, tally)
                    bar.update(checked.read)
                if sink is not None:
                    call(lambda sink=sink, shard=shard, tally=tally: finish(shard, tally, sink.close()))
                total += tally
        if self.batch:
            total.check_rows(1)
            self._save()
        total.adapting_seconds = time.perf_counter() - began
        return total

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
        dropped = {other.start: len(bad.get(other.number, ())) for other in units}
        before = sum(count for start, count in dropped.items() if start < unit.start)
        return self.layout.sink(out, shard, unit.start - before, shard.rows - sum(dropped.values()))

    def _sum(self, work: Callable[[], Tally]) -> Tally:
        """Count in every process; all of them get the sum."""
        return sum(self.processes.all_gather(self.processes.together(work)), Tally())

    def _bar(self, units: list[WorkUnit], title: str) -> Progress:
        total = sum(unit.stop - unit.start for unit in units) or None
        return Progress(total, title, "row", self.progress and self.processes.first)

    def _full(self, error: OSError, output: Staging | SharedOutput) -> ValueError:
        state = "nothing was kept"
        if self.state is not None and self.state.is_file():
            state = f"the fitted state is kept in {self.state}: go on with --load-state"
        left = "nothing is left there" if isinstance(output, Staging) else "finished shards are"
        return ValueError(f"output: {output.target} can't be written ({error.strerror}); {left}, {state}")
