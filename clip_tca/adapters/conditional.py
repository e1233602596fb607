"""ConditionalTCA: align each class, not the mixture of all classes.

The covariance of a test set is Σ = Σ_within + Σ_between, and Σ_between depends on how often each class occurs.
Aligning Σ aligns class proportions too. ConditionalTCA models centred rows x class by class, x | c ~ N(m_c, S) with one
S, and takes the class probabilities p of g as a second witness. A few rounds of EM start at g:

    q_ic ∝ exp( λ log p_ic + log π_c − β/2 · D_ic ),    D_ic = (x_i − m_c)ᵀ S⁻¹ (x_i − m_c)                     (1)
    m_c = Σ_i q_ic x_i / (n_c + κ),    n_c = Σ_i q_ic,    S = within-class covariance, shrunk                    (2)

xᵀS⁻¹x is the same for all classes, so the scores of a row are linear in x and log p; one temperature divides them. The
ideas, in the order of the code (:class:`Constants` has their numbers, eval/ablation.md what each is worth):

1. **Neighbours.** Pictures side by side mostly share a class. The temperature t at which g best predicts what it says
   of the nearest neighbour shows how over-confident g is; the differences of neighbours give the first S.
2. **Shrinkage.** κ, the ratio of the variance within to that between classes, pulls class means to the common mean. A
   row does not vote for its own mean: without it, x_i − m_c becomes (x_i − m_c) / (1 − q_ic/(n_c+κ)) (leave one out).
3. **Trust.** β = n / (n + 20 √(c·c′) log c) grows with the images per class; c′ is the number of classes that seem to
   occur. If g is on average sure of the predictions that would change, g is kept.
4. **Prior.** log π_c = γ (ψ(s_c + ½) − ψ(Σs + c/2)), the posterior mean under Jeffreys' prior. s_c counts the rows in
   which g and the Gaussians agree on c, each by its squared probability: many small probabilities of an absent class
   are no image of it. γ grows with the imbalance of what they agree on.
5. **Answers**, where a person has named rows: a kernel correction of g, known rows in (2), and once more the correction
   for what is left.

Rows may come from another encoder than g's scores: ``fit(z, logits=…)``. Related work is in docs/method.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from clip_tca.adapters.base import Shares, check_shares, log, share_vector
from clip_tca.adapters.paired import PairedAdapter
from clip_tca.adapters.statistics import (
    EvenSample,
    inverse_of,
    matching_temperature,
    nearest,
    neighbour_sample,
    neighbour_temperature,
)
from clip_tca.core.checks import check_number, check_whole
from clip_tca.core.tensors import double

ROWS_AT_ONCE = 1024


class Constants(NamedTuple):
    """Every number of the method. ``eval/ablation.py`` prints what each is worth, but for the last three."""

    fewest: int = 8  # images, below which g is kept; and images per class, below which neighbours are of other classes
    neighbours: int = 3  # of a row, for the first covariance: the nearest alone gives a noisier one
    sample: int = 2048  # rows among which neighbours are searched, or ``fewest`` a class: more change nothing
    calm: float = 2.0  # temperature of g that is left to it: neighbours share its errors, so they show too little
    start: float = 2.0  # EM starts from g at t to this power, as t is too small; at t itself in another encoder's space
    least_shrinkage: float = 0.3  # of S towards a multiple of the identity; d / (2n + d) if that is more
    least_kappa: float = 2.0  # a class mean is worth two images less, at least
    images: float = 20.0  # images per class, times log c, at which g and the Gaussians count alike
    strongest_prior: float = 2.0  # γ for clearly unequal classes: g's errors spread images over absent classes
    prior_slope: float = 30.0  # γ is this times the squared imbalance: errors of g make equal classes look unequal
    sure: float = 0.6  # mean confidence of g, at t, in what would change, above which g is kept
    settled: float = 1e-3  # EM stops when no class count changes by as many images: for speed
    answer_counts: float = 3.0  # an answered row weighs as much as three others in its class mean
    answer_scale: float = 3.0  # of the kernel of the correction


class GaussianFit(NamedTuple):
    """Scores of a row z are ``anchor`` · log p + z · ``weight``ᵀ + ``bias``; the rest says how they came about."""

    anchor: Tensor
    weight: Tensor  # (c, d)
    bias: Tensor  # (c,)
    counts: Tensor  # (c,) n_c
    means: Tensor  # (c, d)
    overconfidence: Tensor  # what the logits of g were divided by
    trust: Tensor  # β; 0 if g was kept
    temperature: Tensor  # what the scores were divided by


def fit_conditional(
    z: Tensor,
    log_p: Tensor,
    *,
    own_space: bool = True,
    shares: Tensor | None = None,
    answers: Tensor | None = None,
    anchor: float = 1.0,
    rounds: int = 8,
    constants: Constants = Constants(),  # noqa: B008 (it never changes)
) -> GaussianFit:
    """Equations (1) and (2) for rows ``z`` ``(n, d)`` with log-probabilities ``log_p`` ``(n, c)``.

    ``own_space`` says whether g looks at the same rows. ``shares`` ``(c,)`` are those of the classes if they are known,
    and ``answers`` ``(n,)`` hold a class where a person has named it, else -1.
    """
    (n, d), c, k, mean = z.shape, log_p.shape[1], constants, double(z).mean(dim=0)
    x, one = z - mean.to(z), torch.ones_like(mean[0])
    log_p = log_p.to(z).log_softmax(dim=1)
    weight, bias = mean.new_zeros(c, d), mean.new_zeros(c)
    none = torch.zeros(0, dtype=torch.int64, device=z.device)
    known, told = (none, none) if answers is None else ((answers >= 0).nonzero()[:, 0], answers[answers >= 0])
    truth = one_hot(told, c)
    if len(known):  # 5. answers
        weight, bias = correction(x[known], log_p[known], told, k.answer_scale)
        log_p = (log_p + x @ weight.to(x).T + bias.to(x)).log_softmax(dim=1)
    if n < k.fewest:
        q = double(log_p.exp())
        means = q.T @ double(z) / q.sum(dim=0).clamp_min(1e-30)[:, None]
        return GaussianFit(one, weight, bias - weight @ mean, q.sum(dim=0), means, one, 0 * one, one)

    # 1. neighbours
    some = neighbour_sample(x, max(k.sample, k.fewest * c))
    near = nearest(x[some], k.neighbours)
    t = neighbour_temperature(log_p[some[: k.sample]], log_p[some[near[: k.sample, 0]]])
    t = torch.where(n >= k.fewest * occurring(double(log_p.exp()).sum(dim=0)), t, one)
    excess = (t / k.calm).clamp_min(1.0)
    log_p, t = (log_p / excess.to(z)).log_softmax(dim=1), t / excess
    p, q = log_p.exp(), (log_p / t.pow(k.start if own_space else 1.0).to(z)).softmax(dim=1)

    # along the principal axes the scatter of all rows is diagonal
    scatter, axes = torch.linalg.eigh(double(x.T @ x))
    scatter, x = scatter.clamp_min(0), x @ axes.to(x)
    total = scatter.sum() / n
    floor = torch.maximum(0.01 * total, 1e-9 * (total + mean.square().sum())).clamp_min(1e-30)
    a = max(k.least_shrinkage, d / (2 * n + d))
    gaps = torch.cat([x[some] - x[some[column]] for column in near.T])
    local = double(gaps.T @ gaps) / double(gaps.square().sum()).clamp_min(1e-300)
    scores, blocks = torch.empty_like(q), [slice(i, i + ROWS_AT_ONCE) for i in range(0, n, ROWS_AT_ONCE)]
    counts = mean.new_zeros(c)
    for step in range(rounds):
        q[known] = truth.to(q)
        # 2. equation (2), with S⁻¹ = diag(inverse) + factor factorᵀ
        before, counts = counts, double(q.sum(dim=0))
        if bool((counts - before).abs().max() < k.settled):
            break
        squares, sums = double(torch.stack([q[rows].square().sum(dim=0) for rows in blocks])).sum(0), double(q.T @ x)
        noise = (squares / counts.clamp_min(1e-300)).sum() / n  # the share of the variance within seen between means
        seen = (sums.square().sum(dim=1) / counts.clamp_min(1e-300)).sum() / n
        within = torch.minimum((total - seen) / (1 - noise).clamp_min(1e-3), total)
        between = seen - within * noise
        kappa = torch.where(between > 0, within / between, 100.0).clamp(k.least_kappa, 100.0)
        means = sums / (counts + kappa)[:, None]
        removed = ((counts + 2 * kappa) / n).sqrt()[:, None] * means
        variance = torch.maximum(total - removed.square().sum(), floor) / d
        ridge = (a + 1e-6) * variance
        if step == 0:
            inverse, factor = inverse_of(0 * scatter + ridge, (1 - a) * variance * d * local)
        else:  # a little less is removed, so that rounding can't make S indefinite
            inverse, factor = inverse_of(scatter * (1 - a) / n + ridge, removed=removed * (1 - a) ** 0.5 * (1 - 2e-6))
        more = (k.answer_counts - 1) * double(truth)
        means = (sums + more.T @ double(x[known])) / (counts + more.sum(dim=0) + kappa)[:, None]
        toward = means * inverse + means @ factor @ factor.T  # S⁻¹m_c
        lengths, own_share = (toward * means).sum(dim=1).to(x), (counts + kappa).to(x)
        # 3. trust
        trust = n / (n + k.images * math.log(c) * (c * occurring(counts)).sqrt())
        half, agreed, support = (trust / 2).to(x), counts.new_zeros(c), counts.new_zeros(c)
        inverse_, factor_, toward_ = inverse.to(x), factor.to(x), toward.to(x).T
        for rows in blocks:
            length = x[rows].square() @ inverse_ + (x[rows] @ factor_).square_().sum(dim=1)
            gap = torch.addmm(lengths, x[rows], toward_, alpha=-2).add_(length[:, None])
            gap.div_((1 - q[rows] / own_share).square_())  # leave one out
            agreed += torch.sub(log_p[rows], gap, alpha=0.5).softmax(dim=1).mul_(p[rows]).sum(dim=0)
            torch.sub(log_p[rows] * anchor, gap.mul_(half), out=scores[rows])
            support += scores[rows].softmax(dim=1).mul_(p[rows]).square_().sum(dim=0)
        # 4. prior
        if shares is None:
            gamma = (k.prior_slope * imbalance(agreed).square()).clamp_max(k.strongest_prior)
            log_prior = gamma * (torch.digamma(support + 0.5) - torch.digamma(support.sum() + c / 2))
        else:
            expected = double(shares) / double(shares).sum() * n + torch.where(shares > 0, 0.5, 1e-9)
            log_prior = (expected / expected.sum()).log()
        for rows in blocks:  # equation (1)
            torch.softmax(scores[rows].add_(log_prior.to(x)), dim=1, out=q[rows])

    # the linear classifier; of the squared length of an estimated mean, E[xᵀS⁻¹x] / n_c is noise
    counts = double(q.sum(dim=0))
    noise = (scatter @ (inverse + factor.square().sum(dim=1)) / n) * counts / (counts + kappa).square()
    to_add = trust * toward @ axes.T
    offset = log_prior - trust / 2 * ((toward * means).sum(dim=1) - noise)
    weight, bias = anchor * weight / excess + to_add, anchor * bias / excess + offset
    shown = torch.cat([some, known])
    raw = anchor * log_p[shown] + x[shown] @ (to_add @ axes).to(x).T + offset.to(x)

    # one temperature: as sure, on average, as neighbours say that g is right
    near, m = near[:, 0], len(some)
    modest = agreement(log_p[some], log_p[some], near)
    out = matching_temperature(raw[:m], modest)
    raw, weight, bias = raw / out.to(x), weight / out, bias / out
    if len(known):  # 5. what the answers still correct
        more, offset = correction(x[known], raw[m:].log_softmax(dim=1), told, k.answer_scale)
        raw, weight, bias = raw + x[shown] @ more.to(x).T + offset.to(x), weight + more @ axes.T, bias + offset
    if not own_space:  # labels fitted in another encoder's space are right more often than those of g
        last = matching_temperature(raw[:m], (modest * agreement(raw[:m], log_p[some], near)).sqrt())
        weight, bias, out = weight / last, bias / last, out * last

    # 3. g is kept if it is sure of what would change
    changed = q.argmax(dim=1) != p.argmax(dim=1)
    confidence = (log_p / t.to(x)).softmax(dim=1).amax(dim=1)
    keep = (double(confidence * changed).sum() > k.sure * changed.sum()) & (
        own_space and shares is None and not len(known)
    )
    means, bias = means @ axes.T + mean, bias - weight @ mean
    fitted = (anchor / excess / out, weight, bias, counts, means, excess, trust, out)
    kept = (one, 0 * weight, 0 * bias, counts, means, one, 0 * one, one)
    return GaussianFit(*(torch.where(keep, old, new) for old, new in zip(kept, fitted, strict=True)))


def occurring(counts: Tensor) -> Tensor:
    """How many classes there seem to be: the inverse Simpson index of the counts ``(c,)``, at least 2."""
    return (counts.sum().square() / counts.square().sum()).clamp_min(2.0)


def imbalance(support: Tensor) -> Tensor:
    """0 for equally frequent classes, 1 for a single one; what chance adds is taken off. ``support`` ``(c,)``."""
    total = support.sum() + len(support)
    squares = ((support + 1) / total).square().sum()
    squares = ((squares - 2 / total) / (1 - 2 / total)).clamp_min(1 / len(support))
    return 1 + squares.log() / math.log(len(support))


def agreement(scores: Tensor, log_p: Tensor, near: Tensor) -> Tensor:
    """How often a row and its nearest one have one label; where a row is alone in its class, the confidence of g."""
    label = scores.argmax(dim=1)
    alone = label.new_zeros(scores.shape[1]).index_add_(0, label, torch.ones_like(label))[label] == 1
    return double(torch.where(alone, log_p.amax(dim=1).exp(), (label == label[near]).to(log_p))).mean()


def correction(x: Tensor, log_p: Tensor, answers: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Weight ``(c, d)`` and bias ``(c,)`` to add to the scores of g, by ridge logistic regression on answered rows."""
    x, log_p = double(x), double(log_p)
    with torch.inference_mode(False), torch.enable_grad():
        kernel, offset = scale**2 * x @ x.T + 1, log_p.clone()
        alpha = torch.zeros_like(log_p).requires_grad_()
        search = torch.optim.LBFGS([alpha], max_iter=30, line_search_fn="strong_wolfe")

        def closure() -> float:
            search.zero_grad()
            added = kernel @ alpha
            loss = cross_entropy(offset + added, answers, reduction="sum") + (alpha * added).sum() / 2
            loss.backward()
            return float(loss.detach())

        search.step(closure)
    return scale**2 * alpha.detach().T @ x, alpha.detach().sum(dim=0)


