"""What a stream costs for each image, as ratios measured in one run.

    python benchmarks/stream.py [--dim 512] [--images 10000] [--classes 7]

For each adapter: observing and predicting at batch size 1 with the default ``refresh``, against solving the map anew
for every image (``refresh=1``, timed on the last images, where statistics are largest) and against plain zero-shot.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the file can be run by its path

from benchmarks.measure import Row, embeddings, seconds
from clip_tca import ConditionalTCA, LinearTCA
from clip_tca.adapters.base import Adapter


def stream(adapter: Adapter, z: torch.Tensor) -> None:
    """One image after the other: see it, then predict it."""
    for image in z.split(1):
        adapter.partial_fit(image).predict(image)


def rows(quick: bool, dim: int = 512, images: int = 10_000, classes: int = 7) -> list[Row]:
    """Milliseconds for each image, of a stream as long as PACS."""
    logging.getLogger("clip_tca").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    z, g = embeddings(2000 if quick else images, dim, classes)
    zero_shot = seconds(lambda: [g.predict(image) for image in z.split(1)]) / len(z)
    table = []
    for make in (LinearTCA, ConditionalTCA):
        default = seconds(lambda make=make: stream(make(g), z)) / len(z)
        eager = make(g, refresh=1).partial_fit(z[:-5])
        every = seconds(lambda eager=eager: stream(eager, z[-5:])) / 5
        sides = {"zero-shot": f"{1e3 * zero_shot:.3f} ms", "solving every time": f"{1e3 * every:.0f} ms"}
        what = f"{make.__name__}, batch size 1, {len(z):,} images, d = {dim}: ms for each image"
        table.append(Row(what, 1e3 * default, "<= 0.4", sides))
    return table


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=7)
    options = parser.parse_args()
    for row in rows(False, options.dim, options.images, options.classes):
        print(f"{row.what}: {row.value:.2f}", *[f"{name} {value}" for name, value in row.sides.items()], sep="; ")


if __name__ == "__main__":
    main()
