"""LinearTCA: Test-time Correlation Alignment with a linear map (You, Lu and Huang, ICML 2025).

The most certain test embeddings, the *pseudo-source*, stand in for the source data. All embeddings are mapped so that
their mean and covariance match those of the pseudo-source:

    z′ = (z − μ_t) W + μ̂_s ,    WᵀΣ_tW = Σ̂_s .

1. **Certainty.** ω = ‖onehot(argmax p) − p‖² in the paper, the entropy of p in its public code (:func:`uncertainty`).
2. **Selection.** Each predicted class gives its k most certain embeddings (:func:`certain_rows`). The paper's
   equation takes the k most certain overall; its public code takes ⌊k·nᵢ/n₀⌋ of class i with the counts nᵢ of the
   **true** labels.
3. **Class shares.** The weight of a row is the share of its class divided by the number of rows of that class. The
   covariance of a mixture depends mostly on these shares. By default they are estimated: LinearTCA takes the shares
   with which its predictions agree best with those of ConditionalTCA.
4. **Map.** W is unique only up to a rotation, and accuracy depends on the rotation. The paper's closed form,
   U_tΛ_t^{1/2}Û_sᵀΛ̂_s^{-1/2}, does not satisfy its equation. :func:`monge` and :func:`coral` do, and
   :func:`gradient` is what the paper recommends in practice. Covariances are first shrunk as by Ledoit and Wolf.

============= ================================================================================ ============
shares        weight of each predicted class                                                   needs labels
============= ================================================================================ ============
numbers       as you give them                                                                 no
``estimated`` those with which predictions agree best with ConditionalTCA's                    no
``uniform``   equal for all classes                                                            no
``predicted`` as often as the classifier predicts it                                           no
``global``    the k most certain overall, whatever their class (the paper's equation)          no
``oracle``    ⌊k·nᵢ/n₀⌋ rows by the **true** labels (the public code: a label leak)            yes
============= ================================================================================ ============
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from clip_tca.adapters.base import Adapter, Shares, check_shares, class_log, log, share_vector
from clip_tca.adapters.conditional import fit_conditional
from clip_tca.adapters.statistics import (
    EvenSample,
    Moments,
    RunningMoments,
    ledoit_wolf,
    neighbour_sample,
    shrink,
    symmetric_product,
    weighted_moments,
)
from clip_tca.core.checks import check_number, check_positive, check_whole, one_of
from clip_tca.core.tensors import double

Uncertainty = Literal["distance", "entropy"]
Solver = Literal["monge", "coral", "gradient", "mean"]
Shrinkage = Literal["auto"] | float
SHARES = ("estimated", "uniform", "predicted", "global", "oracle")

LARGEST_K = 20
"""The largest k that ``"auto"`` gives."""
ALL_COUNTED, COUNTED_ROWS = 10_000, 3072
"""Classes are counted on all rows up to ALL_COUNTED, otherwise on COUNTED_ROWS evenly spread rows. Both are at least 8
per class."""
COUNTING_ROUNDS = 2
"""Rounds of the ConditionalTCA that counts the classes: a judge that has made up its mind less counts them better."""
TRIED_ROWS = 4096
"""The most rows of the pseudo-source that are used to compare shares."""
NO_SHRINKAGE = 1e-4
"""Below this shrinkage moments are summed in float64, because W inverts very small variances."""


# -- certainty and selection -------------------------------------------------------------------------------------------


def uncertainty(p: Tensor, kind: Uncertainty = "distance") -> Tensor:
    """Uncertainty ``(n,)`` of each row of the probabilities ``p`` ``(n, c)``.

    1 − max p is the sum of the other probabilities, so that rows remain ordered when max p rounds to one.
    """
    one_of("uncertainty", kind, get_args(Uncertainty))
    others = p.scatter(1, p.argmax(dim=1, keepdim=True), 0.0)
    rest = others.sum(dim=1)
    if kind == "distance":
        return rest.square() + others.square().sum(dim=1)
    return -(torch.xlogy(others, others).sum(dim=1) + (1 - rest) * torch.log1p(-rest))


def certain_rows(score: Tensor, group: Tensor, quota: Tensor) -> Tensor:
    """Indices of the ``quota[g]`` smallest scores of each group g, in order of arrival; ties go to the earlier row.

    Args:
        score: ``(n,)`` uncertainties.
        group: ``(n,)`` group of each row: its predicted class, or all zeros to select over everything.
        quota: ``(groups,)`` how many to take of each group; a smaller group is taken whole.
    """
    order = score.argsort(stable=True)
    order = order[group[order].argsort(stable=True)]
    sizes = torch.bincount(group, minlength=len(quota))
    first = sizes.cumsum(0) - sizes
    rank = torch.arange(len(score), device=score.device) - first[group[order]]
    return order[rank < quota[group[order]]].sort().values


class CertainRows:
    """The most certain rows of a stream, ``k`` for each group; ``everything`` keeps all rows.

    Attributes:
        rows: ``(m, d)`` embeddings kept.
        score: ``(m,)`` their uncertainty.
        group: ``(m,)`` their predicted class; zeros if there is one group.
        limit: ``(groups,)`` uncertainty from which a full group takes no more.
        predicted: ``(c,)`` how often each class was predicted.
        labels: ``(l,)`` true labels, for ``oracle`` only.
    """

    def __init__(self, k: int, classes: int, groups: int, kind: Uncertainty, everything: bool = False) -> None:
        """No rows yet."""
        self.k, self.classes, self.groups, self.kind, self.everything = k, classes, groups, kind, everything
        self.seen = 0

    def add(self, z: Tensor, p: Tensor, labels: Tensor | None = None) -> None:
        """Offer rows ``(n, d)`` with probabilities ``p`` ``(n, c)``."""
        score, predicted = uncertainty(p, self.kind), p.argmax(dim=1)
        if not self.seen:
            self.rows, self.score, self.group = z[:0], score[:0], predicted[:0]
            self.limit = score.new_full((self.groups,), float("inf"))
            self.predicted = predicted.new_zeros(self.classes)
            self.labels = predicted[:0]
        self.seen += len(z)
        group = predicted if self.groups > 1 else torch.zeros_like(predicted)
        self.predicted = self.predicted + torch.bincount(predicted, minlength=self.classes)
        self.labels = self.labels if labels is None else torch.cat([self.labels, labels])
        better = (score < self.limit[group]).nonzero()[:, 0]
        if not len(better):
            return
        rows, score = torch.cat([self.rows, z[better]]), torch.cat([self.score, score[better]])
        group = torch.cat([self.group, group[better]])
        if not self.everything:
            best = certain_rows(score, group, torch.full_like(self.limit, self.k, dtype=torch.int64))
            rows, score, group = rows[best], score[best], group[best]
            full = torch.bincount(group, minlength=self.groups) >= self.k
            worst = torch.zeros_like(self.limit).scatter_reduce(0, group, score, "amax")
            self.limit = torch.where(full, worst, float("inf"))
        self.rows, self.score, self.group = rows, score, group


# -- class shares ------------------------------------------------------------------------------------------------------


def row_weights(shares: Tensor, group: Tensor) -> Tensor:
    """Weights ``(m,)``, of sum one, of rows of the classes ``group``: the share of the class / its number of rows.

    Shares ``(c,)`` of classes without a row go to the others.
    """
    weights = (shares / torch.bincount(group, minlength=len(shares)).clamp_min(1))[group]
    total = weights.sum()
    return torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), 1 / max(1, len(weights)))


# -- the map -----------------------------------------------------------------------------------------------------------


def monge(sigma_t: Tensor, sigma_s: Tensor) -> Tensor:
    """The optimal-transport map between two Gaussians, Σ_t^{-1/2} (Σ_t^{1/2} Σ̂_s Σ_t^{1/2})^{1/2} Σ_t^{-1/2}.

    It is symmetric and moves embeddings least. If Σ_t = LLᵀ is far from singular, L^{-T} (LᵀΣ̂_sL)^{1/2} L^{-1} is
    the same map with one eigendecomposition instead of two.
    """
    factor, failed = torch.linalg.cholesky_ex(sigma_t)
    pivots = factor.diagonal()
    if not int(failed) and float(pivots.min()) > 1e-4 * float(pivots.max()):
        values, turn = torch.linalg.eigh(symmetric_product(factor, sigma_s @ factor))
        half = torch.linalg.solve_triangular(factor.T, turn * values.clamp_min(0.0).sqrt().sqrt(), upper=True).T
        return symmetric_product(half, half)
    root, inverse, vectors = _roots(sigma_t)
    frame = vectors * root
    middle, _, turn = _roots(frame.T @ sigma_s @ frame)
    half = ((vectors * inverse) @ turn * middle.sqrt()).T
    return symmetric_product(half, half) + _no_variance(inverse, vectors)


def coral(sigma_t: Tensor, sigma_s: Tensor) -> Tensor:
    """Whitening and colouring, Σ_t^{-1/2} Σ̂_s^{1/2}."""
    _, inverse, vectors = _roots(sigma_t)
    other, _, others = _roots(sigma_s)
    turned = (vectors * inverse) @ (vectors.T @ others)
    return (turned * other) @ others.T + _no_variance(inverse, vectors)


def gradient(sigma_t: Tensor, sigma_s: Tensor, steps: int = 20, lr: float = 1e-3) -> Tensor:
    """``steps`` of Adam from the identity on ‖WᵀΣ_tW − Σ̂_s‖²_F, with its gradient 4 Σ_tW (WᵀΣ_tW − Σ̂_s).

    Adam's own defaults (0.9, 0.999, 1e-8), in float32 as in the public code, without autograd: W differs by less than
    1e-6. Large covariances are scaled down to what float32 can square, and Adam's 1e-8 with them.
    """
    peak = torch.maximum(sigma_t.abs().max(), sigma_s.abs().max()).clamp_min(1.0)
    target, other = (sigma_t / peak).float(), (sigma_s / peak).float()
    least = (1e-8 / peak.square()).clamp_min(1e-30).float()
    w = torch.eye(len(target), dtype=target.dtype, device=target.device)
    first, second = torch.zeros_like(w), torch.zeros_like(w)
    for step in range(1, steps + 1):
        moved = target @ w
        slope = moved @ symmetric_product(w, moved).sub_(other).mul_(4)
        first.lerp_(slope, 1 - 0.9)
        second.mul_(0.999).addcmul_(slope, slope, value=1 - 0.999)
        root = (second / (1 - 0.999**step)).sqrt_().add_(least)
        w.addcdiv_(first, root, value=-lr / (1 - 0.9**step))
    return w.to(sigma_t.dtype)


CLOSED_FORM = {"coral": coral, "monge": monge}
"""Solvers that satisfy the equation, by the name that ``solver=`` takes."""


def _roots(sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Roots of the eigenvalues, their inverses (zero where there is no variance), and the eigenvectors."""
    values, vectors = torch.linalg.eigh((sigma + sigma.T) / 2)
    floor = values[-1].clamp_min(torch.finfo(values.dtype).tiny) * len(sigma) * torch.finfo(values.dtype).eps
    real = values > floor  # rounding leaves tiny eigenvalues where there should be zeros
    root = torch.where(real, values, 0.0).sqrt()
    return root, torch.where(real, root, 1.0).reciprocal() * real, vectors