@dataclass(eq=False, repr=False, kw_only=True)
class ConditionalTCA(PairedAdapter):
    """Class-conditional correlation alignment: soft class means and one shared, shrunk within-class covariance.

    Examples:
        >>> labels = ConditionalTCA(g).fit(z).predict(z)
        >>> labels = ConditionalTCA().fit(rows, logits=scores).predict(rows, logits=scores)

    Attributes:
        classifier: g, a zero-shot classifier or any other linear one. It may be left out if ``logits`` are given.
        shares: How frequent the classes are, the prior π: a number for each class or ``{class name: number}`` if you
            know it, otherwise ``"estimated"``, ``"uniform"`` or ``"predicted"`` (as g predicts).
        anchor: λ, the weight of the log-probabilities of g.
        rounds: Number of EM rounds.
        memory: Rows kept for the estimate, evenly spread; ``"auto"`` is 8192, or 32 for each class if that is more.
        normalize, refresh: As for every adapter; with logits, None scales rows to unit length.

    Learned attributes:
        W_, offset_: ``(d, d)`` and ``(d,)``: ``transform`` is zW + offset. Not with logits.
        weight_, bias_: ``(d, c)``, with logits ``(d + c, c)`` for rows beside them, and ``(c,)`` of the classifier.
        counts_, means_: ``(c,)`` soft class counts in the sample and ``(c, d)`` class means.
        temperature_, overconfidence_, trust_: What scores were divided by, those of g before, and β, 0 if g was kept.
    """

    counts_: Tensor = field(init=False)
    means_: Tensor = field(init=False)
    overconfidence_: Tensor = field(init=False)
    trust_: Tensor = field(init=False)
    temperature_: Tensor = field(init=False)

    shares: Shares = "estimated"
    anchor: float = 1.0
    rounds: int = 8
    memory: Literal["auto"] | int = "auto"

    _growth = 0.5

    def check_options(self) -> None:
        """Raise ValueError for an option that is not allowed."""
        super().check_options()
        check_shares(self.shares, self.g, ("estimated", "uniform", "predicted"))
        check_number("anchor", self.anchor)
        check_whole("rounds", self.rounds)
        check_whole("memory", self.memory, 2, also="auto")

    def _start(self) -> EvenSample:
        return EvenSample(max(8192, 32 * self.g.n_classes) if self.memory == "auto" else self.memory)

    def _observe(self, observed: EvenSample, z: Tensor, logits: Tensor | None, labels: Tensor | None) -> None:
        observed.add(z)

    def _solve(self, observed: EvenSample) -> dict[str, Tensor]:
        rows, g, d = observed.rows(), self.g, self._features
        log_p = g.logits(rows).log_softmax(dim=1)
        own, shares = self._head is None, self._shares(log_p)
        fitted = fit_conditional(
            rows[:, :d], log_p, own_space=own, shares=shares, anchor=self.anchor, rounds=self.rounds
        )
        learned = {f"{name}_": value for name, value in fitted._asdict().items() if name != "anchor"}
        if not own:
            weight = torch.cat([fitted.weight, fitted.anchor * torch.eye(g.n_classes).to(fitted.weight)], dim=1)
            return {**learned, "weight_": weight.T.contiguous()}
        weight = fitted.weight + fitted.anchor * double(g.weight.to(rows.device))
        bias = fitted.bias + fitted.anchor * double(g.bias.to(rows.device))
        matrix, offset = g.least_move(weight, bias)
        return {**learned, "W_": matrix, "offset_": offset, "weight_": weight.T.contiguous(), "bias_": bias}

    def _shares(self, log_p: Tensor) -> Tensor | None:
        """Class shares ``(c,)``; None if they are estimated."""
        if not isinstance(self.shares, str):
            return share_vector(self.shares, self.g)
        if self.shares == "predicted":
            return torch.bincount(log_p.argmax(dim=1), minlength=log_p.shape[1])
        return torch.ones_like(log_p[0]) if self.shares == "uniform" else None

    def _warn(self) -> None:
        if (images := len(self._fitted().observed.rows())) < (fewest := Constants().fewest):
            log.warning("ConditionalTCA: %d images; with fewer than %d g is kept as it is", images, fewest)
