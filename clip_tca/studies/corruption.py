"""Does the correlation distance to the source grow with the shift, and does accuracy fall with it?

The pictures of each domain are corrupted at severities 1 to 5 (:mod:`clip_tca.datasets.corrupting`) and embedded again;
severity 0 is the domain itself, which stands for the source. For each severity: ‖Σ_severity − Σ_0‖²_F / 4d², and
zero-shot accuracy. Labels are used for accuracy only. Where a model does not crop pictures itself, the crop that comes
with a corruption is part of severity 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from clip_tca.adapters.statistics import coral_distance, moments
from clip_tca.core.checks import one_of
from clip_tca.core.tensors import unit
from clip_tca.datasets import corrupting
from clip_tca.datasets.corruptions import SEVERITIES
from clip_tca.studies.base import Figure, Study, Subject
from clip_tca.studies.figure_style import label, legend_below, magnitude, panels, series
from clip_tca.studies.scores import accuracy, signed, spearman


@dataclass(kw_only=True, eq=False, repr=False)
class Corruption(Study):
    """Distance and accuracy over the severity of each corruption of ``kinds``."""

    name = "corruption"
    summary = "Does the correlation distance grow with the severity of a corruption, and accuracy fall?"
    paper = "Introduction, figure 1a"

    kinds: Sequence[str] | str = ("gaussian_noise", "defocus_blur")

    def __post_init__(self) -> None:
        self.kinds = [self.kinds] if isinstance(self.kinds, str) else list(self.kinds)
        for kind in self.kinds:
            one_of("kinds", kind, tuple(corrupting.CORRUPTION_KINDS))
        if not self.kinds:
            raise ValueError(f"kinds: none; allowed are {', '.join(corrupting.CORRUPTION_KINDS)}")

    def measure(self, subject: Subject) -> dict[str, Any]:
        """Both at each severity, for each domain and corruption, and their rank correlation."""
        embedded = subject.embedded
        if embedded.pictures is None or embedded.embedder is None:
            raise ValueError(
                "dataset: study corruption corrupts pictures, and this has embeddings only; name one with them"
            )
        clean = {name: z for name, (z, _) in embedded.data.domains.items()}
        domains: dict[str, Any] = {name: {} for name in clean}
        for kind in subject.tracked(self.kinds, "corrupting", "kind"):
            steps = [clean]
            for severity in SEVERITIES:
                corrupted = embedded.pictures.corrupted(corrupting.Corruption(kind, severity))
                steps.append(embedded.embedder.pictures(corrupted))
            for name, (_, y) in embedded.data.domains.items():
                domains[name][kind] = _curve(subject, [step[name] for step in steps], y)
        return {"kinds": self.kinds, "domains": domains}

    def draw(self, results: dict[str, Any], figure: Figure) -> None:
        """Distances above, accuracies below; a column for each corruption, a line for each domain."""
        kinds, domains = results["kinds"], results["domains"]
        distances = [d for domain in domains.values() for curve in domain.values() for d in curve["distance"]]
        power, times = magnitude(distances)
        titles = [label(kind) for kind in kinds]
        axes = panels(figure, [*titles, *[""] * len(titles)], 2.6, len(titles), sharex=True)
        for column, kind in enumerate(kinds):
            above, below = axes[column], axes[column + len(kinds)]
            for i, (name, domain) in enumerate(domains.items()):
                severities = range(len(domain[kind]["distance"]))
                above.plot(severities, [d / power for d in domain[kind]["distance"]], label=label(name), **series(i))
                below.plot(severities, domain[kind]["accuracy"], **series(i))
            above.set_ylim(bottom=0)
            below.set_xlabel("severity")
        axes[0].set_ylabel(r"$\|\Sigma-\Sigma_{0}\|_F^2\,/\,4d^2$" + times)
        axes[len(kinds)].set_ylabel("zero-shot accuracy (%)")
        legend_below(figure, axes[0])

    def describe(self, results: dict[str, Any]) -> list[str]:
        """Both ends of each curve, and in how many the distance grew and accuracy fell."""
        lines, grown, fallen, count = [], 0, 0, 0
        for name, domain in results["domains"].items():
            for kind, curve in domain.items():
                distance, right = curve["distance"], curve["accuracy"]
                lines.append(
                    f"{name}, {label(kind)}: distance {distance[1]:.2e} at severity 1, {distance[-1]:.2e} at 5; "
                    f"accuracy {right[0]:.2f} %, then {right[1]:.2f} to {right[-1]:.2f} % (Spearman of both "
                    f"{signed(curve['spearman'])})."
                )
                grown += distance[-1] > distance[1]
                fallen += right[-1] < right[0]
                count += 1
        lines.append(f"From severity 1 to 5 the distance grew in {grown} of {count}; accuracy fell in {fallen}.")
        return lines


def _curve(subject: Subject, steps: list[Tensor], labels: Tensor) -> dict[str, Any]:
    """Distance to the first of ``steps``, embeddings ``(n, d)`` of the same images, and accuracy, of each."""
    z = [subject.on_device(unit(step)) for step in steps]
    covariances = [moments(step).covariance for step in z]
    distance = [float(coral_distance(sigma, covariances[0])) for sigma in covariances]
    right = [accuracy(subject.classifier.predict(step), subject.on_device(labels)) for step in z]
    return {"distance": distance, "accuracy": right, "spearman": spearman(distance, right)}
