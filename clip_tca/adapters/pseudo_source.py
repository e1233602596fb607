"""Certainty and the pseudo-source: the most certain test embeddings stand in for the source data.

The paper's uncertainty is ω = ‖onehot(argmax p) − p‖²; its public code uses the entropy of p. Every predicted class
gives its k most certain embeddings, and a row weighs as much as the share of its class divided by their number:

============= ================================================================================ ============
shares        how much each predicted class weighs                                             needs labels
============= ================================================================================ ============
numbers       what the user knows                                                              no
``estimated`` what brings predictions nearest to ConditionalTCA's                              no
``uniform``   all the same                                                                     no
``predicted`` as often as the classifier predicts it                                           no
``global``    the k most certain overall, whatever their class (the paper's equation)          no
``oracle``    ⌊k·nᵢ/n₀⌋ rows from the **true** labels (the public code: a label leak)          yes
============= ================================================================================ ============
"""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from clip_tca.adapters.accumulator import Accumulator
from clip_tca.classifier import LinearClassifier
from clip_tca.core.tensors import exact

Uncertainty = Literal["distance", "entropy"]
SHARES = ("estimated", "uniform", "predicted", "global", "oracle")
UNCERTAINTIES: tuple[str, ...] = get_args(Uncertainty)

LARGEST = 20
"""The largest k that ``"auto"`` gives: a fifth of the largest predicted class, but 10 to 20."""

FEW = 256
"""Rows that are all judged in float64 at once."""


def uncertainty(p: Tensor, kind: Uncertainty = "distance", dim: int = 1) -> Tensor:
    """How uncertain each row of the probabilities ``p`` ``(n, c)`` is, ``(n,)``; the classes are along ``dim``.

    1 − max p is formed as the sum of the other probabilities, so that rows remain ordered when max p rounds to one.
    """
    if kind not in UNCERTAINTIES:
        raise ValueError(f"uncertainty: {kind!r}; allowed are {', '.join(UNCERTAINTIES)}")
    others = p.scatter(dim, p.max(dim=dim, keepdim=True).indices, 0.0)
    rest = others.sum(dim=dim)
    if kind == "distance":
        return rest.square() + others.square().sum(dim=dim)
    return -(torch.xlogy(others, others).sum(dim=dim) + (1 - rest) * torch.log1p(-rest))


def select(score: Tensor, group: Tensor, quota: Tensor) -> Tensor:
    """Indices of the ``quota[g]`` smallest scores of each group g, in order of arrival; ties go to the earlier row.

    Args:
        score: ``(n,)`` uncertainties.
        group: ``(n,)`` group of each row (its predicted class; all zeros to select over everything).
        quota: ``(groups,)`` how many to take of each group; a smaller group is taken whole.
    """
    order = score.argsort(stable=True)
    order = order[group[order].argsort(stable=True)]
    sizes = torch.bincount(group, minlength=len(quota))
    first = sizes.cumsum(0) - sizes
    rank = torch.arange(len(score), device=score.device) - first[group[order]]
    return order[rank < quota[group[order]]].sort().values


def reference_quota(counts: Tensor, k: int) -> Tensor:
    """The public code's quotas: ⌊k·nᵢ/n₀⌋ with the counts nᵢ ``(c,)`` of the true labels."""
    if int(counts[0]) == 0:
        raise ValueError("labels: none is 0, and the reference counts every class against class 0; reorder the classes")
    return k * counts // counts[0]


