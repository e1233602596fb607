"""Loads every data set of images, by the name that ``--dataset`` takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clip_tca.core.checks import not_among
from clip_tca.core.errors import OfflineError
from clip_tca.core.files import copied
from clip_tca.core.folders import data_root
from clip_tca.core.network import told_offline
from clip_tca.core.progress import Progress
from clip_tca.core.remote import is_url, locate
from clip_tca.data.corruptions import Corruption
from clip_tca.data.folder import load_benchmark, load_folder
from clip_tca.data.hub import demo_set, load_hub
from clip_tca.data.local_copy import copy_of, get, load_copy, mirrors_of
from clip_tca.data.pictures import ImageSet
from clip_tca.data.registry import BENCHMARKS, Benchmark, domain_named

NAMES = (*BENCHMARKS, "folder", "demo")


@dataclass(frozen=True)
class ImageSource:
    """A data set of images by name (a benchmark, ``folder`` for your own, or ``demo``), with where to find it.

    Without ``data_dir`` and ``hub_id`` a benchmark is the copy of ``clip-tca data get``; without one, it is loaded now
    from its mirrors, or from the hub if it has none.
    """

    dataset: str
    data_dir: str | Path | None = None
    hub_id: str | None = None  # another data set on the hub, or a local copy in the hub's formats
    revision: str | None = None  # its commit or tag
    image_column: str | None = None  # None: the first usual name
    label_column: str | None = None
    domain_column: str | None = None
    domains: Sequence[str] = ()  # empty: all
    corruptions: Sequence[str] = ()  # empty: the 15 common ones, of a benchmark whose domains are corruptions
    severities: Sequence[int] = ()  # empty: 5
    corrupt: str | None = None  # applied to all images, such as gaussian_noise:3
    progress: bool = False

    @property
    def is_local(self) -> bool:
        """Whether the pictures are at hand, and nothing is downloaded before they are read."""
        return self.data_dir is not None

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
            names = [*NAMES, "synthetic"]
            raise ValueError(f"dataset: {not_among(self.dataset, names, [*names, 'FILE.safetensors'])}")
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
        benchmark, anywhere = self.benchmark, self.data_dir or self.hub_id
        if benchmark and anywhere is None and not benchmark.hub_id and copy_of(benchmark.name) is None:
            got = f"; or load it: clip-tca data get {benchmark.name}" if mirrors_of(benchmark.name) else ""
            raise ValueError(
                f"dataset: no copy of {benchmark.title} on the hub is known to load; give --data-dir with a folder "
                f"like {benchmark.layout()}, or --hub-id with a copy of your own{got}"
            )

    def load(self) -> ImageSet:
        self.check()
        with Progress(None, f"reading {self.dataset}", "image", self.progress):
            data = self._load(self.progress)
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

    def _load(self, shown: bool) -> ImageSet:
        if self.dataset == "demo":
            return demo_set()
        benchmark = self.benchmark
        if self.data_dir is not None:
            folder = local_path(self.data_dir, shown)
            return load_benchmark(folder, benchmark) if benchmark else load_folder(folder)
        columns = self.image_column, self.label_column, self.domain_column
        if benchmark is None or self.hub_id is not None:
            return load_hub(self.hub_id or "", benchmark, self.revision, columns)
        if self.revision is None:
            copy = copy_of(benchmark.name)
            if copy is None and not told_offline() and (mirrors := mirrors_of(benchmark.name)):
                copy = get(benchmark.name, mirrors, progress=shown)
            if copy is not None:
                return load_copy(copy, benchmark)
        try:
            return load_hub(benchmark.hub_id, benchmark, self.revision, columns)
        except ValueError as error:
            kind = OfflineError if isinstance(error, OfflineError) else ValueError
            raise kind(f"{error}. A folder must look like {benchmark.layout()}") from error


def local_path(address: str | Path, shown: bool) -> Path:
    """The folder or file of the pictures; one in a store is copied to this machine first, and the copy is kept."""
    if not is_url(address):
        return Path(address).expanduser()
    place = locate(str(address))
    return place if isinstance(place, Path) else copied(place, data_root() / "stores", shown)
