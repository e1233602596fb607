"""A small synthetic set of embeddings with a domain shift, without pictures or a model.

Class means lie around unit text vectors, and embeddings around class means: this is ``clean``. In ``shifted``, each
embedding is moved along a common direction and stretched in a few others, by different amounts (the paper assumes that
the least shifted are the most certain). ``skewed`` is ``shifted`` with class counts that fall by a third from class to
class.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca.datasets.embedding_set import EmbeddingSet

SCALE = 30.0


def synthetic(seed: int = 0, classes: int = 6, dim: int = 64, images: int = 240) -> EmbeddingSet:
    """Draw the set; ``images`` is the number for each class (for the first class of ``skewed``)."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    text = functional.normalize(noise(classes, dim) + noise(1, dim), dim=1)
    shift = functional.normalize(noise(1, classes) @ text + noise(1, dim), dim=1)
    stretch = functional.normalize(noise(4, classes) @ text + noise(4, dim), dim=1)
    even, falling = [images] * classes, [max(2, round(images / 1.5**i)) for i in range(classes)]
    domains = {}
    for name, counts, strength in [("clean", even, 0.0), ("shifted", even, 3.0), ("skewed", falling, 3.0)]:
        y = torch.repeat_interleave(torch.arange(classes), torch.tensor(counts))
        y = y[torch.randperm(len(y), generator=generator)]
        severity = strength * torch.rand(len(y), 1, generator=generator)
        z = text[y] + 0.1 * noise(len(y), dim) + severity * (shift + 0.5 * noise(len(y), len(stretch)) @ stretch)
        domains[name] = functional.normalize(z, dim=1), y
    return EmbeddingSet(text, SCALE, domains)