class PseudoSourceBank(Accumulator):
    """The embeddings of high certainty, in bounded memory (``oracle`` alone keeps every embedding).

    Attributes:
        rows: ``(m, d)`` embeddings kept.
        score: ``(m,)`` their uncertainty.
        group: ``(m,)`` their predicted class; zeros for ``global``.
        worst: ``(g,)`` uncertainty from which a full group takes no more.
        predicted: ``(c,)`` how often each class has been predicted so far.
        labels: ``(l,)`` true labels, for ``oracle`` alone.
    """

    shapes: ClassVar = {
        "rows": ("m", "d"), "score": ("m",), "group": ("m",), "worst": ("g",), "predicted": ("c",), "labels": ("l",)
    }  # fmt: skip

    def __init__(
        self,
        classifier: LinearClassifier,
        k: Literal["auto"] | int,
        shares: object,
        kind: Uncertainty,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """An empty bank; ``kind`` is the uncertainty, rows are kept in ``dtype`` on ``device``."""
        c, d = classifier.n_classes, classifier.dim
        self.classifier, self.shares, self.kind = classifier, shares, kind
        self.auto, self.k = k == "auto", LARGEST if k == "auto" else int(k)
        groups = 1 if shares == "global" else c
        self.predicted = torch.zeros(c, dtype=torch.int64, device=device)
        self.rows = torch.zeros(0, d, device=device, dtype=dtype)
        self.score = exact(torch.zeros(0, device=device))
        self.group = torch.zeros(0, dtype=torch.int64, device=device)
        self.worst = exact(torch.full((groups,), float("inf"), device=device))
        self.labels = self.group.clone()

    def update(self, z: Tensor, labels: Tensor | None = None, logits: Tensor | None = None) -> None:
        """Offer the rows of ``z`` ``(n, d)`` to the bank, judged by ``logits`` ``(n, c)`` or else by the classifier."""
        if labels is not None:
            self.labels = torch.cat([self.labels, labels])
        if logits is None and z.dtype == torch.float32 and len(z) > FEW:
            z = self._contenders(z)
        p = self.classifier.log_probabilities(z).exp() if logits is None else exact(logits).softmax(dim=1)
        score, predicted = uncertainty(p, self.kind), p.argmax(dim=1)
        self.predicted += torch.bincount(predicted, minlength=len(self.predicted))
        group = torch.zeros_like(predicted) if self.shares == "global" else predicted
        better = (score < self.worst[group]).nonzero()[:, 0]
        if len(better):
            self._keep(
                torch.cat([self.rows, z[better].to(self.rows.dtype)]),
                torch.cat([self.score, score[better]]),
                torch.cat([self.group, group[better]]),
            )

    def _contenders(self, z: Tensor) -> Tensor:
        """Those rows of ``z`` ``(n, d)`` of which float32 can't tell that they are not certain enough; all are counted.

        Of the others it can tell the predicted class, too, and they are not copied to float64.
        """
        weight, bias = self.classifier.weight.to(z), self.classifier.bias.to(z)
        p = torch.addmm(bias[:, None], weight, z.T).softmax(dim=0)  # classes first: sums over few of them are fast
        size = torch.linalg.vector_norm(weight, dim=1).max() * torch.linalg.vector_norm(z, dim=1).max()
        error = 2**-16 * (size + bias.abs().max())  # what rounding does to a logit, and more
        score, (top, predicted) = uncertainty(p, self.kind, dim=0), p.max(dim=0)
        group = torch.zeros_like(predicted) if self.shares == "global" else predicted
        second = p.scatter_(0, predicted[None], 0.0).amax(dim=0)
        sure = (second * (2 * error).exp() < top) & (exact(score) > self.worst[group] * (16 * error).exp() + 1e-30)
        self.predicted += torch.bincount(predicted[sure], minlength=len(self.predicted))
        return z[~sure]

    def merge(self, other: PseudoSourceBank) -> None:
        """Add what another bank with the same options has kept; its rows count as the later ones."""
        self.predicted = self.predicted + other.predicted
        self.labels = torch.cat([self.labels, other.labels.to(self.labels)])
        pairs = ((getattr(self, name), getattr(other, name)) for name in ("rows", "score", "group"))
        self._keep(*(torch.cat([own, others.to(own)]) for own, others in pairs))

    @property
    def size(self) -> int:
        """k: as given, or by the size of the largest predicted class."""
        return min(self.k, max(10, int(self.predicted.max()) // 5)) if self.auto else self.k

    def quota(self) -> Tensor:
        """How many embeddings of each group belong to the pseudo-source, where there are as many."""
        if self.shares == "oracle":
            return reference_quota(torch.bincount(self.labels, minlength=len(self.predicted)), self.size)
        return torch.full_like(self.worst, self.size, dtype=torch.int64)

    def _keep(self, rows: Tensor, score: Tensor, group: Tensor) -> None:
        if self.shares != "oracle":
            quota = torch.full_like(self.worst, self.k, dtype=torch.int64)
            best = select(score, group, quota)
            rows, score, group = rows[best], score[best], group[best]
            full = torch.bincount(group, minlength=len(quota)) >= self.k
            worst = torch.zeros_like(self.worst).scatter_reduce(0, group, score, "amax")
            self.worst = torch.where(full, worst, float("inf"))
        self.rows, self.score, self.group = rows, score, group
