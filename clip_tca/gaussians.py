"""One Gaussian for each class, with a shared covariance, from soft assignments: the mathematics of ConditionalTCA.

The derivation, with the numbered equations used here, is in :mod:`clip_tca.conditional`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from clip_tca.embeddings import CHUNK, chunks, exact
from clip_tca.statistics import Moments
from clip_tca.zero_shot import ZeroShotClassifier

FEWEST_PRIOR_IMAGES = 2.0


@dataclass
class Head:
    """A linear classifier z ↦ z·weight + bias on prepared rows.

    Attributes:
        weight: ``(d, c)``.
        bias: ``(c,)``.
        counts: ``(c,)`` soft class counts n_c of the rows it was estimated from.
        means: ``(c, d)`` class means m_c.
        temperature: ``()`` by which weight and bias have been divided.
    """

    weight: Tensor
    bias: Tensor
    counts: Tensor
    means: Tensor
    temperature: Tensor

    def logits(self, z: Tensor) -> Tensor:
        """Class scores ``(n, c)``."""
        return torch.cat([part @ self.weight + self.bias for part in chunks(z)])


def fewest(classes: int) -> int:
    """The number of images below which zero-shot is kept."""
    return max(32, 4 * classes)


def gaussian_head(
    z: Tensor,
    classifier: ZeroShotClassifier,
    shrinkage: Literal["auto"] | float = "auto",
    anchor: float = 1.0,
    rounds: int = 10,
) -> Head:
    """The classifier of equation (1), estimated from the unlabeled rows of ``z`` ``(n, d)``."""
    n, d = z.shape
    moments = Moments.of(z)
    text = classifier.scale * exact(classifier.text.to(z.device)).T
    posterior = classifier.log_probabilities(z).exp_()
    soft = SoftStatistics.empty(moments, classifier.classes)
    for part, q in zip(z.split(CHUNK), posterior.split(CHUNK), strict=True):
        soft.add(part, q, q, moments.mean)
    if n < fewest(classifier.classes):
        means = soft.sums / (soft.counts + FEWEST_PRIOR_IMAGES)[:, None] + moments.mean
        return Head(text, torch.zeros_like(text[0]), soft.counts, means, torch.ones_like(text[0, 0]))
    amount = max(0.3, d / (2 * n + d)) if shrinkage == "auto" else float(shrinkage)
    for _ in range(rounds):
        fitted, soft = Gaussians.fit(moments, soft, amount), SoftStatistics.empty(moments, classifier.classes)
        length = torch.zeros_like(moments.quartics)
        for part, q in zip(z.split(CHUNK), posterior.split(CHUNK), strict=True):  # q is overwritten in place
            zero_shot = classifier.log_probabilities(part)
            likelihood, lengths = fitted.leave_one_out(part, q)
            q.copy_((anchor * zero_shot + likelihood).softmax(dim=1))
            soft.add(part, q, zero_shot.exp_(), moments.mean)
            length += lengths.sum() / n
    means, weight, bias = fitted.discriminant(soft, length)
    weight = anchor * text + weight
    some = z[:: max(1, n // 8192)]
    confidence = classifier.log_probabilities(some).max(dim=1).values.exp().mean()
    temperature = matching_temperature(exact(some) @ weight + bias, confidence)
    return Head(weight / temperature, bias / temperature, soft.counts, means + moments.mean, temperature)


@dataclass
class SoftStatistics:
    """What equation (2) needs of the soft assignments; the statistics of two sets of rows add up.

    Attributes:
        counts: ``(c,)`` n_c = Σᵢ q_ic.
        squares: ``(c,)`` Σᵢ q_ic².
        sums: ``(c, d)`` Σᵢ q_ic zᵢ of the centred rows.
        support: ``(c,)`` Σᵢ q_ic p⁰_ic.
    """

    counts: Tensor
    squares: Tensor
    sums: Tensor
    support: Tensor

    @classmethod
    def empty(cls, moments: Moments, classes: int) -> SoftStatistics:
        """Statistics of no rows, on the device of ``moments``."""
        sums = moments.mean.new_zeros(classes, len(moments.mean))
        return cls(sums[:, 0].clone(), sums[:, 0].clone(), sums, sums[:, 0].clone())

    def add(self, z: Tensor, posterior: Tensor, zero_shot: Tensor, centre: Tensor) -> None:
        """Add the rows of ``z`` ``(n, d)`` with q = ``posterior`` and p⁰ = ``zero_shot``, both ``(n, c)``."""
        self.counts += posterior.sum(dim=0)
        self.squares += posterior.square().sum(dim=0)
        self.sums += posterior.T @ (exact(z) - centre)
        self.support += (posterior * zero_shot).sum(dim=0)


def prior_images(moments: Moments, soft: SoftStatistics) -> Tensor:
    """κ: how many images at the mean of all each class is given, the ratio of variance within classes to between.

    Of the variance seen between class means, Σᵢ q_ic²/n_c of the variance within is noise and is taken off. At least 2,
    at most 100.
    """
    counts = soft.counts.clamp_min(torch.finfo(soft.counts.dtype).tiny)
    total = moments.scatter.diagonal().sum() / moments.n
    seen = (soft.sums.square().sum(dim=1) / counts).sum() / moments.n
    noise = (soft.squares / counts).sum() / moments.n
    within = torch.minimum((total - seen) / (1 - noise).clamp_min(1e-3), total)
    between = seen - within * noise
    return torch.where(between > 0, within / between, 100.0).clamp(FEWEST_PRIOR_IMAGES, 100.0)


@dataclass
class Gaussians:
    """N(m_c, S) for each class with its log prior, about a common centre.

    Attributes:
        centre: ``(d,)`` mean of all rows.
        totals: ``(c,)`` n_c + κ.
        prior_images: ``()`` κ.
        means: ``(c, d)`` class means m_c about the centre.
        whiten: ``(d, d)`` R with RᵀR = S⁻¹, lower triangular.
        log_prior: ``(c,)`` γ log π_c.
    """

    centre: Tensor
    totals: Tensor
    prior_images: Tensor
    means: Tensor
    whiten: Tensor
    log_prior: Tensor

    @classmethod
    def fit(cls, moments: Moments, soft: SoftStatistics, shrinkage: float) -> Gaussians:
        """Estimate (2) from the moments of all rows and the soft statistics."""
        n, d = moments.n, len(moments.mean)
        kappa = prior_images(moments, soft)
        totals = soft.counts + kappa
        means = soft.sums / totals[:, None]
        cross = means.T @ soft.sums
        within = (moments.scatter - cross - cross.T + (means.T * soft.counts) @ means) / n
        spread = moments.scatter.diagonal().sum() / n
        # identical rows leave no spread within classes: keep a positive one that stays finite when inverted
        floor = torch.maximum(0.01 * spread, 1e-9 * (spread + moments.mean.square().sum())).clamp_min(1e-30)
        variance = torch.maximum(within.diagonal().sum(), floor) / d
        within = within * (1 - shrinkage)
        within.diagonal().add_(variance * (shrinkage + 1e-6))
        identity = torch.eye(d, dtype=within.dtype, device=within.device)
        whiten = torch.linalg.solve_triangular(torch.linalg.cholesky(within), identity, upper=False)
        prior = (soft.support + 1) / (soft.support.sum() + len(totals))
        strength = 2 + prior.square().sum().log() / math.log(len(totals))
        return cls(moments.mean, totals, kappa, means, whiten, strength * prior.log())

    def leave_one_out(self, z: Tensor, posterior: Tensor) -> tuple[Tensor, Tensor]:
        """log N(zᵢ; m_c without zᵢ, S) + γ log π_c ``(n, c)``, and ‖zᵢ − centre‖² in the metric S⁻¹ ``(n,)``."""
        means = self.means @ self.whiten.T
        white = (z - self.centre.to(z.dtype)) @ self.whiten.T.to(z.dtype)  # the dear product: in the rows' own dtype
        lengths = exact(white.square().sum(dim=1))
        distance = lengths[:, None] - 2 * (exact(white) @ means.T) + means.square().sum(dim=1)
        return self.log_prior - 0.5 * distance / (1 - posterior / self.totals).square(), lengths

    def discriminant(self, soft: SoftStatistics, length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Final means ``(c, d)``, weight ``(d, c)`` and bias ``(c,)`` of log N(z; m_c, S) + γ log π_c.

        Weight and bias take rows that are not centred. ``length`` is the mean of the lengths of :meth:`leave_one_out`:
        about ``length``/n_c of the squared length of an estimated mean is noise.
        """
        totals = soft.counts + self.prior_images
        means = soft.sums / totals[:, None]
        weight = self.whiten.T @ (self.whiten @ means.T)
        square = (means.T * weight).sum(dim=0) - length * soft.counts / totals.square()
        return means, weight, self.log_prior - 0.5 * square - self.centre @ weight


def matching_temperature(logits: Tensor, confidence: Tensor) -> Tensor:
    """The temperature ≥ 1 at which the mean of the largest softmax probability falls to ``confidence`` (bisection)."""
    low, high = torch.zeros_like(confidence), torch.full_like(confidence, 20.0)
    for _ in range(40):
        middle = (low + high) / 2
        sure = (logits / 2**middle).softmax(dim=1).max(dim=1).values.mean() > confidence
        low, high = torch.where(sure, middle, low), torch.where(sure, high, middle)
    return 2**low


def least_move(head: Head, classifier: ZeroShotClassifier) -> tuple[Tensor, Tensor]:
    """``(d, d)`` matrix and ``(d,)`` offset of the smallest move after which zero-shot says what ``head`` says."""
    text = classifier.scale * exact(classifier.text.to(head.weight.device))
    text = (text - text.mean(dim=0)).T
    weight = head.weight - head.weight.mean(dim=1, keepdim=True)
    inverse = torch.linalg.pinv(text, rtol=1e-6)
    matrix = (weight - text) @ inverse
    matrix.diagonal().add_(1.0)
    return matrix, (head.bias - head.bias.mean()) @ inverse
