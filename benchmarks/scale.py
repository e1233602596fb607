"""Scale on paper: what ``clip-tca adapt`` needs for up to a billion embeddings, computed from rates measured here.

    python -m benchmarks --only scale

One process adapts two small sets (float16, d = 512, 100 classes). It computes on one thread; two others read and write.
Each row adds the same time, and the rest, such as the fit on 200,000 rows, is a fixed price: ``seconds(n) = fixed +
rate · n``; or the time that the disk takes to read and write the files, if that is longer. Two other sizes check it.
Then it is written out for sizes that do not run here, with a disk as fast as this one with files that the system has in
memory, which is an upper bound. Files hold a million rows.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.adapt import SHARD, Run, adapted, copying, make
from benchmarks.measure import PRICE, Row
from clip_tca.bulk.run import RECORD

DIM = 512
READ, WRITTEN = 2 * DIM, 2 * DIM + 8
"""Bytes of a row: float16, and a label beside it."""

FILE = 1_000_000
"""Rows of a file."""

SIZES = (1_000_000, 100_000_000, 1_000_000_000)


@dataclass(frozen=True)
class Line:
    """A quantity that grows with the rows: ``fixed + rate · n``."""

    fixed: float
    rate: float

    @classmethod
    def through(cls, small: tuple[int, float], large: tuple[int, float]) -> Line:
        """The line through two measurements."""
        rate = max((large[1] - small[1]) / (large[0] - small[0]), 0.0)
        return cls(small[1] - rate * small[0], rate)


@dataclass(frozen=True)
class Model:
    """What was measured, and what follows from it.

    Attributes:
        passes: Seconds of a run, by rows.
        processor: Its processor seconds, by rows.
        peak: Its most resident bytes.
        record: Bytes of the record, by files.
        disk: Bytes a second, read and written.
    """

    passes: Line
    processor: Line
    peak: float
    record: Line
    disk: float

    def by_disk(self, n: int) -> float:
        """Seconds for reading and writing everything."""
        return n * (READ + WRITTEN) / self.disk

    def by_clock(self, n: int) -> float:
        """Seconds if the disk is no limit."""
        return self.passes.fixed + self.passes.rate * n

    def seconds(self, n: int) -> float:
        """Seconds of the whole run."""
        return max(self.by_clock(n), self.passes.fixed + self.by_disk(n))

    def row(self, n: int) -> Row:
        """A line of the table: hours, and how near each limit is."""
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        labels = self.peak + n * 8
        disk = self.by_disk(n) / self.by_clock(n)
        limits = {
            "the disk's rate": disk,
            "memory": self.peak / machine,
            "memory with --labels, which are held whole": labels / machine,
        }
        first = max(limits, key=lambda name: limits[name])
        files, core_hours = -(-n // FILE), (self.processor.fixed + self.processor.rate * n) / 3600
        return Row(
            f"scale: {n:,} embeddings: hours",
            self.seconds(n) / 3600,
            "",
            {
                "core-hours": f"{core_hours:.2g}",
                f"at {PRICE} euros a core-hour (assumed)": f"{PRICE * core_hours:.2g} euros",
                "memory": f"{self.peak / 1e9:.1f} GB, with --labels {labels / 1e9:.1f}",
                "disk": f"{disk:.2f} of its rate, {n * (READ + WRITTEN) / 1e12:.3g} TB in and out",
                "files": f"{files:,}, record {(self.record.fixed + self.record.rate * files) / 1e6:.2g} MB",
                "breaks first": f"{first} ({limits[first]:.2g} of what is here)" if limits[first] > 1 else "nothing",
            },
        )


def subset(source: Path, shards: int) -> Path:
    """A folder beside ``source`` with its first ``shards`` files, linked."""
    folder = source.with_name(f"{source.name}-{shards}")
    folder.mkdir()
    for path in sorted(source.iterdir())[:shards]:
        (folder / path.name).hardlink_to(path)
    return folder


def rows(quick: bool) -> list[Row]:
    """The check at two sizes, and the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, total = folder / "n", (6 if quick else 8) * SHARD
        make(source, total, DIM)
        runs: dict[int, Run] = {}
        records: dict[int, int] = {}
        large, largest = total // SHARD - 2, total // SHARD
        for shards in (2, 3, large, largest):
            out = folder / f"out-{shards}"
            runs[shards] = adapted(subset(source, shards), out)
            records[shards] = (out / RECORD).stat().st_size
        model = Model(
            Line.through(*((shards * SHARD, runs[shards].seconds) for shards in (2, large))),
            Line.through(*((shards * SHARD, runs[shards].processor) for shards in (2, large))),
            max(each.peak for each in runs.values()),
            Line.through(*((shards, records[shards]) for shards in (2, large))),
            2 * SHARD * (READ + WRITTEN) / copying(folder / "n-2", folder / "copy"),
        )
    check = [
        Row(
            f"scale: {shards * SHARD:,} embeddings: predicted seconds over measured",
            model.seconds(shards * SHARD) / runs[shards].seconds,
            "",
            {
                "predicted": f"{model.seconds(shards * SHARD):.1f} s",
                "measured": f"{runs[shards].seconds:.1f} s",
                "peak": f"{runs[shards].peak / 1e6:.0f} MB",
                "of": f"{model.passes.fixed:.1f} s + {model.passes.rate * 1e6:.1f} s a million rows",
            },
        )
        for shards in (3, largest)
    ]
    return check + [model.row(n) for n in SIZES]
