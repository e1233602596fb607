"""How frequent the classes are, as ConditionalTCA's prior: by what q and g agree on, or as it is told.

The derivation, with the numbered equations used here, is in :mod:`clip_tca.adapters.conditional`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Prior = Callable[[Tensor], Tensor]
"""From the support ``(c,)`` of the classes to γ log π_c ``(c,)``."""


def imbalance(support: Tensor) -> Tensor:
    """0 where the classes that ``support`` ``(c,)`` counts are equally frequent, up to 1 where there is only one.

    1 + log Σπ² / log c, with what chance adds to Σπ² in so small a sample taken off.
    """
    total = support.sum() + len(support)
    squares = ((support + 1) / total).square().sum()
    squares = ((squares - 2 / total) / (1 - 2 / total)).clamp_min(1 / len(support))
    return 1 + squares.log() / math.log(max(2, len(support)))


def attracted(unequal: Tensor, predicted: Tensor) -> Tensor:
    """Whether the classes look ``unequal`` because g calls images of other classes by the name of one.

    ``predicted`` ``(c,)`` is how often it predicts each. Where classes are unequal in truth, q and g agree on more
    unequal shares than g predicts: its errors are spread. A class that attracts others is the other way round. From 0.3
    on, where much is lost if the classes are unequal after all, it has to be clearly so, and shares as unequal as 0.4
    are not the work of such a class.
    """
    return (unequal < 0.4) & (unequal < torch.where(unequal < 0.3, 1.1, 0.75) * imbalance(predicted))


def agreed_prior(support: Tensor, most: Tensor) -> Tensor:
    """γ log π_c ``(c,)`` from what q and p⁰ agree on; γ goes by how unequal the classes are, at ``most`` as given."""
    prior = (support + 1) / (support.sum() + len(support))
    return (6 * torch.minimum(imbalance(support), most)).clamp_max(2.0) * prior.log()


def known_prior(shares: Tensor, images: int) -> Tensor:
    """log π_c ``(c,)`` of given class shares: half an image more for each, because nobody knows them exactly.

    Only a share of zero is taken at its word.
    """
    counts = shares * images + torch.where(shares > 0, 0.5, 1e-9)
    return (counts / counts.sum()).log()
