"""Loads every data set of images, by the name that ``--dataset`` takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clip_tca.core.remote import is_url
from clip_tca.datasets.corrupting import Corruption
from clip_tca.datasets.image_set import ImageSet
from clip_tca.datasets.registry import BENCHMARKS, Benchmark, domain_named

NAMES = (*BENCHMARKS, "folder", "demo")


@dataclass(frozen=True)
class ImageSource:
    """A data set of images by name (a benchmark, ``folder`` for your own, or ``demo``), with where to find it.

    Without a ``data_dir`` it is on the hub (``hub_id`` may also be a local copy in the hub's formats), at the commit or
    tag ``revision``. For a column, None takes the first usual name. Empty ``domains`` loads all; empty ``corruptions``
    and ``severities`` load the 15 common ones at severity 5 of a benchmark whose domains are corruptions. ``corrupt``,
    such as ``gaussian_noise:3``, is applied to all images (:mod:`clip_tca.datasets.corrupting`).
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
        if self.data_dir is not None and is_url(str(self.data_dir)):
            raise ValueError(
                f"data_dir: {self.data_dir}; pictures are read from a folder of this machine: copy them (aws s3 sync, "
                "gsutil rsync), or embed them where they are and give eval the .safetensors file, which may be a URL"
            )
        if self.dataset == "folder" and self.data_dir is None and self.hub_id is None:
            raise ValueError("dataset: 'folder' needs --data-dir DIR (DIR/domain/class/image or DIR/class/image)")
        benchmark = self.benchmark
        if benchmark and not benchmark.hub_id and self.data_dir is None and self.hub_id is None:
            raise ValueError(
                f"dataset: no copy of {benchmark.title} on the hub is known to load; give --data-dir with a folder "
                f"like {benchmark.layout()}, or --hub-id with a copy of your own"
            )

    def load(self) -> ImageSet:
        """The data set, with counts checked against the published ones."""
        self.check()
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

            folder = Path(self.data_dir).expanduser()
            if benchmark is None:
                return load_folder(folder)
            return (load_corrupted if benchmark.corrupted else load_benchmark)(folder, benchmark)
        return self._from_hub(benchmark)

    def _from_hub(self, benchmark: Benchmark | None) -> ImageSet:
        from clip_tca.datasets.hub import Columns, load_hub

        hub_id = self.hub_id or (benchmark.hub_id if benchmark else "")
        columns = Columns(self.image_column, self.label_column, self.domain_column)
        try:
            data = load_hub(hub_id, benchmark, self.revision, columns)
        except ValueError as error:
            if benchmark is None or self.hub_id is not None:
                raise
            raise ValueError(f"{error}. A folder must look like {benchmark.layout()}") from error
        if benchmark and not benchmark.verified and self.hub_id is None and (wrong := data.differences()):
            raise ValueError(
                f"{hub_id}, a community copy of {benchmark.title}, is not complete ({'; '.join(wrong[:3])}); use "
                f"--data-dir with a folder like {benchmark.layout()}, or name it by --hub-id to take it as it is"
            )
        return data
