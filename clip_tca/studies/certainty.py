"""Theorem 1: is the correlation of more certain embeddings closer to the source?

The embeddings of a domain are sorted by uncertainty ω = ‖onehot(argmax p) − p‖² and cut into groups of equal size.
For each group: mean uncertainty, and the correlation distance ‖Σ_group − Σ_source‖²_F / 4d², where the reference domain
stands for the source. The covariance of a few hundred rows is noisy, so the distance of a random sample of the source
of the same size is measured too: no group of that size can be expected to be closer.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from clip_tca.adapters.linear import uncertainty
from clip_tca.adapters.statistics import coral_distance, moments
from clip_tca.core.checks import check_whole
from clip_tca.studies.base import Figure, Study, Subject
from clip_tca.studies.figure_style import COLOURS, GREY, label, legend_below, magnitude, panels, series
from clip_tca.studies.scores import accuracy, shuffled, signed, spearman


@dataclass(kw_only=True, eq=False, repr=False)
class Certainty(Study):
    """Groups by uncertainty against the correlation distance to the source; ``groups`` of equal size."""

    name = "certainty"
    summary = "Are certain embeddings closer to the source?"
    paper = "Theorem 1, figure 3a"
    needs_reference = True

    groups: int = 10

    def __post_init__(self) -> None:
        check_whole("groups", self.groups, 3)

    def measure(self, subject: Subject) -> dict[str, Any]:
        """Uncertainty, distance, accuracy and class mixture of each group, and Spearman's coefficient over groups."""
        g, (source, _) = subject.classifier, subject.source()
        target = moments(source).covariance
        domains: dict[str, Any] = {}
        for name, z, y in subject.shifted_domains():
            if len(z) < 2 * self.groups:
                raise ValueError(f"{name}: {len(z)} images; {self.groups} groups need at least {2 * self.groups}")
            p = g.log_probabilities(z).exp()
            score, predicted = uncertainty(p), p.argmax(dim=1)
            rows = [
                {
                    "images": len(part),
                    "uncertainty": float(score[part].mean()),
                    "distance": float(coral_distance(moments(z[part]).covariance, target)),
                    "accuracy": accuracy(predicted[part], y[part]),
                    "largest_class_share": float(torch.bincount(predicted[part]).max() / len(part)),
                }
                for part in score.argsort(stable=True).tensor_split(self.groups)
            ]
            size = min(len(z) // self.groups, len(source))
            samples = [source[shuffled(len(source), seed, source.device)[:size]] for seed in range(5)]
            domains[name] = {
                "groups": rows,
                "spearman": spearman([row["uncertainty"] for row in rows], [row["distance"] for row in rows]),
                "source_sample_distance": fmean(float(coral_distance(moments(s).covariance, target)) for s in samples),
            }
        return {"reference": subject.reference, "domains": domains}

    def draw(self, results: dict[str, Any], figure: Figure) -> None:
        """Distance by group, uncertainty by group."""
        unit, times = magnitude([row["distance"] for domain in results["domains"].values() for row in domain["groups"]])
        left, right = panels(figure, ["Correlation distance to the source", "Mean uncertainty"], 3.3, 2)
        for i, (name, domain) in enumerate(results["domains"].items()):
            numbers = range(1, len(domain["groups"]) + 1)
            distances = [row["distance"] / unit for row in domain["groups"]]
            left.plot(numbers, distances, label=f"{label(name)} (Spearman {signed(domain['spearman'])})", **series(i))
            floor = domain["source_sample_distance"] / unit
            left.axhline(floor, color=COLOURS[i % len(COLOURS)], linestyle=":", linewidth=1.3)
            right.plot(numbers, [row["uncertainty"] for row in domain["groups"]], **series(i))
        left.plot([], [], color=GREY, linestyle=":", linewidth=1.3, label="source sample of that size")
        left.set_ylim(bottom=0)
        left.set_ylabel(r"$\|\Sigma_{group}-\Sigma_{source}\|_F^2\,/\,4d^2$" + times)
        right.set_ylabel(r"$\|onehot(p)-p\|^2$")
        for panel in (left, right):
            panel.set_xlabel("group, from most to least certain")
            panel.set_xticks(range(1, max(len(domain["groups"]) for domain in results["domains"].values()) + 1))
        legend_below(figure, left, 2)

    def describe(self, results: dict[str, Any]) -> list[str]:
        """Whether the theorem holds, domain by domain."""
        lines = []
        for name, domain in results["domains"].items():
            first, last = domain["groups"][0], domain["groups"][-1]
            lines.append(
                f"{name}: most certain group {first['distance']:.3g} from {results['reference']} "
                f"({100 * first['largest_class_share']:.0f} % of it one predicted class), least certain "
                f"{last['distance']:.3g} ({100 * last['largest_class_share']:.0f} %); Spearman of uncertainty and "
                f"distance {signed(domain['spearman'])}."
            )
        holds = sum((domain["spearman"] or 0) > 0.6 for domain in results["domains"].values())
        count = f"{holds} of {len(results['domains'])} domains"
        lines.append(f"More certain is closer to the source (Spearman above 0.6) in {count}.")
        return lines
