"""The upper bound: how much better would LinearTCA be if it knew the source, or the class proportions?

All rows map (z − μ_t)W + μ with the Monge map and Ledoit–Wolf shrinkage, LinearTCA's own; they differ in μ and Σ:

* the pseudo-source: LinearTCA as users have it;
* **oracle (true labels)**: the pseudo-source with the true class proportions of the test set;
* **oracle (source data)**: mean and covariance of the reference domain, the paper's LinearTCA(b);
* **oracle (source data, true labels)**: the same of as much of the reference as has the test set's true proportions.

The paper's TCA(a), fine-tuned on the labelled test set, is another model and not measured here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clip_tca.adapters.linear import LinearTCA
from clip_tca.adapters.pseudo_source import select
from clip_tca.adapters.solvers import monge
from clip_tca.adapters.statistics import Moments, ledoit_wolf_shrinkage, shrink
from clip_tca.classifier import ZeroShotClassifier
from clip_tca.core.tensors import exact
from clip_tca.studies.base import Study, Subject
from clip_tca.studies.domains import accuracy, present, shifted, source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = {
    "zero-shot": [],
    "linear-tca": [],
    "oracle: true proportions": ["true labels"],
    "oracle: source statistics": ["source data"],
    "oracle: source statistics, true proportions": ["source data", "true labels"],
}
"""What is measured, and what it uses that a user has not."""


def predict_aligned(g: ZeroShotClassifier, z: Tensor, there: Tensor) -> Tensor:
    """Classes of ``z`` ``(n, d)`` mapped onto mean and covariance of ``there`` ``(m, d)`` as LinearTCA would."""
    here, wanted = Moments.of(z), Moments.of(there)
    sigmas = [shrink(moments.covariance(), ledoit_wolf_shrinkage(moments)) for moments in (here, wanted)]
    return g.predict((exact(z) - here.mean) @ monge(*sigmas) + wanted.mean)


def in_proportion(labels: Tensor, wanted: Tensor, classes: int) -> Tensor:
    """Indices of as many of ``labels`` as have the class proportions of ``wanted``; none if a class is missing."""
    have, counts = (torch.bincount(y, minlength=classes) for y in (labels, wanted))
    present = counts > 0
    if bool((have[present] == 0).any()):
        return torch.zeros(0, dtype=torch.int64, device=labels.device)
    share = (have[present] / counts[present]).min()
    return select(torch.zeros_like(labels, dtype=torch.float64), labels, (share * counts).round().long())


class UpperBound(Study):
    """LinearTCA against what it would be with the true source, or the true class proportions."""

    name = "upper-bound"
    summary = "How far is LinearTCA from knowing the source?"
    paper = "Upper performance bound for TCA, table 7"
    needs_reference = True

    def measure(self, subject: Subject | None) -> dict[str, Any]:
        """Accuracy of every row on every domain."""
        subject = present(subject)
        g, (there, truth) = subject.classifier, source(subject)
        domains: dict[str, Any] = {}
        for name, z, y in shifted(subject):
            chosen = there[in_proportion(truth, y, g.n_classes)]
            counts = torch.bincount(y, minlength=g.n_classes)
            predicted = {
                "zero-shot": g.predict(z),
                "linear-tca": LinearTCA(g).fit(z).predict(z),
                "oracle: true proportions": None
                if int(counts[0]) == 0  # which the oracle counts every class against
                else LinearTCA(g, balance="oracle").fit(z, labels=y).predict(z),
                "oracle: source statistics": predict_aligned(g, z, there),
                "oracle: source statistics, true proportions": predict_aligned(g, z, chosen)
                if len(chosen) > 1
                else None,
            }
            domains[name] = {row: None if found is None else accuracy(found, y) for row, found in predicted.items()}
        return {"reference": subject.reference, "uses": ROWS, "domains": domains}

    def draw(self, results: dict[str, Any], figure: Figure) -> None:
        """A panel for each domain, a dot for each row; oracles are open."""
        from clip_tca.studies.drawing import COLOURS, GREY, at_least, dots, label, panels, value

        rows = list(results["uses"])
        axes = panels(figure, [label(name) for name in results["domains"]], 2.3, sharey=True)
        for panel, found in zip(axes, results["domains"].values(), strict=True):
            dots(panel, [row.replace(", ", ",\n") for row in rows])
            panel.axvline(found["zero-shot"], color=GREY, linestyle=(0, (4, 3)), linewidth=1.2)
            for i, row in enumerate(rows):
                if found[row] is None:
                    continue
                oracle = bool(results["uses"][row])
                colour = COLOURS[1] if oracle else COLOURS[0]
                panel.plot(found[row], i, "o", color=colour, markersize=8, fillstyle="none" if oracle else "full")
                value(panel, f"{found[row]:.1f}", found[row], i)
            panel.set_ylim(top=-0.8)
            panel.set_xlabel("accuracy (%)")
            panel.margins(x=0.25)
            at_least(panel, 4.0, across=True)
        figure.supxlabel("Open: oracles, which use source data or true labels.", fontsize=9, color=GREY)

    def describe(self, results: dict[str, Any]) -> list[str]:
        """Every row, oracles marked."""
        lines = []
        for name, found in results["domains"].items():
            cells = [f"{row} {'not defined' if value is None else f'{value:.2f} %'}" for row, value in found.items()]
            lines.append(f"{name}: {'; '.join(cells)}.")
        lines.append("Oracles use what nobody has at test time: source data, or the true labels.")
        return lines
