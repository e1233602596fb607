"""Adapt your own embeddings, all at once and as a stream.

    python examples/adapt_your_embeddings.py [IMAGES.npy TEXT.npy [LABELS.npy]] [--scale 100]

IMAGES (n, d) and TEXT (classes, d) are embeddings of the images and of "a photo of a {class}". Without files, the
program uses a small synthetic set. It prints how many predictions change, and their accuracy if you give labels. The
methods do not see the labels. The last line says whether the stream ends with the same map as the fit on all images.
"""

from __future__ import annotations

import argparse

import numpy as np

from clip_tca import ConditionalTCA, LinearTCA, ZeroShotClassifier

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("files", nargs="*", metavar="FILE.npy", help="embeddings of the images, of the texts; labels")
parser.add_argument("--scale", type=float, default=100.0, help="logit scale of the model (100 for OpenAI's CLIP)")
options = parser.parse_args()
if len(options.files) not in (0, 2, 3):
    parser.error("give IMAGES.npy TEXT.npy, or IMAGES.npy TEXT.npy LABELS.npy, or nothing")

if options.files:
    z, text = (np.load(file) for file in options.files[:2])
    labels = np.load(options.files[2]) if len(options.files) == 3 else None
    scale = options.scale
else:
    rng, scale = np.random.default_rng(0), 30.0
    text = rng.normal(size=(6, 64)) + rng.normal(size=(1, 64))
    text /= np.linalg.norm(text, axis=1, keepdims=True)
    labels = rng.integers(6, size=1200)
    shift = rng.normal(size=64) / 4  # a domain shift, stronger for some images than for others
    z = text[labels] + 0.1 * rng.normal(size=(1200, 64)) + rng.uniform(0, 2, size=(1200, 1)) * shift
    z /= np.linalg.norm(z, axis=1, keepdims=True)


def show(name: str, predicted: np.ndarray) -> None:
    """Print how many predictions differ from zero-shot's, and how many are right."""
    right = "" if labels is None else f", accuracy {100 * (predicted == labels).mean():.1f} %"
    print(f"{name:28}{(predicted != zero_shot).sum():5} of {len(z)} changed{right}")


g = ZeroShotClassifier(text, scale=scale)
zero_shot = g.predict(z)
show("zero-shot", zero_shot)

linear = LinearTCA(g).fit(z)  # everything at once
show("LinearTCA", linear.predict(z))
show("ConditionalTCA", ConditionalTCA(g).fit(z).predict(z))

stream = LinearTCA(g)  # batch after batch: each batch is predicted from what was seen so far
batches = np.array_split(z, max(1, len(z) // 64))
show("LinearTCA, stream of batches", np.concatenate([stream.partial_fit(b).predict(b) for b in batches]))
print("at its end the stream has the map of the fit:", bool(np.allclose(stream.solve().W_, linear.W_, atol=1e-6)))
