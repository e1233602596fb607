"""The job of ``clip-tca adapt``: sharded embeddings in, their adapted copy out, in constant memory, in one process.

There are two passes: the first fits the adapter, the second applies it. With a ``batch`` there is one pass, in order:
every batch is predicted as soon as the adapter has learned from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clip_tca.adapters.base import Adapter
from clip_tca.bulk.application import Application
from clip_tca.bulk.fingerprint import run_fingerprint
from clip_tca.bulk.layout import Layout
from clip_tca.bulk.limits import check_classes, check_space
from clip_tca.bulk.overlap import read_ahead, write_behind
from clip_tca.bulk.reading import CheckedBlock, checked_blocks
from clip_tca.bulk.staging import FULL, Staging
from clip_tca.bulk.store_output import StoreOutput
from clip_tca.bulk.tally import Tally
from clip_tca.core.progress import Progress
from clip_tca.core.remote import Location
from clip_tca.core.tensors import to_tensor
from clip_tca.datasets.formats.base import Result, Sink, block_rows


@dataclass
class Job:
    """Embeddings to adapt, and how.

    An adapter that was ``loaded`` (the sha256 of the file of its state) is used as it is. Any other learns in the first
    of two passes or, with a ``batch``, from that many rows at a time in one pass, and is saved in the file ``state``.
    ``labels`` ``(n,)``, the true classes, are for scoring only. ``drop_bad`` leaves out rows that hold NaN or infinity.
    """

    layout: Layout
    adapter: Adapter
    device: torch.device
    loaded: str | None = None
    batch: int | None = None
    drop_bad: bool = False
    labels: np.ndarray | None = None
    state: Location | None = None
    progress: bool = False

    def check(self) -> None:
        """Raise ValueError for options that contradict each other."""
        rows = self.layout.source.rows
        if self.labels is not None and rows is None:
            raise ValueError("labels: a stream says how many rows it has only at its end; score the output instead")
        if self.labels is not None and len(self.labels) != rows:
            raise ValueError(f"labels: {len(self.labels)}, but there are {rows} rows; one label for each is needed")
        if self.batch and self.loaded:
            raise ValueError("online: learns from every batch, and a loaded state is used as it is; choose one of them")
        if self.loaded and self.state is not None:
            raise ValueError(
                "save_state: a loaded state is used as it is, and there is nothing new to save; leave it out"
            )
        self.adapter.check_options()
        check_classes(self.adapter)

    def run(self, target: Location, overwrite: bool, record: Callable[[Tally], str]) -> Tally:
        """Write ``target`` and its record; what was counted."""
        output = self._output(target, overwrite)
        try:
            with output:
                tally = self.adapt(output)
                output.write_record(record(tally))
                output.commit()
        except OSError as error:
            if error.errno in FULL:
                raise self._full(error, output) from error
            raise
        return tally

    def _output(self, target: Location, overwrite: bool) -> Staging | StoreOutput:
        """Where the output is written: on a disk, where it appears at once, or in a store, shard by shard."""
        source, single = self.layout.source, self.layout.single
        fingerprint = run_fingerprint(self) if len(source.shards) > 1 and not single else None
        shards = self.layout.written(target, source.shards)
        if isinstance(target, Path):
            return Staging(target, single=single, overwrite=overwrite, fingerprint=fingerprint, shards=shards)
        return StoreOutput(target, single=single, overwrite=overwrite, fingerprint=fingerprint, shards=shards)

    def adapt(self, output: Staging | StoreOutput) -> Tally:
        """Fit, and write everything that an earlier run has not finished."""
        shards = self.layout.source.shards
        earlier = {number: output.finished(shard.path.name) for number, shard in enumerate(shards)}
        rest = [number for number, tally in earlier.items() if tally is None]
        if isinstance(output, Staging):
            check_space(self.layout, sum(shards[number].rows or 0 for number in rest), output.folder)
        first = self._first_pass(output)

        def sink_of(number: int) -> Sink:
            rows = shards[number].rows
            known = None if rows is None or self.batch else rows - len(first.bad.get(number, ()))
            return self.layout.sink(output.out, shards[number], known)

        def finish(number: int, tally: Tally, checksums: dict[Path, int]) -> None:
            output.finish(shards[number].path.name, tally, checksums)

        total = self.adapt_shards(rest, sink_of, finish)
        total = sum((replace(tally, kept=1) for tally in earlier.values() if tally is not None), total)
        total.fitting_seconds = first.fitting_seconds
        return total

    def _first_pass(self, output: Staging | StoreOutput) -> Tally:
        """Fit, or count the rows that are left, which has to be known before the first is written; once for a run."""
        if self.batch is not None or (self.loaded and not self.drop_bad):
            return Tally()
        if output.progress is not None and (kept := output.progress.kept_fit(self.device)) is not None:
            self.adapter = self.adapter if kept[0] is None else kept[0]
            self._save()
            return kept[1]
        tally = self._count() if self.loaded else self.fit()
        if output.progress is not None:
            output.progress.keep_fit(None if self.loaded else self.adapter, tally)
        return tally

    def fit(self) -> Tally:
        """Fit, and save the state."""
        tally, began = Tally(), time.perf_counter()
        with closing(self._batches(tally)) as batches:
            self.adapter.fit(batches)
        self._save()
        tally.fitting_seconds = time.perf_counter() - began
        return tally

    def _batches(self, tally: Tally) -> Generator[Tensor, None, None]:
        """All rows, on the device; too few rows, or rows that are all the same, are a ValueError at their end."""
        for checked in self._scan(tally):
            if len(checked.block):
                yield to_tensor(checked.block.z).to(self.device)
        tally.check_rows(2)
        tally.check_variance()

    def _count(self) -> Tally:
        tally = Tally()
        for _ in self._scan(tally):
            pass
        return tally

    def _scan(self, tally: Tally) -> Iterator[CheckedBlock]:
        """All blocks of the first pass, counted."""
        shards = range(len(self.layout.source.shards))
        with self._bar(shards, "fitting") as bar:
            for checked in read_ahead(checked_blocks(self.layout.source, shards, self.drop_bad)):
                tally.leave_out(checked)
                tally.look(checked.block.z)
                tally.rows += len(checked.block)
                yield checked
                bar.update(checked.read)

    def _save(self) -> None:
        if self.state is not None:
            self.adapter.save(self.state)

    def adapt_shards(
        self,
        shards: Sequence[int],
        sink_of: Callable[[int], Sink],
        finish: Callable[[int, Tally, dict[Path, int]], None] = lambda _shard, _tally, _checksums: None,
    ) -> Tally:
        """Read, adapt and write, all at the same time, shard after shard; ``finish`` is called after each."""
        apply = Application(self.adapter, self.layout.kinds, self.device, self.labels is not None, self.batch)
        total, began = Tally(), time.perf_counter()
        blocks = read_ahead(checked_blocks(self.layout.source, shards, self.drop_bad, self._rows()))
        with write_behind() as call, self._bar(shards, "adapting") as bar:
            for shard, group in groupby(blocks, key=lambda checked: checked.shard):
                sink, tally = sink_of(shard), Tally()
                for checked in group:
                    tally.leave_out(checked)
                    if len(checked.block):
                        result = apply(checked.block)
                        call(sink.write, result)
                        self._score(checked, result, tally)
                    bar.update(checked.read)
                call(lambda sink=sink, shard=shard, tally=tally: finish(shard, tally, sink.close()))
                total += tally
        if self.batch:
            total.check_rows(1)
            self.adapter.solve()  # the state of a stream that has ended is what one fit gives
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

    def _bar(self, shards: Sequence[int], title: str) -> Progress:
        total = sum(self.layout.source.shards[number].rows or 0 for number in shards) or None
        return Progress(total, title, "row", self.progress)

    def _full(self, error: OSError, output: Staging | StoreOutput) -> ValueError:
        state = "nothing was kept"
        if self.state is not None and self.state.is_file():
            state = f"the fitted state is kept in {self.state}: go on with --load-state"
        left = "nothing is left there" if isinstance(output, Staging) else "finished shards are"
        return ValueError(f"output: {output.target} can't be written ({error.strerror}); {left}, {state}")
