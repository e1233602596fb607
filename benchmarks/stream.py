"""What a stream costs for each image, as ratios measured in one run.

    python benchmarks/stream.py [--dim 512] [--images 4000] [--classes 7]

For each adapter: observing and predicting at batch size 1 with the default ``refresh``, against solving the map anew
for every image (``refresh=1``, timed on the last images, where statistics are largest) and against plain zero-shot.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable

import torch

from clip_tca import ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.adapter import Adapter
from clip_tca.datasets.synthetic import synthetic


def seconds(work: Callable[[], object]) -> float:
    """Wall time of ``work``."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def stream(adapter: Adapter, z: torch.Tensor) -> None:
    """One image after the other: see it, then predict it."""
    for image in z.split(1):
        adapter.partial_fit(image).predict(image)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--classes", type=int, default=7)
    options = parser.parse_args()
    logging.getLogger("clip_tca").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    data = synthetic(0, options.classes, options.dim, -(-options.images // options.classes))
    z = data.domains["shifted"][0][: options.images]
    g = ZeroShotClassifier(data.text, data.scale)
    plain = seconds(lambda: [g.predict(image) for image in z.split(1)]) / len(z)
    print(f"one core, d = {options.dim}, {len(z)} images, batch size 1; zero-shot {1e3 * plain:.3f} ms/image\n")
    print("adapter         ms/image  against zero-shot  solving every time / default")
    for make in (LinearTCA, ConditionalTCA):
        default = seconds(lambda make=make: stream(make(g), z)) / len(z)
        eager = make(g, refresh=1).partial_fit(z[:-10])
        every = seconds(lambda eager=eager: stream(eager, z[-10:])) / 10
        print(f"{make.__name__:14}  {1e3 * default:8.2f}  {default / plain:16.0f}x  {every / default:27.0f}x")


if __name__ == "__main__":
    main()