def _no_variance(inverse: Tensor, vectors: Tensor) -> Tensor:
    """The projector on the directions without variance, which the exact maps leave as they are."""
    rest = (vectors * (inverse == 0)).T
    return symmetric_product(rest, rest)


# -- the adapter -------------------------------------------------------------------------------------------------------


@dataclass
class Observed:
    """What LinearTCA keeps of a stream."""

    moments: RunningMoments
    certain: CertainRows
    sample: EvenSample

    @property
    def full(self) -> bool:
        """Whether the sample has had to leave rows out."""
        return self.sample.full


@dataclass(eq=False, repr=False, kw_only=True)
class LinearTCA(Adapter):
    """Map all test embeddings linearly to the mean and covariance of the most certain ones.

    The defaults need no labels; eval/defaults.md has the evidence for them. The paper's method as printed is
    ``LinearTCA(g, k=20, shares="global", solver="gradient")``. The public code is
    ``LinearTCA(g, k=20, shares="oracle", uncertainty="entropy", solver="gradient")``.

    Examples:
        >>> labels = LinearTCA(g).fit(z).predict(z)

    Attributes:
        classifier: g, a zero-shot classifier or any other linear one.
        k: Embeddings of each predicted class in the pseudo-source (overall for ``global``, of class 0 for ``oracle``).
            ``"auto"`` is a fifth of the largest predicted class, from 10 to 20.
        shares: How frequent the classes are. If you know it, give a number for each class or ``{class name: number}``.
            Otherwise ``"estimated"``, ``"uniform"``, ``"predicted"`` (as often as g predicts them), ``"global"`` (the
            paper's equation: the k most certain embeddings overall) or ``"oracle"`` (by true labels).
        uncertainty: ``"distance"`` (the paper) or ``"entropy"`` (its public code).
        solver: ``"monge"``, ``"coral"``, ``"gradient"`` or ``"mean"`` (shift only).
        shrinkage: Shrinkage of both covariances, for ``monge`` and ``coral``: ``"auto"`` (Ledoit and Wolf) or a number
            from 0 to 1.
        steps: Adam steps of ``gradient``.
        lr: Learning rate of ``gradient``.
        normalize: Scale embeddings to unit length first. The default is True for prompts and False for other heads.
        refresh: New images after which a stream solves again, or ``"auto"``.

    Learned attributes:
        W_, offset_: ``(d, d)`` and ``(d,)``: ``transform`` is zW + offset.
        weight_, bias_: ``(d, c)`` and ``(c,)`` of the adapted classifier.
        mean_, covariance_: Mean and shrunk covariance of the test embeddings.
        predicted_: ``(c,)`` how often g predicts each class.
        pseudo_source_, pseudo_source_weights_, uncertainty_: ``(m, d)``, ``(m,)`` and ``(m,)`` of the pseudo-source.
        pseudo_source_mean_, pseudo_source_covariance_: Mean and shrunk covariance of these rows.
        pseudo_source_counts_, shares_: ``(c,)`` number of rows and weight of each class in the pseudo-source.
        n_seen_: Number of embeddings seen.
    """

    mean_: Tensor = field(init=False)
    covariance_: Tensor = field(init=False)
    predicted_: Tensor = field(init=False)
    pseudo_source_: Tensor = field(init=False)
    pseudo_source_weights_: Tensor = field(init=False)
    pseudo_source_counts_: Tensor = field(init=False)
    pseudo_source_mean_: Tensor = field(init=False)
    pseudo_source_covariance_: Tensor = field(init=False)
    uncertainty_: Tensor = field(init=False)
    shares_: Tensor = field(init=False)

    k: Literal["auto"] | int = "auto"
    shares: Shares = "estimated"
    uncertainty: Uncertainty = "distance"
    solver: Solver = "monge"
    shrinkage: Shrinkage = "auto"
    steps: int = 20
    lr: float = 1e-3

    @property
    def uses_labels(self) -> bool:
        """Whether ``shares`` is ``"oracle"``, which counts the true labels of the test set."""
        return self._share_mode == "oracle"

    def check_options(self) -> None:
        """Raise ValueError for an option that is not allowed."""
        super().check_options()
        check_whole("k", self.k, also="auto")
        check_shares(self.shares, self.g, SHARES)
        one_of("uncertainty", self.uncertainty, get_args(Uncertainty))
        one_of("solver", self.solver, get_args(Solver))
        check_number("shrinkage", self.shrinkage, 0, 1, also="auto")
        check_whole("steps", self.steps, 0)
        check_positive("lr", self.lr)

    def _start(self) -> Observed:
        c, mode = self.g.n_classes, self._share_mode
        in_double = self.solver in CLOSED_FORM and self.shrinkage != "auto" and self.shrinkage < NO_SHRINKAGE
        k = LARGEST_K if self.k == "auto" else int(self.k)
        certain = CertainRows(k, c, 1 if mode == "global" else c, self.uncertainty, everything=mode == "oracle")
        return Observed(RunningMoments(in_double), certain, EvenSample(max(ALL_COUNTED, 8 * c)))

    def _observe(self, observed: Observed, z: Tensor, logits: Tensor | None, labels: Tensor | None) -> None:
        g = self.g
        scores = torch.addmm(g.bias.to(z), z, g.weight.to(z).T) if logits is None else logits
        observed.certain.add(z, double(scores).softmax(dim=1), labels)
        observed.moments.add(z)
        if self._share_mode == "estimated" or not self.linear:
            observed.sample.add(z)

    def _solve(self, observed: Observed) -> dict[str, Tensor]:
        """Select, weigh, solve. Return W and offset of z′ = zW + offset, and what they were computed from."""
        certain, target, g, mode = observed.certain, observed.moments.total(), self.g, self._share_mode
        sigma = self._shrunk(target)
        chosen = certain_rows(certain.score, certain.group, self._quota(certain))
        rows, group = certain.rows[chosen], certain.group[chosen]
        if mode == "global":
            group = g.predict(rows)
        counts = torch.bincount(group, minlength=g.n_classes)
        if mode == "estimated":
            shares = self._estimated_shares(observed.sample, rows, group, target.mean, sigma)
        elif mode == "given":
            shares = share_vector(self.shares, g)
        else:  # counts give every row the same weight
            shares = {"predicted": certain.predicted, "uniform": torch.ones_like(counts)}.get(mode, counts)
        weights = row_weights(shares.to(target.mean), group)
        source = weighted_moments(rows, weights) if len(rows) else target
        w = self._map(sigma, source) if len(rows) > 1 else torch.eye(g.dim).to(sigma)
        offset, weight = source.mean - target.mean @ w, g.weight.to(w)
        return {
            "W_": w,
            "offset_": offset,
            "weight_": w @ weight.T,
            "bias_": offset @ weight.T + g.bias.to(w),
            "mean_": target.mean,
            "covariance_": sigma,
            "predicted_": certain.predicted,
            "pseudo_source_": rows,
            "pseudo_source_weights_": weights,
            "pseudo_source_counts_": counts,
            "pseudo_source_mean_": source.mean,
            "pseudo_source_covariance_": self._shrunk(source),
            "uncertainty_": certain.score[chosen],
            "shares_": torch.zeros_like(counts, dtype=weights.dtype).index_add(0, group, weights),
        }

    def _estimated_shares(self, sample: EvenSample, rows: Tensor, group: Tensor, mean: Tensor, sigma: Tensor) -> Tensor:
        """Shares ``(c,)`` with which predictions of an even sample agree best with those of ConditionalTCA.

        There are six candidates: equal shares, the class counts of ConditionalTCA, and four successive corrections of
        these, each of which multiplies a share by the ratio of ConditionalTCA's to LinearTCA's count of that class.
        ``rows`` ``(m, d)`` and ``group`` ``(m,)`` are the pseudo-source, ``mean`` and ``sigma`` are of all embeddings.
        """
        g, c = self.g, self.g.n_classes
        z = sample.rows(max(COUNTED_ROWS, 8 * c) if sample.full else None)
        log_p = g.logits(z).log_softmax(dim=1)
        fitted = fit_conditional(z, log_p, rounds=COUNTING_ROUNDS)
        scores = fitted.anchor.to(z) * log_p + z @ fitted.weight.to(z).T + fitted.bias.to(z)
        judge = scores.argmax(dim=1)

        # candidates are compared in the span of the weights of g, which is fast; Adam needs all axes
        weight, bias = double(g.weight.to(z.device)), double(g.bias.to(z.device))
        basis = torch.eye(g.dim).to(sigma) if self.solver == "gradient" else torch.linalg.qr(weight.to(sigma).T).Q
        weight, mean, sigma = weight @ basis, mean @ basis, basis.T @ sigma @ basis
        some = neighbour_sample(rows, TRIED_ROWS)
        source, group, z = double(rows[some]) @ basis, group[some], z @ basis.to(z) - mean.to(z)

        def predict(shares: Tensor) -> Tensor:
            m = weighted_moments(source, row_weights(shares, group))
            turned, offset = self._map(sigma, m) @ weight.T, torch.addmv(bias, weight, m.mean)
            return torch.addmm(offset.to(z), z, turned.to(z)).argmax(dim=1)

        counts = double(torch.bincount(judge, minlength=c))
        candidates = [torch.ones_like(counts), counts + 0.5]
        predictions = [predict(shares) for shares in candidates]
        for _ in range(4):
            ratio = (counts + 1) / (double(torch.bincount(predictions[-1], minlength=c)) + 1)
            candidates.append(candidates[-1] * ratio)
            predictions.append(predict(candidates[-1]))
        agreed = torch.stack([double(predicted == judge).mean() for predicted in predictions])
        agreed[1] -= 0.005  # the uncorrected counts have to win clearly
        return torch.stack(candidates)[agreed.argmax()]

    @property
    def _share_mode(self) -> str:
        """The option ``shares`` as a word."""
        return self.shares if isinstance(self.shares, str) else "given"

    def _quota(self, certain: CertainRows) -> Tensor:
        """How many rows to take of each group ``(groups,)``."""
        k = certain.k
        if self.k == "auto":
            k = min(k, max(10, int(certain.predicted.max()) // 5))
        if self._share_mode != "oracle":
            return torch.full_like(certain.limit, k, dtype=torch.int64)
        counts = torch.bincount(certain.labels, minlength=self.g.n_classes)
        if int(counts[0]) == 0:
            raise ValueError("labels: none is 0, and the public code counts every class against class 0; reorder them")
        return k * counts // counts[0]

    def _shrunk(self, m: Moments) -> Tensor:
        """The covariance from which W is computed, after shrinkage."""
        shrinkage = self.shrinkage if self.solver in CLOSED_FORM else 0.0
        return shrink(m.covariance, ledoit_wolf(m) if shrinkage == "auto" else shrinkage)

    def _map(self, sigma: Tensor, source: Moments) -> Tensor:
        """W for the covariance of the test embeddings, as W takes it, and the moments of the pseudo-source."""
        if self.solver == "mean":
            return torch.eye(len(sigma), dtype=sigma.dtype, device=sigma.device)
        if self.solver == "gradient":
            return gradient(sigma, self._shrunk(source), int(self.steps), float(self.lr))
        return CLOSED_FORM[self.solver](sigma, self._shrunk(source))

    def _warn(self) -> None:
        name, predicted, n, d = type(self).__name__, self.predicted_, self.n_seen_, self.g.dim
        chosen, never = len(self.pseudo_source_), int((predicted == 0).sum())
        missing = int(((predicted > 0) & (self.pseudo_source_counts_ == 0)).sum())
        if never:
            class_log.warning("%s: %d of %d classes are never predicted: no pseudo-source", name, never, len(predicted))
        if self._share_mode == "global" and missing:
            message = "%s: the %d most certain leave out %d predicted classes; try a larger k"
            class_log.warning(message, name, chosen, missing)
        if chosen == 0 or (chosen == n and self._share_mode in ("global", "oracle")):
            log.warning("%s: the pseudo-source is empty or all of the %d embeddings; nothing changes", name, n)
        if n <= d:
            log.warning("%s: %d embeddings say little about a covariance in %d dimensions", name, n, d)
