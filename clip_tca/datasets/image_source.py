"""Loads every data set of images, by the name that ``--dataset`` takes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clip_tca.core.checks import one_line
from clip_tca.core.hub_access import told_offline
from clip_tca.core.processes import current
from clip_tca.core.progress import Progress
from clip_tca.core.remote import is_url, locate
from clip_tca.datasets.corrupting import Corruption
from clip_tca.datasets.image_set import ImageSet
from clip_tca.datasets.mirrors import mirrors_of
from clip_tca.datasets.registry import BENCHMARKS, Benchmark, domain_named

log = logging.getLogger("clip_tca")

NAMES = (*BENCHMARKS, "folder", "demo")


@dataclass(frozen=True)
class ImageSource:
    """A data set of images by name (a benchmark, ``folder`` for your own, or ``demo``), with where to find it.

    Without a ``data_dir`` it is what ``clip-tca data get`` has got, else on the hub (``hub_id`` may also be a local
    copy in the hub's formats), at the commit or tag ``revision``; a benchmark whose hub copy fails is got from its
    other mirrors. For a column, None takes the first usual name. Empty ``domains`` loads all; empty ``corruptions`` and
    ``severities`` load the 15 common ones at severity 5 of a benchmark whose domains are corruptions. ``corrupt``, such
    as ``gaussian_noise:3``, is applied to all images (:mod:`clip_tca.datasets.corrupting`). ``progress`` shows
    progress on stderr.
    """

    dataset: str
    data_dir: str | Path | None = None
    hub_id: str | None = None
    revision: str | None = None
    image_column: str | None = None
    label_column: str | None = None
    domain_column: str | None = None
    domains: Sequence[str] = ()
    corruptions: Sequence[str] = ()
    severities: Sequence[int] = ()
    corrupt: str | None = None
    progress: bool = False

    @property
    def benchmark(self) -> Benchmark | None:
        """The benchmark of that name, with the corruptions that were chosen; None for other data sets."""
        known = BENCHMARKS.get(self.dataset)
        if known is not None and known.corrupted:
            return known.only(self.corruptions, self.severities)
        if self.corruptions or self.severities:
            raise ValueError(
                f"corruption: {self.dataset} has none; allowed are --corruption and --severity with "
                f"{', '.join(name for name, other in BENCHMARKS.items() if other.corrupted)}"
            )
        return known

    def check(self) -> None:
        """Raise ValueError for options that contradict each other, before anything is read or downloaded."""
        if self.dataset not in NAMES:
            allowed = ", ".join((*NAMES, "synthetic"))
            raise ValueError(f"dataset: {self.dataset!r}; allowed are {allowed} and FILE.safetensors")
        if self.corrupt is not None:
            Corruption.parse(self.corrupt)
        if self.data_dir is not None and self.hub_id is not None:
            raise ValueError("give either --data-dir or --hub-id, not both")
        if self.dataset == "demo" and (self.data_dir or self.hub_id) is not None:
            raise ValueError(
                f"dataset: 'demo' has its own pictures; for those of {self.data_dir or self.hub_id} use folder"
            )
        if self.dataset == "folder" and self.data_dir is None and self.hub_id is None:
            raise ValueError("dataset: 'folder' needs --data-dir DIR (DIR/domain/class/image or DIR/class/image)")
        benchmark = self.benchmark
        nowhere = self.data_dir is None and self.hub_id is None and not self._copy()
        if benchmark and not benchmark.hub_id and nowhere:
            got = f"; or load it: clip-tca data get {benchmark.name}" if mirrors_of(benchmark.name) else ""
            raise ValueError(
                f"dataset: no copy of {benchmark.title} on the hub is known to load; give --data-dir with a folder "
                f"like {benchmark.layout()}, or --hub-id with a copy of your own{got}"
            )

    def load(self) -> ImageSet:
        """The data set, with counts checked against the published ones."""
        self.check()
        with Progress(None, f"reading {self.dataset}", "image", self._shown):
            data = self._load()
        asked = self.benchmark if self.corruptions else None
        if asked and (missing := [name for name in asked.domains if name not in data.domains]):
            where, there = self.data_dir or self.hub_id, ", ".join(data.domains)
            raise FileNotFoundError(f"corruption: {missing[0]} is not in {where}; of those asked for there are {there}")
        if self.domains:
            chosen = [domain_named(name, list(data.domains)) for name in self.domains]
            data.domains = {name: data.domains[name] for name in chosen}
            data.expected = {name: n for name, n in data.expected.items() if name in chosen}
            data.expected_classes = {name: n for name, n in data.expected_classes.items() if name in chosen}
        return data if self.corrupt is None else data.corrupted(Corruption.parse(self.corrupt))

    def _load(self) -> ImageSet:
        benchmark = self.benchmark
        if self.dataset == "demo":
            from clip_tca.datasets.demo import demo_set

            return demo_set()
        if self.data_dir is not None:
            from clip_tca.datasets.corrupted_sets import load_corrupted
            from clip_tca.datasets.folder import load_benchmark, load_folder
            from clip_tca.datasets.listed_files import load_listed

            folder = self._folder(self.data_dir)
            if benchmark is None:
                return load_folder(folder)
            if benchmark.home and (folder / benchmark.home).is_dir():  # the others there have folders of the same names
                folder /= benchmark.home
            by_form = {"folders": load_benchmark, "listed": load_listed}
            return by_form.get(benchmark.form, load_corrupted)(folder, benchmark)
        if benchmark is not None and (copy := self._copy()):
            from clip_tca.datasets.local_copy import load_copy

            return load_copy(copy, benchmark)
        return self._from_hub(benchmark)

    def _folder(self, address: str | Path) -> Path:
        """The folder of the pictures; one in a store is copied to this machine first, and the copy is kept."""
        if not is_url(address):
            return Path(address).expanduser()
        from clip_tca.core.cache_folder import data_root
        from clip_tca.core.store_copy import copied

        place = locate(str(address))
        return place if isinstance(place, Path) else copied(place, data_root() / "stores", self._shown)

    def _copy(self) -> Path | None:
        """The copy of ``clip-tca data get``, unless another place was named."""
        from clip_tca.datasets.local_copy import found

        elsewhere = self.data_dir or self.hub_id or self.revision
        return found(self.dataset) if elsewhere is None and self.dataset in BENCHMARKS else None

    @property
    def _shown(self) -> bool:
        return self.progress and current().first

    def _from_hub(self, benchmark: Benchmark | None) -> ImageSet:
        from clip_tca.datasets.hub import Columns, load_hub
        from clip_tca.datasets.mirrors import mirrors_of

        hub_id = self.hub_id or (benchmark.hub_id if benchmark else "")
        columns = Columns(self.image_column, self.label_column, self.domain_column)
        try:
            data = load_hub(hub_id, benchmark, self.revision, columns)
            if benchmark and not benchmark.verified and self.hub_id is None and (wrong := data.differences()):
                raise ValueError(
                    f"{hub_id}, a community copy of {benchmark.title}, is not complete ({'; '.join(wrong[:3])}); "
                    "name it by --hub-id to take it as it is"
                )
            return data
        except ValueError as error:
            if benchmark is None or self.hub_id is not None:
                raise
            if self.revision is not None or told_offline() or not mirrors_of(benchmark.name):
                raise ValueError(f"{error}. A folder must look like {benchmark.layout()}") from error
            return self._from_others(benchmark, one_line(error.__cause__ or error))

    def _from_others(self, benchmark: Benchmark, reason: str) -> ImageSet:
        """The benchmark from its mirrors that are not on the hub, where it failed for this ``reason``."""
        from clip_tca.datasets.local_copy import Getter, load_copy, without_hub

        getter = without_hub(Getter.of(benchmark.name, progress=self._shown), benchmark.hub_id)
        folder = getter.get([(f"{benchmark.hub_id} on the hub", reason)])
        data = load_copy(folder, benchmark)
        log.warning(
            "%s: %s on the hub failed (%s); got it from %s, into %s",
            *(benchmark.name, benchmark.hub_id, reason, data.origin.get("mirror"), folder),
        )
        return data
