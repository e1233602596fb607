"""The upper bound: how much better would LinearTCA be if it knew the source, or the class proportions?

All rows use the map (z − μ_t)W + μ with LinearTCA's Monge map and Ledoit–Wolf shrinkage. They differ in μ and Σ:

* the pseudo-source: LinearTCA itself;
* **oracle (true labels)**: the pseudo-source with the true class proportions of the test set;
* **oracle (source data)**: mean and covariance of the reference domain, the paper's LinearTCA(b);
* **oracle (source data, true labels)**: the same of a part of the reference with the test set's true proportions.

The paper's TCA(a), fine-tuned on the labelled test set, is another model and not measured here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from clip_tca.adapters.linear import LinearTCA, certain_rows, monge
from clip_tca.adapters.statistics import ledoit_wolf, moments, shrink
from clip_tca.classifier import LinearClassifier
from clip_tca.core.tensors import double
from clip_tca.studies.base import Figure, Study, Subject
from clip_tca.studies.figure_style import COLOURS, GREY, at_least, domain_panels, dots, value
from clip_tca.studies.scores import accuracy

MEASURED = {
    "zero-shot": [],
    "linear-tca": [],
    "oracle: true proportions": ["true labels"],
    "oracle: source statistics": ["source data"],
    "oracle: source statistics, true proportions": ["source data", "true labels"],
}
"""What is measured, and what it uses that is not available at test time."""


def predict_aligned(g: LinearClassifier, z: Tensor, source: Tensor) -> Tensor:
    """Classes of ``z`` ``(n, d)`` mapped to mean and covariance of ``source`` ``(m, d)`` as LinearTCA does it."""
    test, target = moments(z), moments(source)
    sigmas = [shrink(m.covariance, ledoit_wolf(m)) for m in (test, target)]
    return g.predict((double(z) - test.mean) @ monge(*sigmas) + target.mean)


def in_proportion(labels: Tensor, wanted: Tensor, classes: int) -> Tensor:
    """Indices of a part of ``labels`` with the class proportions of ``wanted``; none if a class is missing."""
    available, counts = (torch.bincount(y, minlength=classes) for y in (labels, wanted))
    present = counts > 0
    if bool((available[present] == 0).any()):
        return torch.zeros(0, dtype=torch.int64, device=labels.device)
    share = (available[present] / counts[present]).min()
    return certain_rows(torch.zeros_like(labels, dtype=torch.float64), labels, (share * counts).round().long())


class UpperBound(Study):
    """LinearTCA against what it would be with the true source, or the true class proportions."""

    name = "upper-bound"
    summary = "How far is LinearTCA from knowing the source?"
    paper = "Upper performance bound for TCA, table 7"
    needs_reference = True

    def measure(self, subject: Subject) -> dict[str, Any]:
        """Accuracy of every row on every domain."""
        g, (source, truth) = subject.classifier, subject.source()
        domains: dict[str, Any] = {}
        for name, z, y in subject.shifted_domains():
            chosen = source[in_proportion(truth, y, g.n_classes)]
            counts = torch.bincount(y, minlength=g.n_classes)
            predicted = {
                "zero-shot": g.predict(z),
                "linear-tca": LinearTCA(g).fit(z).predict(z),
                "oracle: true proportions": None
                if int(counts[0]) == 0  # the oracle counts every class relative to class 0
                else LinearTCA(g, shares="oracle").fit(z, labels=y).predict(z),
                "oracle: source statistics": predict_aligned(g, z, source),
                "oracle: source statistics, true proportions": predict_aligned(g, z, chosen)
                if len(chosen) > 1
                else None,
            }
            domains[name] = {row: None if p is None else accuracy(p, y) for row, p in predicted.items()}
        return {"reference": subject.reference, "uses": MEASURED, "domains": domains}

    def draw(self, results: dict[str, Any], figure: Figure) -> None:
        """A panel for each domain, a dot for each row; oracles are open."""
        rows = list(results["uses"])
        for panel, domain in domain_panels(figure, results, height=2.3, sharey=True):
            dots(panel, [row.replace(", ", ",\n") for row in rows])
            panel.axvline(domain["zero-shot"], color=GREY, linestyle=(0, (4, 3)), linewidth=1.2)
            for i, row in enumerate(rows):
                if domain[row] is None:
                    continue
                oracle = bool(results["uses"][row])
                colour = COLOURS[1] if oracle else COLOURS[0]
                panel.plot(domain[row], i, "o", color=colour, markersize=8, fillstyle="none" if oracle else "full")
                value(panel, f"{domain[row]:.1f}", domain[row], i)
            panel.set_ylim(top=-0.8)
            panel.set_xlabel("accuracy (%)")
            panel.margins(x=0.25)
            at_least(panel, 4.0, across=True)
        figure.supxlabel("Open: oracles, which use source data or true labels.", fontsize=9, color=GREY)

    def describe(self, results: dict[str, Any]) -> list[str]:
        """Every row, oracles marked."""
        lines = []
        for name, domain in results["domains"].items():
            cells = [f"{row} {'not defined' if value is None else f'{value:.2f} %'}" for row, value in domain.items()]
            lines.append(f"{name}: {'; '.join(cells)}.")
        lines.append("Oracles use what nobody has at test time: source data, or the true labels.")
        return lines
