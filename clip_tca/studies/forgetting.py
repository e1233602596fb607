"""Forgetting: accuracy on the source-like domain after adapting to another (see ``evaluation.source_forgetting``)."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from clip_tca.core.checks import check_whole, choices
from clip_tca.evaluation.base_runs import BaseRuns
from clip_tca.evaluation.method_spec import method_specs
from clip_tca.evaluation.source_forgetting import measure_forgetting
from clip_tca.studies.base import Figure, Study, Subject
from clip_tca.studies.figure_style import GREY, dots, label, legend_below, panels, series
from clip_tca.studies.measured_methods import ADAPTING, STORED


@dataclass(kw_only=True, eq=False, repr=False)
class Forgetting(Study):
    """Accuracy on the reference domain after adapting to each of the others, ``batch_size`` images at a time."""

    name = "forgetting"
    summary = "What is forgotten of the source after adapting elsewhere?"
    paper = "Forgetting resistance, table 4"
    needs_reference = True

    methods: str | list[str] | tuple[str, ...] = STORED
    batch_size: int = 128

    def __post_init__(self) -> None:
        self.methods = choices("methods", self.methods, ADAPTING)
        check_whole("batch_size", self.batch_size)

    def measure(self, subject: Subject) -> dict[str, Any]:
        """Accuracy with the adapted state, and without it (zero-shot)."""
        g, (_, labels) = subject.classifier, subject.source()
        bases = BaseRuns(subject.embedded, g.device, self.batch_size, None, subject.progress)
        rows = measure_forgetting(method_specs(self.methods, {}), g, bases, str(subject.reference))
        methods: dict[str, Any] = {}
        for row in rows:
            methods.setdefault(row["method"], {})[row["adapted_to"]] = row["accuracy_with_state"]
        without = rows[0]["accuracy_without_state"]
        return {
            "reference": subject.reference,
            "images": len(labels),
            "without_state": without,
            "methods": methods,
            "change": {name: fmean(accuracies.values()) - without for name, accuracies in methods.items()},
        }

    def draw(self, results: dict[str, Any], figure: Figure) -> None:
        """A row for each method, a marker for each domain adapted to."""
        height = 0.9 + 0.36 * len(results["methods"])
        title = f"Accuracy on {label(results['reference'])} with the state adapted to another domain"
        (panel,) = panels(figure, [title], height, 1)
        dots(panel, list(results["methods"]))
        domains = list(next(iter(results["methods"].values())))
        without = results["without_state"]
        for i, accuracies in enumerate(results["methods"].values()):
            values = list(accuracies.values())
            panel.plot([min(values), max(values)], [i, i], color="#cccccc", linewidth=2, zorder=1)
        for j, name in enumerate(domains):
            values = [accuracies[name] for accuracies in results["methods"].values()]
            offset = 0.16 * (j - (len(domains) - 1) / 2)
            rows = [i + offset for i in range(len(values))]
            panel.plot(values, rows, linestyle="none", label=label(name), **{**series(j), "markersize": 7})
        panel.axvline(without, color=GREY, linestyle=(0, (4, 3)), linewidth=1.4, label="without the state: zero-shot")
        panel.set_xlabel("accuracy (%)")
        legend_below(figure, panel, 5)

    def describe(self, results: dict[str, Any]) -> list[str]:
        """The mean change of each method, least forgotten first."""
        lines = [
            f"Without its state every method is zero-shot on {results['reference']}: {results['without_state']:.2f} %."
        ]
        for name in sorted(results["change"], key=results["change"].__getitem__, reverse=True):
            accuracies = results["methods"][name]
            worst = min(accuracies, key=accuracies.__getitem__)
            lines.append(
                f"{name}: {results['change'][name]:+.2f} points on average; "
                f"lowest after {worst}: {accuracies[worst]:.2f} %."
            )
        return lines
