"""ConditionalTCA in plain code: float64, all rows at once, one inverse a round. What the adapter is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from clip_tca import LinearClassifier


def root(f: Callable[[float], float], low: float, high: float, steps: int = 40) -> float:
    """Where a falling function crosses zero, by bisection."""
    if f(low) <= 0:
        return low
    if f(high) > 0:
        return high
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) > 0 else (low, middle)
    return (low + high) / 2


def occurring(q: Tensor) -> float:
    """How many classes there seem to be: the inverse Simpson index of the mean."""
    return max(2.0, 1 / float(q.mean(0).square().sum()))


def imbalance(support: Tensor) -> float:
    """0 for equally frequent classes, 1 for a single one; chance is taken off."""
    total = support.sum() + len(support)
    squares = ((support + 1) / total).square().sum()
    squares = ((squares - 2 / total) / (1 - 2 / total)).clamp_min(1 / len(support))
    return 1 + float(squares.log()) / math.log(len(support))


def agreement(scores: Tensor, log_p: Tensor, near: Tensor) -> float:
    """How often the nearest neighbour has the same label; of a row alone in its class, the confidence of g."""
    label = scores.argmax(1)
    alone = torch.bincount(label, minlength=scores.shape[1])[label] == 1
    return float(torch.where(alone, log_p.exp().amax(1), (label == label[near]).double()).mean())


def temperature(scores: Tensor, confidence: float) -> float:
    """At which the mean confidence is as given."""
    return 2 ** root(lambda s: float((scores / 2**s).softmax(1).amax(1).mean()) - confidence, -4.0, 20.0)


def correction(x: Tensor, log_p: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """Ridge logistic regression on the answered rows, with g as its offset."""
    kernel = 9 * x @ x.T + 1
    alpha = torch.zeros_like(log_p, requires_grad=True)
    search = torch.optim.LBFGS([alpha], max_iter=30, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        added = kernel @ alpha
        value = torch.nn.functional.cross_entropy(log_p + added, answers, reduction="sum") + (alpha * added).sum() / 2
        value.backward()
        return value

    search.step(loss)
    return 9 * alpha.detach().T @ x, alpha.detach().sum(0)


def scores(
    z: Tensor,
    log_p: Tensor,
    shares: Tensor | None = None,
    answers: Tensor | None = None,
    own_space: bool = True,
    rounds: int = 8,
) -> Tensor:
    """Calibrated scores ``(n, c)`` of rows ``(n, d)`` with log-probabilities ``(n, c)``."""
    (n, d), c = z.shape, log_p.shape[1]
    z, log_p = z.double(), log_p.double().log_softmax(1)
    x = z - z.mean(0)
    known = torch.zeros(n, dtype=torch.bool) if answers is None else answers >= 0
    if answers is not None and known.any():
        w, b = correction(x[known], log_p[known], answers[known])
        log_p = (log_p + x @ w.T + b).log_softmax(1)
    if n < 8:
        return log_p

    # neighbours, among rows that the phase of their sum picks
    along = x.sum(1)
    rows = (100 * along / along.std(correction=0)).sin().topk(min(n, max(2048, 8 * c))).indices
    near = torch.cdist(x[rows], x[rows]).fill_diagonal_(math.inf).topk(min(3, len(rows) - 1), largest=False).indices
    t, mine, next_to = 1.0, log_p[rows[:2048]], log_p[rows[near[:2048, 0]]]
    if n >= 8 * occurring(log_p.exp()):
        wanted = float((next_to.exp() * mine).sum())
        surplus = lambda s: float(((mine / math.exp(s)).softmax(1) * mine).sum()) - wanted  # noqa: E731
        t = math.exp(root(surplus, 0.0, math.log(1e4)))
    excess, kept = max(1.0, t / 2), log_p
    log_p, t = (log_p / excess).log_softmax(1), t / excess
    p = log_p.exp()
    gaps = (x[rows][:, None] - x[rows][near]).reshape(-1, d)
    local = gaps.T @ gaps / gaps.square().sum()

    scatter, a, total = x.T @ x, max(0.3, d / (2 * n + d)), float(x.square().sum()) / n
    q = (log_p / t ** (2 if own_space else 1)).softmax(1)
    counts = torch.zeros(c, dtype=z.dtype)
    for step in range(rounds):
        if answers is not None:
            q[known] = torch.nn.functional.one_hot(answers[known], c).double()
        last, counts = counts, q.sum(0)
        if float((counts - last).abs().max()) < 1e-3:
            break
        # shrunken means and covariance
        sums, safe = q.T @ x, counts.clamp_min(1e-300)
        seen, noise = float((sums.square().sum(1) / safe).sum()) / n, float((q.square().sum(0) / safe).sum()) / n
        within = min((total - seen) / max(1 - noise, 1e-3), total)
        between = seen - within * noise
        kappa = min(100.0, max(2.0, within / between)) if between > 0 else 100.0
        means = sums / (counts + kappa)[:, None]
        s = (scatter - means.T @ ((counts + 2 * kappa)[:, None] * means)) / n
        variance = max(float(s.trace()), 0.01 * total) / d
        s = local * variance * d if step == 0 else s
        precision = torch.linalg.inv((1 - a) * s + (a + 1e-6) * variance * torch.eye(d, dtype=z.dtype))
        if answers is not None:  # an answer weighs as much as three rows
            weight = q * (1 + 2 * known)[:, None]
            means = (weight.T @ x) / (weight.sum(0) + kappa)[:, None]
        gap = ((x @ precision) * x).sum(1)[:, None] - 2 * x @ precision @ means.T
        gap = (gap + ((means @ precision) * means).sum(1)) / (1 - q / (counts + kappa)).square()  # leave one out
        # trust and prior
        trust = n / (n + 20 * math.log(c) * math.sqrt(c * occurring(q)))
        agreed = ((log_p - gap / 2).softmax(1) * p).sum(0)
        support = ((log_p - trust / 2 * gap).softmax(1) * p).square().sum(0)
        gamma = min(2.0, 30 * imbalance(agreed) ** 2)
        prior = gamma * (torch.digamma(support + 0.5) - torch.digamma(support.sum() + c / 2))
        if shares is not None:
            expected = shares.double() / shares.sum() * n + torch.where(shares > 0, 0.5, 1e-9)
            prior = (expected / expected.sum()).log()
        q = (log_p + prior - trust / 2 * gap).softmax(1)

    counts = q.sum(0)
    noise = (scatter * precision).sum() / n * counts / (counts + kappa).square()
    square = ((means @ precision) * means).sum(1) - noise
    raw = log_p + x @ (trust * means @ precision).T + prior - trust / 2 * square
    modest = agreement(log_p[rows], log_p[rows], near[:, 0])
    raw = raw / temperature(raw[rows[:4096]], modest)
    if answers is not None and known.any():
        w, b = correction(x[known], raw[known].log_softmax(1), answers[known])
        raw = raw + x @ w.T + b
    if not own_space:
        return raw / temperature(raw[rows[:4096]], math.sqrt(modest * agreement(raw[rows], log_p[rows], near[:, 0])))
    changed = q.argmax(1) != p.argmax(1)
    sure = float((log_p / t).softmax(1).amax(1)[changed].sum())
    return kept if sure > 0.6 * int(changed.sum()) and shares is None and not known.any() else raw


def fit(z: Tensor, g: LinearClassifier, shares: Tensor | None = None, rounds: int = 8) -> Tensor:
    """Scores of prepared rows ``(n, d)`` in the space of g."""
    return scores(z, z.double() @ g.weight.double().T + g.bias.double(), shares, rounds=rounds)
