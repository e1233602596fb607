"""ConditionalTCA, plain: equations (1) and (2) and the safeguards, nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import torch
from torch import Tensor

from clip_tca import LinearClassifier

KEPT = 0.65
SAFEGUARDS = (
    "over-confidence",
    "start temperature",
    "first covariance",
    "prior",
    "cap",
    "artefact",
    "leave one out",
    "calibrated trust",
    "doubt of g",
    "growing trust",
    "keep g",
)


def root(f: Callable[[float], float], lo: float, hi: float, steps: int = 30) -> float:
    """Where a falling function crosses zero, by bisection."""
    if f(lo) <= 0:
        return lo
    if f(hi) > 0:
        return hi
    for _ in range(steps):
        mid = (lo + hi) / 2
        lo, hi = (mid, hi) if f(mid) > 0 else (lo, mid)
    return (lo + hi) / 2


def imbalance(support: Tensor) -> Tensor:
    """0 for equally frequent classes, 1 for a single one; chance is taken off."""
    total = support.sum() + len(support)
    squares = ((support + 1) / total).square().sum()
    squares = ((squares - 2 / total) / (1 - 2 / total)).clamp_min(1 / len(support))
    return 1 + squares.log() / math.log(max(2, len(support)))


def spread_order(z: Tensor) -> Tensor:
    """Rows by their first coordinate, equal ones by their sum."""
    order = z.sum(1).argsort(stable=True)
    return order[z[order, 0].argsort(stable=True)]


def fit(
    z: Tensor,
    g: LinearClassifier,
    shares: Tensor | None = None,
    anchor: float = 1.0,
    rounds: int = 8,
    without: Collection[str] = (),
) -> tuple[Tensor, Tensor]:
    """Weight ``(c, d)`` and bias ``(c,)`` of the adapted classifier, from unlabeled prepared rows ``(n, d)``.

    ``without`` leaves safeguards out, by the names in ``SAFEGUARDS``: eval/ablation.py measures what each is worth.
    """
    if unknown := set(without) - set(SAFEGUARDS):
        raise ValueError(f"without: {sorted(unknown)}; one of {', '.join(SAFEGUARDS)}")
    n, d = z.shape
    w, b = g.weight.to(z), g.bias.to(z)
    c = len(b)
    log_p = (z @ w.T + b).log_softmax(1)
    if n < 8:
        return w, b
    x = z - z.mean(0)
    scatter, a = x.T @ x, max(0.3, d / (2 * n + d))

    # what the neighbours say: the temperature of g, and the first covariance
    order = spread_order(z)[:: -(-n // max(512, 8 * c))]
    near = torch.cdist(x[order], x[order]).fill_diagonal_(math.inf).topk(3, largest=False).indices
    lp = log_p[order]
    wanted = (lp[near[:, 0]].exp() * lp).sum()
    surplus = lambda s: float(((lp / math.exp(s)).softmax(1) * lp).sum() - wanted)  # noqa: E731
    t = math.exp(root(surplus, 0.0, math.log(1e4)))
    excess = 1.0 if "over-confidence" in without else max(1.0, t / 2)
    told = t / excess if n >= 8 * c else 1.0
    log_p = (log_p / excess).log_softmax(1)
    p, named = log_p.exp(), log_p.argmax(1)
    gaps = (x[order][:, None] - x[order][near]).reshape(-1, d)
    local = gaps.T @ gaps
    local = local / local.trace()

    def estimate(q: Tensor, shape: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Equation (2): counts, kappa, means and S^-1."""
        counts, sums = q.sum(0), q.T @ x
        safe = counts.clamp_min(1e-30)
        total, seen = scatter.trace() / n, (sums.square().sum(1) / safe).sum() / n
        noise = (q.square().sum(0) / safe).sum() / n
        within = torch.minimum((total - seen) / (1 - noise).clamp_min(1e-3), total)
        between = seen - within * noise
        kappa = (within / between if between > 0 else torch.tensor(100.0)).to(z).clamp(2.0, 100.0)
        means = sums / (counts + kappa)[:, None]
        s = (scatter - means.T @ ((counts + 2 * kappa)[:, None] * means)) / n
        variance = torch.maximum(s.trace(), 0.01 * total) / d
        s = shape * variance * d if shape is not None else s
        s = (1 - a) * s + (a + 1e-6) * variance * torch.eye(d, dtype=s.dtype)
        return counts, kappa, means, torch.linalg.inv(s)

    sample = order[:: -(-len(order) // 512)]
    doubt = 0.0 if "doubt of g" in without else (t / excess - 1) ** 3 * min(1.0, n / (30 * c))

    def calibrated(gap: Tensor) -> float:
        """The weight at which the Gaussians alone best predict the labels of g."""
        density, wanted = -gap[sample] / 2, p[sample]
        density = density - density.amax(1, keepdim=True)

        def surplus(s: float) -> float:
            return float(((wanted - (math.exp(s) * density).softmax(1)) * density).sum())

        return math.exp(root(surplus, math.log(1e-3), 0.0))

    def run(rounds: int, prior: Callable[[Tensor], Tensor | float], ramp: float, full: bool) -> tuple:
        q = p if "start temperature" in without else (log_p / told**3).softmax(1)
        for step in range(rounds):
            shape = local if step == 0 and "first covariance" not in without else None
            counts, kappa, means, precision = estimate(q, shape)
            log_prior = prior((q * p).sum(0))
            gap = ((x @ precision) * x).sum(1)[:, None] - 2 * x @ precision @ means.T
            gap = gap + ((means @ precision) * means).sum(1)
            if "leave one out" not in without:
                gap = gap / (1 - q / (counts + kappa)).square()
            trust = 1.0 if full or c <= 30 or "calibrated trust" in without else max((30 / c) ** 3, calibrated(gap))
            trust = max(trust * min(1.0, n / (8 * c)), doubt) * min(1.0, (step + 1) / ramp)
            q = (anchor * log_p + log_prior - trust / 2 * gap).softmax(1)
        return q, kappa, precision, log_prior, trust

    if shares is None:
        q, *_ = run(2, lambda support: 0.0, 1.0, True)
        unequal = float(imbalance((q * p).sum(0)))
        seen = float(imbalance(torch.bincount(named, minlength=c).to(z)))
        if n >= 8 * c and unequal < min(0.4, 0.75 * seen) and "artefact" not in without:
            unequal = 0.0
        cap = math.inf if "cap" in without else unequal

        def prior(support: Tensor) -> Tensor | float:
            pi = (support + 1) / (support.sum() + c)
            gamma = 0.0 if "prior" in without else min(2.0, 30 * min(float(imbalance(support)), cap) ** 2)
            return gamma * pi.log()

    else:
        shares = shares.to(z) / shares.sum()
        known = shares * n + torch.where(shares > 0, 0.5, 1e-9)

        def prior(support: Tensor) -> Tensor:
            return (known / known.sum()).log()

    ramp = 1.0 if "growing trust" in without else 1 + 4 * min(1.0, 30 * c / n)
    q, kappa, precision, log_prior, trust = run(rounds, prior, ramp, False)

    changed = q.argmax(1) != named
    sure = (log_p / told).softmax(1).amax(1)
    disputed = float(sure[changed].mean()) if changed.any() else 0.0
    if shares is None and disputed > KEPT and "keep g" not in without:
        weight, bias = w, b
    else:
        counts = q.sum(0)
        means = (q.T @ x) / (counts + kappa)[:, None]
        length = (scatter * precision).sum() / n
        square = ((means @ precision) * means).sum(1) - length * counts / (counts + kappa).square()
        extra = trust * means @ precision
        weight = anchor / excess * w + extra
        bias = anchor / excess * b + log_prior - trust / 2 * square - extra @ z.mean(0)

    # one temperature: the confidence of g without its excess
    after = z @ weight.T + bias
    goal = float(p.amax(1).mean())
    t = 2 ** root(lambda s: float((after / 2**s).softmax(1).amax(1).mean()) - goal, 0.0, 20.0)
    return weight / t, bias / t
