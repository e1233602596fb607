"""Adapt embeddings on Ray Data: the driver fits once, on an evenly spread sample, and workers predict their batches.

    python examples/ray_adapt.py [--files EMBEDDINGS TEXT.npy OUT] [--column embedding] [--scale 100] [--sample 50000]

EMBEDDINGS is a Parquet file, a folder or a URL of them with a list column of floats; TEXT is (classes, d). OUT becomes
a folder of Parquet files with the columns tca_label and changed (from zero-shot) more. Without files a small synthetic
set is used. Prints how many predictions adaptation changes; of the synthetic set also whether one process predicts the
same. Needs pip install 'clip-tca[ray]'.
"""

from __future__ import annotations

import argparse

import numpy as np
import ray

from clip_tca import ConditionalTCA, ZeroShotClassifier

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--files", nargs=3, metavar=("EMBEDDINGS", "TEXT.npy", "OUT"))
parser.add_argument("--column", default="embedding", help="list column of floats (default: %(default)s)")
parser.add_argument("--scale", type=float, default=100.0, help="logit scale of the model (100 for OpenAI's CLIP)")
parser.add_argument("--sample", type=int, default=50_000, help="rows to fit on, at most (default: %(default)s)")
parser.add_argument("--batch", type=int, default=4096, help="rows predicted together (default: %(default)s)")
options = parser.parse_args()
ray.init(include_dashboard=False, log_to_driver=False)
ray.data.DataContext.get_current().execution_options.preserve_order = True  # so that the same rows give the same fit
if options.files:
    text, rows = np.load(options.files[1]), ray.data.read_parquet(options.files[0])
else:
    rng = np.random.default_rng(0)
    text, shift, options.batch = rng.normal(size=(6, 64)), 3 * rng.normal(size=64), 500
    z = (text[rng.integers(6, size=2000)] + 2 * rng.normal(size=(2000, 64)) + shift).astype(np.float32)
    rows = ray.data.from_items([{"id": i, options.column: row} for i, row in enumerate(z)], override_num_blocks=4)
g = ZeroShotClassifier(text.astype(np.float32), options.scale)


def spread(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every ``step``-th row of a batch."""
    return {options.column: batch[options.column][::step]}


def predict(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The batch, with its predictions."""
    labels = adapter.predict(some := np.stack(list(batch[options.column])))
    return {**batch, "tca_label": labels, "changed": (labels != g.predict(some)).astype(int)}


step = -(-rows.count() // options.sample)
sample = [row[options.column] for row in rows.map_batches(spread, batch_size=options.batch).take_all()]
adapter = ConditionalTCA(g).fit(np.stack(sample))
adapted = rows.map_batches(predict, batch_size=options.batch).materialize()
print(f"{adapted.count()} rows, fitted on {len(sample)}, {adapted.sum('changed')} predictions changed")
if options.files:
    adapted.write_parquet(options.files[2])
else:
    alone = ConditionalTCA(g).fit(z).predict(z).tolist()
    print(f"one process predicts the same: {alone == [row['tca_label'] for row in adapted.take_all()]}")
