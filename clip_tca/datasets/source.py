"""One door to every data set of pictures, by the name that ``--dataset`` takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clip_tca.datasets.image_set import Domain, ImageSet
from clip_tca.datasets.registry import BENCHMARKS, Benchmark, plain

if TYPE_CHECKING:
    from PIL import Image

NAMES = (*BENCHMARKS, "folder", "demo")


@dataclass(frozen=True)
class Source:
    """Where pictures come from.

    Attributes:
        dataset: A benchmark, ``folder`` (anyone's own), or ``demo``.
        data_dir: Folder that holds them; None takes the hub (benchmarks) or ``hub_id``.
        hub_id: Data set on the hub, or a local copy in its formats.
        revision: Commit or tag on the hub.
        image_column: Name of the column with the pictures; None looks for the usual ones. So do the next two.
        label_column: Name of the column with the labels.
        domain_column: Name of the column with the domains.
        domains: Domains to take; empty takes all.
    """

    dataset: str
    data_dir: str | None = None
    hub_id: str | None = None
    revision: str | None = None
    image_column: str | None = None
    label_column: str | None = None
    domain_column: str | None = None
    domains: tuple[str, ...] = ()

    def load(self) -> ImageSet:
        """The data set, with counts checked against the published ones."""
        data = self._load()
        if self.domains:
            known = {plain(name): name for name in data.domains}
            if unknown := [name for name in self.domains if plain(name) not in known]:
                raise ValueError(f"domain: {unknown[0]!r}; {data.name} has {', '.join(data.domains)}")
            chosen = [known[plain(name)] for name in self.domains]
            data.domains = {name: data.domains[name] for name in chosen}
            data.expected = {name: n for name, n in data.expected.items() if name in chosen}
            data.expected_classes = {name: n for name, n in data.expected_classes.items() if name in chosen}
        return data

    def _load(self) -> ImageSet:
        benchmark = BENCHMARKS.get(self.dataset)
        if self.data_dir is not None and self.hub_id is not None:
            raise ValueError("give either --data-dir or --hub-id, not both")
        if benchmark is None and self.dataset not in NAMES:
            raise ValueError(f"dataset: {self.dataset!r}; allowed are {', '.join(NAMES)}")
        if self.dataset == "demo":
            return demo_set()
        if self.data_dir is not None:
            from clip_tca.datasets.folder import load_benchmark, load_folder

            folder = Path(self.data_dir).expanduser()
            return load_benchmark(folder, benchmark) if benchmark else load_folder(folder)
        if benchmark is None and self.hub_id is None:
            raise ValueError("dataset: 'folder' needs --data-dir DIR (DIR/domain/class/image or DIR/class/image)")
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


@dataclass(frozen=True)
class Drawn:
    """Pictures of the demo, drawn when they are asked for."""

    style: str
    numbers: tuple[tuple[str, int], ...]

    def __call__(self, index: int) -> Image.Image:
        """Picture ``index``."""
        from clip_tca.datasets.demo import draw

        return draw(self.style, *self.numbers[index])


def demo_set() -> ImageSet:
    """The bundled demo: seven classes drawn in four styles."""
    from clip_tca.datasets.demo import CLASSES, IMAGES, STYLES, VERSION

    numbers = tuple((name, index) for name in CLASSES for index in range(IMAGES))
    labels = [CLASSES.index(name) for name, _ in numbers]
    domains = {
        style: Domain(
            [f"{name}/{index}" for name, index in numbers], [VERSION] * len(numbers), labels, Drawn(style, numbers)
        )
        for style in STYLES
    }
    return ImageSet("demo", list(CLASSES), domains, {"kind": "drawn", "version": VERSION})
