"""Studies with source data: the upper bound of LinearTCA, and forgetting."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clip_tca.adapters.linear import LinearTCA, certain_rows, monge
from clip_tca.adapters.statistics import ledoit_wolf, moments, shrink
from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import choices
from clip_tca.core.progress import tracked
from clip_tca.core.tensors import double
from clip_tca.evaluation.base_runs import BaseRuns
from clip_tca.evaluation.method_spec import MethodSpec, class_scores
from clip_tca.methods.registry import METHODS
from clip_tca.studies.figure_style import Panel, dots
from clip_tca.studies.frame import Study, Subject, accuracy, shuffled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ADAPTING = tuple(name for name in METHODS if name != "zero-shot" and not MethodSpec(name).uses_labels)
"""Methods that adapt and use no labels."""

STORED = ("linear-tca", "conditional-tca", "t3a", "tda", "adanpc", "plc")
"""The methods compared by default: fast, and they need stored embeddings only."""


def predict_aligned(g: LinearClassifier, z: Tensor, source: Tensor) -> Tensor:
    """Classes of ``z`` ``(n, d)`` mapped to mean and covariance of ``source`` ``(m, d)`` as LinearTCA does it."""
    test, target = moments(z), moments(source)
    sigmas = [shrink(m.covariance, ledoit_wolf(m)) for m in (test, target)]
    return g.predict((double(z) - test.mean) @ monge(*sigmas) + target.mean)


def in_proportion(labels: Tensor, wanted: Tensor, classes: int) -> Tensor:
    """Indices of a part of ``labels`` with the class proportions of ``wanted``; none if a class is missing."""
    available, counts = (torch.bincount(y, minlength=classes) for y in (labels, wanted))
    present = counts > 0
    share = (available[present] / counts[present]).min()
    return certain_rows(torch.zeros_like(labels, dtype=torch.float64), labels, (share * counts).round().long())


class UpperBound(Study):
    """How much better would LinearTCA be if it knew the source, or the class proportions?

    All rows use the map (z − μ_t)W + μ with LinearTCA's Monge map and Ledoit–Wolf shrinkage. They differ in μ and Σ:
    those of the pseudo-source, of the reference domain (the paper's LinearTCA(b)), or of a part of either in the test
    set's true class proportions. The paper's TCA(a), fine-tuned on labels of the test set, is not measured.
    """

    summary = "How far is LinearTCA from knowing the source?"
    paper = "Upper performance bound for TCA, table 7"
    needs_reference = True

    def measure_domain(self, subject: Subject, z: Tensor, y: Tensor) -> dict[str, Any]:
        """Accuracy of every row."""
        g, (source, truth) = subject.classifier, subject.source()
        chosen = source[in_proportion(truth, y, g.n_classes)]
        found = {
            "zero-shot": g.predict(z),
            "linear-tca": LinearTCA(g).fit(z).predict(z),
            "oracle: true proportions": None
            if not bool((y == 0).any())  # the oracle counts every class relative to class 0
            else LinearTCA(g, shares="oracle").fit(z, labels=y).predict(z),
            "oracle: source statistics": predict_aligned(g, z, source),
            "oracle: source statistics, true proportions": None if len(chosen) < 2 else predict_aligned(g, z, chosen),
        }
        return {row: None if predicted is None else accuracy(predicted, y) for row, predicted in found.items()}

    @staticmethod
    def draw(results: dict[str, Any], figure: Figure) -> None:
        """A panel for each domain, a dot for each row."""
        domains = results["domains"]
        shown = [Panel(name, "accuracy (%)", {"": list(domain.values())}) for name, domain in domains.items()]
        dots(figure, shown, list(next(iter(domains.values()))))

    @staticmethod
    def describe(results: dict[str, Any]) -> list[str]:
        """Every row, oracles marked."""
        lines = []
        for name, domain in results["domains"].items():
            cells = [f"{row} {'not defined' if value is None else f'{value:.2f} %'}" for row, value in domain.items()]
            lines.append(f"{name}: {'; '.join(cells)}.")
        return [*lines, "Oracles use what nobody has at test time: source data, or the true labels."]


@dataclass(kw_only=True)
class Forgetting(Study):
    """Accuracy on the reference domain with the state that each of the ``methods`` has after adapting to another.

    Nothing adapts to the reference. Base methods that could forget run in their continual form, which keeps its state.
    """

    summary = "What is forgotten of the source after adapting elsewhere?"
    paper = "Forgetting resistance, table 4"
    needs_reference = True

    methods: str | list[str] | tuple[str, ...] = STORED

    def __post_init__(self) -> None:
        self.methods = choices("methods", self.methods, ADAPTING)

    def measure(self, subject: Subject) -> dict[str, Any]:
        """Accuracy with the adapted state, and without it (zero-shot)."""
        g, (source, truth), reference = subject.classifier, subject.source(), str(subject.reference)
        bases = BaseRuns(subject.embedded, g.device, 128, None, subject.progress)
        order = shuffled(len(truth))  # BatchNorm sees batches: not class by class
        source, truth = source[order], truth[order]
        methods: dict[str, dict[str, float]] = {name: {} for name in self.methods}
        for domain in tracked(subject.shifted, len(subject.shifted), "forgetting", "domain", subject.progress):
            z, y = subject.domain(domain)
            for method in map(MethodSpec, self.methods):
                outputs: list[tuple[Tensor, Tensor | None]] = [(z, None), (source, None)]
                if method.base is not None:
                    outputs = [*bases.carry(method.base, {}, (domain, shuffled(len(y))), (reference, order))]
                (seen, logits), then = outputs
                adapter = method.adapter(g)
                if adapter is not None:
                    adapter.fit(seen, logits=logits)
                predicted = class_scores(g, *then, adapter).argmax(dim=1)
                methods[method.name][domain] = accuracy(predicted, truth)
        without = accuracy(g.predict(source), truth)
        change = {name: fmean(found.values()) - without for name, found in methods.items()}
        return {"reference": reference, "without_state": without, "methods": methods, "change": change}

    @staticmethod
    def draw(results: dict[str, Any], figure: Figure) -> None:
        """A row for each method, a marker for each domain adapted to."""
        methods = results["methods"]
        after = {name: [found[name] for found in methods.values()] for name in next(iter(methods.values()))}
        title = f"Accuracy on {results['reference']} with the state adapted to another domain"
        levels = {"without the state: zero-shot": results["without_state"]}
        dots(figure, [Panel(title, "accuracy (%)", after, levels)], list(methods))

    @staticmethod
    def describe(results: dict[str, Any]) -> list[str]:
        """The mean change of each method, least forgotten first."""
        first = f"Without its state every method is zero-shot on {results['reference']}: "
        lines = [f"{first}{results['without_state']:.2f} %."]
        for name, change in sorted(results["change"].items(), key=lambda item: -item[1]):
            lowest, worst = min((right, domain) for domain, right in results["methods"][name].items())
            lines.append(f"{name}: {change:+.2f} points on average; lowest after {worst}: {lowest:.2f} %.")
        return lines
