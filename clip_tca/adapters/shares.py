"""Class shares: how frequent each class is among the test images.

What an alignment of mean and covariance matches is mostly this, so it decides what LinearTCA gains; for ConditionalTCA
the shares are the prior. Who knows them, even roughly, should say so. Who doesn't has them estimated: ConditionalTCA
counts the classes, and shares for LinearTCA are looked for with which it predicts each class as often
(:func:`estimate_shares`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from clip_tca.adapters.assignment import spread
from clip_tca.adapters.gaussian_fit import fit_gaussians
from clip_tca.adapters.solvers import monge
from clip_tca.adapters.statistics import Moments, StreamMoments, ledoit_wolf_shrinkage, shrink
from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import one_of
from clip_tca.core.tensors import exact

GivenShares = list[float] | tuple[float, ...] | dict[str, float]
Shares = Literal["estimated", "uniform", "predicted", "global", "oracle"] | GivenShares

CANDIDATES = ("zero-shot", "uniform", "estimated", "met")
"""What predictions are compared: g's own, and with equal shares, those of ConditionalTCA, those that make them meet."""

ROUNDS = 4
"""How often the shares are moved towards those that make the predictions meet ConditionalTCA's."""

CLEARLY = 0.005
"""By how much the counts of ConditionalTCA themselves must agree better than shares that make the predictions meet."""

SOURCE_ROWS = 4096
"""Rows of the pseudo-source with which candidates are tried."""


def plain(shares: Shares | Tensor | np.ndarray) -> Shares:
    """Shares as words, lists and dictionaries, which can be compared and saved."""
    if isinstance(shares, (Tensor, np.ndarray)):
        return [float(share) for share in shares.reshape(-1).tolist()]
    return list(shares) if isinstance(shares, tuple) else shares


def check_shares(shares: Shares, classifier: LinearClassifier, names: Sequence[str]) -> None:
    """Raise ValueError if ``shares`` is neither one of ``names`` nor a share for each class of ``classifier``."""
    if not isinstance(shares, (list, tuple, dict)):
        one_of("shares", shares, (*names, "a number for each class", "{class name: number}"))
    else:
        share_vector(shares, classifier)


def share_vector(shares: GivenShares, classifier: LinearClassifier) -> Tensor:
    """Given shares ``(c,)``, which add up to one.

    Raises:
        ValueError: If there is not one number ≥ 0 for each class, or all are zero.
    """
    c = classifier.n_classes
    if isinstance(shares, dict):
        names = classifier.classes
        if names is None:
            raise ValueError("shares: class names, but the classifier has none; give classes= to it, or a list")
        if strange := [name for name in shares if name not in names]:
            raise ValueError(f"shares: {strange[0]!r} is no class; the classes are {', '.join(names[:10])}")
        if missing := [name for name in names if name not in shares]:
            raise ValueError(f"shares: none for {missing[0]!r}; name every class, absent ones with 0")
        shares = [shares[name] for name in names]
    if len(shares) != c:
        raise ValueError(f"shares: {len(shares)} numbers for {c} classes; give one for each class, in their order")
    for share in shares:
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < float("inf"):
            raise ValueError(f"shares: {share!r}; a number ≥ 0 is needed for each class")
    vector = torch.tensor([float(share) for share in shares], dtype=torch.float64)
    if not float(vector.sum()) > 0:
        raise ValueError("shares: all are 0; at least one class must be present")
    return exact(vector / vector.sum())


def row_weights(shares: Tensor, group: Tensor) -> Tensor:
    """Weights ``(m,)`` of rows of the classes ``group``, which add up to one: share / number of rows of the class.

    The shares of classes without a row go to the others.
    """
    number = torch.bincount(group, minlength=len(shares))
    weights = (shares / number.clamp_min(1))[group]
    total = weights.sum()
    equal = torch.full_like(weights, 1 / max(1, len(weights)))
    return torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), equal)


class Estimate(NamedTuple):
    """The shares that were chosen.

    Attributes:
        shares: ``(c,)``.
        agreement: ``(4,)`` share of equal predictions with ConditionalTCA, by candidate.
    """

    shares: Tensor
    agreement: Tensor


def estimate_shares(
    sample: Tensor, rows: Tensor, group: Tensor, g: LinearClassifier, target: Moments, sigma: Tensor
) -> Estimate:
    """The shares with which LinearTCA comes nearest to ConditionalTCA's predictions.

    Candidates are equal shares, the class counts of ConditionalTCA, and those multiplied a few times by how much more
    often ConditionalTCA predicts a class than LinearTCA with them does. They are tried in the span of g's weights,
    where the predictions are made, which costs next to nothing.

    Args:
        sample: ``(n, d)`` evenly spread rows of all embeddings.
        rows: ``(m, d)`` the pseudo-source.
        group: ``(m,)`` its predicted classes.
        g: The classifier.
        target: Moments of all embeddings.
        sigma: ``(d, d)`` their covariance, shrunk.
    """
    c = g.n_classes
    moments = target if target.n == len(sample) else StreamMoments.of(sample)
    fitted = fit_gaussians(sample, g, rounds=5, moments=moments)
    judge = fitted.classifier.predict(sample)
    weight, bias = exact(g.weight.to(sample.device)), exact(g.bias.to(sample.device))
    span = torch.linalg.qr(weight.T).Q  # (d, min(c, d))
    weight, mean, sigma = weight @ span, target.mean @ span, span.T @ sigma @ span
    tried_rows = spread(rows, SOURCE_ROWS)
    source, group = exact(rows[tried_rows]) @ span, group[tried_rows]
    inside = sample @ span.to(sample) - mean.to(sample)

    def predicted(shares: Tensor) -> Tensor:
        moments = Moments.weighted(source, row_weights(shares, group))
        w = monge(sigma, shrink(moments.covariance(), ledoit_wolf_shrinkage(moments)))
        turned, offset = w @ weight.T, torch.addmv(bias, weight, moments.mean)
        return torch.addmm(offset.to(inside), inside, turned.to(inside)).argmax(dim=1)

    counts = exact(torch.bincount(judge, minlength=c))
    tried = [torch.ones_like(counts), counts + 0.5]
    answers = [predicted(shares) for shares in tried]
    for _ in range(ROUNDS):
        tried.append(tried[-1] * (counts + 1) / (exact(torch.bincount(answers[-1], minlength=c)) + 1))
        answers.append(predicted(tried[-1]))
    agreed = torch.stack([exact(answer == judge).mean() for answer in answers])
    kept = exact(g.predict(sample) == judge).mean()
    lead = torch.zeros_like(agreed)
    lead[1] = CLEARLY  # they do not make the predictions meet, so they may not win by chance
    best = (agreed - lead).argmax()
    chosen = torch.stack([shares / shares.sum() for shares in tried])[best]
    return Estimate(chosen, torch.stack([kept, agreed[0], agreed[1], agreed[2:].max()]))
