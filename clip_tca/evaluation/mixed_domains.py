"""A mixture: all domains of a data set as one, for one stream over all of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import torch

from clip_tca.datasets.image_set import Domain
from clip_tca.evaluation.inputs import Embedded

MIXED = "all domains"
"""What the mixture is called."""


def mixed(embedded: Embedded) -> Embedded:
    """A data set with one domain, :data:`MIXED`, that holds the images of all, one domain after the other."""
    data, pictures = embedded.data, embedded.pictures
    z, labels = (torch.cat(parts) for parts in zip(*data.domains.values(), strict=True))
    if pictures is not None:
        chained = Domain.chained([pictures.domains[name] for name in data.domains])
        pictures = replace(pictures, domains={MIXED: chained})
    return replace(embedded, data=replace(data, domains={MIXED: (z, labels)}), pictures=pictures)


def places(embedded: Embedded) -> dict[str, range]:
    """Where in the mixture the images of each domain are."""
    ends = accumulate((len(labels) for _, labels in embedded.data.domains.values()), initial=0)
    return {name: range(*bounds) for name, bounds in zip(embedded.data.domains, pairwise(ends), strict=True)}
