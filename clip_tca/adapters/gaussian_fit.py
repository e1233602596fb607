"""ConditionalTCA's classifier from unlabeled rows: equation (1), its safeguards, its temperature and its move.

The derivation, with the numbered equations used here, is in :mod:`clip_tca.adapters.conditional`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from clip_tca.adapters.assignment import Assignment
from clip_tca.adapters.class_priors import Prior, agreed_prior, attracted, imbalance, known_prior
from clip_tca.adapters.gaussians import FEWEST_PRIOR_IMAGES
from clip_tca.adapters.overconfidence import falls_to_zero
from clip_tca.adapters.statistics import Moments, mean
from clip_tca.adapters.symmetric import eigh
from clip_tca.classifier import LinearClassifier
from clip_tca.core.tensors import CHUNK, exact

FEWEST_IMAGES = 8
"""Below as many rows the classifier g is kept as it is."""
TRIAL_ROUNDS = 2
"""Rounds without a prior, from which it is seen how unequal the classes are."""
KEPT = 0.65
"""Mean confidence of g in the predictions that would change from which it is kept as it is."""


@dataclass
class GaussianFit:
    """The classifier of equation (1) with what it was estimated from.

    Attributes:
        classifier: z ↦ log q(c | z) up to a constant, on prepared rows.
        counts: ``(c,)`` soft class counts n_c.
        means: ``(c, d)`` class means m_c.
        temperature: ``()`` by which weight and bias have been divided.
        start_temperature: ``()`` of g in the first assignment.
        disputed: ``()`` mean confidence of g, as its neighbours allow it, in the predictions that the Gaussians would
            change; from :data:`KEPT` on the classifier is g.
        before: ``(n,)`` largest probabilities of g for the rows, and the classes that have them.
    """

    classifier: LinearClassifier
    counts: Tensor
    means: Tensor
    temperature: Tensor
    start_temperature: Tensor
    disputed: Tensor
    before: tuple[Tensor, Tensor]


def fit_gaussians(
    z: Tensor,
    g: LinearClassifier,
    shrinkage: Literal["auto"] | float = "auto",
    anchor: float = 1.0,
    rounds: int = 8,
    moments: Moments | None = None,
    shares: Tensor | None = None,
) -> GaussianFit:
    """The classifier of equation (1), estimated from the unlabeled rows of ``z`` ``(n, d)``, at temperature 1.

    ``moments`` are those of the rows, where they are known already; ``shares`` ``(c,)`` those of the classes.
    """
    n, d = z.shape
    g_weight, g_bias = exact(g.weight.to(z.device)), exact(g.bias.to(z.device))
    one = torch.ones_like(g_weight[0, 0])
    if n < FEWEST_IMAGES:
        centre = mean(z)
        posterior = g.log_probabilities(z).exp()
        sure, named = posterior.max(dim=1)
        counts = posterior.sum(dim=0)
        means = posterior.T @ (exact(z) - centre) / (counts + FEWEST_PRIOR_IMAGES)[:, None] + centre
        return GaussianFit(LinearClassifier(g_weight, g_bias), counts, means, one, one, 0 * one, (sure, named))
    amount = max(0.3, d / (2 * n + d)) if shrinkage == "auto" else float(shrinkage)
    rows = Assignment.of(z, log_probabilities(z, g), anchor, amount, moments)  # nobody else holds what it rearranges
    c = g.n_classes
    if shares is None:  # a first look, all classes alike: the zero-shot shares would exaggerate what g is partial to
        _, soft, _ = rows.run(TRIAL_ROUNDS, lambda _: torch.zeros_like(g_bias), one)
        unequal = imbalance(soft.support)
        if n >= 8 * c:
            often = torch.zeros_like(g_bias).index_add(0, rows.named, torch.ones_like(exact(z[:, 0])))
            unequal = torch.where(attracted(unequal, often), 0 * one, unequal)
        prior: Prior = lambda support: agreed_prior(support, unequal)  # noqa: E731
    else:
        shares = shares.to(g_weight) / shares.sum()
        unequal = 1 + shares.square().sum().log() / math.log(max(2, c))
        prior = lambda _: known_prior(shares, n)  # noqa: E731
    ramp = 1 + 4 * (unequal / 0.3).clamp(min(1.0, 30 * c / n), 1.0)
    fitted, soft, predicted = rows.run(rounds, prior, ramp)
    disputed = rows.disputed(predicted) if shares is None else 0 * one  # shares that are known are reason to change
    kept = disputed > KEPT
    axes = rows.axes
    means, weight, bias = fitted.discriminant(soft, fitted.mean_length(axes))
    weight = weight @ axes.directions.T
    bias = bias - weight @ axes.centre
    means = means @ axes.directions.T + axes.centre
    weighed = anchor / rows.excess
    weight = torch.where(kept, g_weight, weighed * g_weight + weight)
    bias = torch.where(kept, g_bias, weighed * g_bias + bias)
    start = rows.start_temperature * rows.excess
    return GaussianFit(LinearClassifier(weight, bias), soft.counts, means, one, start, disputed, rows.before)


def log_probabilities(z: Tensor, g: LinearClassifier) -> Tensor:
    """log p⁰ ``(n, c)`` of the rows of ``z`` ``(n, d)``, in their dtype."""
    weight, bias = g.weight.to(z), g.bias.to(z)
    log_g = z.new_empty(len(z), len(bias))
    for part, out in zip(z.split(CHUNK), log_g.split(CHUNK), strict=True):
        torch.log_softmax(torch.addmm(bias, part, weight.T), dim=1, out=out)
    return log_g


def match_confidence(fitted: GaussianFit, z: Tensor) -> GaussianFit:
    """``fitted`` at the temperature at which its mean confidence in its rows ``z`` ``(n, d)`` is what one expects.

    That is the confidence of g, and 0.3 for each prediction that was changed, because about so many more are right.
    """
    if len(z) < FEWEST_IMAGES:
        return fitted  # it is g
    some = slice(None, None, max(1, len(z) // 8192))
    sure, named = (before[some] for before in fitted.before)
    after = torch.addmm(fitted.classifier.bias.to(z), z[some], fitted.classifier.weight.to(z).T)
    changed = exact(after.argmax(dim=1) != named).mean()
    temperature = matching_temperature(after, (exact(sure).mean() + 0.3 * changed).clamp_max(0.99))
    cooled = LinearClassifier(fitted.classifier.weight / temperature, fitted.classifier.bias / temperature)
    return replace(fitted, classifier=cooled, temperature=temperature)


def matching_temperature(logits: Tensor, confidence: Tensor) -> Tensor:
    """The temperature ≥ 1 at which the mean of the largest softmax probability falls to ``confidence``."""
    parts = [(part - part.amax(dim=1, keepdim=True)).T.contiguous() for part in logits.split(CHUNK)]

    def surplus(log_t: Tensor) -> Tensor:  # classes first: sums over them are fast
        powers = [torch.div(part, 2**log_t).exp_().sum(dim=0).reciprocal_().sum() for part in parts]
        return exact(torch.stack(powers)).sum() / len(logits) - confidence

    return 2 ** falls_to_zero(surplus, torch.zeros_like(confidence), torch.full_like(confidence, 20.0))


def least_move(adapted: LinearClassifier, g: LinearClassifier) -> tuple[Tensor, Tensor]:
    """``(d, d)`` matrix and ``(d,)`` offset of the smallest move after which g says what ``adapted`` says."""
    g_weight, g_bias = exact(g.weight.to(adapted.device)), exact(g.bias.to(adapted.device))
    difference = adapted.bias - g_bias
    weight = (adapted.weight - adapted.weight.mean(dim=0)).T
    g_weight = (g_weight - g_weight.mean(dim=0)).T
    inverse = pseudo_inverse(g_weight)
    matrix = (weight - g_weight) @ inverse
    matrix.diagonal().add_(1.0)
    return matrix, (difference - difference.mean()) @ inverse


def pseudo_inverse(a: Tensor) -> Tensor:
    """Of ``a`` ``(d, c)``, ``(c, d)``, by the eigenvectors of the smaller of aaᵀ and aᵀa: far cheaper than an SVD.

    Singular values below 1e-6 of the largest count as zero.
    """
    wide = a.shape[0] <= a.shape[1]
    values, vectors = eigh(a @ a.T if wide else a.T @ a)
    kept = values > 1e-12 * values[-1]
    inverse = (vectors * torch.where(kept, values, 1.0).reciprocal() * kept) @ vectors.T
    return a.T @ inverse if wide else inverse @ a.T
