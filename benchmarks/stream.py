"""What a stream costs for each image, as ratios measured in one run.

    python benchmarks/stream.py [--dim 512] [--images 10000] [--classes 7]

For each adapter: observing and predicting at batch size 1 with the default ``refresh``, against solving the map anew
for every image (``refresh=1``, timed on the last images, where statistics are largest) and against plain zero-shot.
The second row of each adapter has the time in units of zero-shot.
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
    makes = (LinearTCA, ConditionalTCA)
    work = {"zero-shot": lambda: [g.predict(image) for image in z.split(1)]}
    work |= {make.__name__: lambda make=make: stream(make(g), z) for make in makes}
    times = dict.fromkeys(work, float("inf"))
    for _ in range(1 if quick else 3):  # in turns, the best of each
        times = {name: min(times[name], 1e3 * seconds(run) / len(z)) for name, run in work.items()}
    table = []
    for make in makes:
        eager = make(g, refresh=1).partial_fit(z[:-5])
        every = 1e3 * seconds(lambda eager=eager: stream(eager, z[-5:])) / 5
        taken, plain = times[make.__name__], times["zero-shot"]
        sides = {"zero-shot": f"{plain:.3f} ms", "solving every time": f"{every:.0f} ms"}
        what = f"{make.__name__}, batch size 1, {len(z):,} images, d = {dim}"
        table.append(Row(f"{what}: ms for each image", taken, "<= 0.6", sides))
        table.append(Row(f"{what}: times zero-shot", taken / plain, "<= 10", {"stream": f"{taken:.3f} ms", **sides}))
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
