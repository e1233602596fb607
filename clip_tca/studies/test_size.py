"""The ablation on the test set's size: fit on some of the test embeddings, predict all of them.

For each size and seed an adapter is fitted on a random part of the domain. It then predicts the whole domain, so that
accuracies of different sizes are on the same images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clip_tca.core.checks import check_whole, choices, whole_numbers
from clip_tca.evaluation.method_spec import method_specs
from clip_tca.studies.base import Figure, Study, Subject
from clip_tca.studies.figure_style import COLOURS, at_least, domain_panels, legend_below, level, series, sizes_axis
from clip_tca.studies.measured_methods import ADAPTING_EMBEDDINGS
from clip_tca.studies.scores import accuracy, shuffled, spread


@dataclass(kw_only=True, eq=False, repr=False)
class TestSize(Study):
    """Accuracy over the number of test embeddings seen.

    Draws ``seeds`` random parts of each of ``sizes``; sizes beyond the domain's are left out.
    """

    __test__ = False  # not a test, despite its name

    name = "test-size"
    summary = "How many test embeddings are enough?"
    paper = "Ablation study, figure 4d"

    sizes: list[int] | tuple[int, ...] = (50, 100, 200, 400, 800, 1600, 3200)
    seeds: int = 5
    methods: str | list[str] | tuple[str, ...] = ("linear-tca", "conditional-tca")

    def __post_init__(self) -> None:
        self.sizes = whole_numbers("sizes", self.sizes)
        check_whole("seeds", self.seeds)
        self.methods = choices("methods", self.methods, ADAPTING_EMBEDDINGS)
        if self.sizes[0] < 2:
            raise ValueError("sizes: 1; a fit needs at least 2 embeddings")

    def measure(self, subject: Subject) -> dict[str, Any]:
        """Mean and deviation over seeds, for each domain, method and size; and the fit on everything."""
        g = subject.classifier
        domains: dict[str, Any] = {}
        for name, z, y in subject.shifted_domains():
            parts = [shuffled(len(z), seed, z.device) for seed in range(self.seeds)]
            sizes = [size for size in self.sizes if size < len(z)]
            methods: dict[str, Any] = {}
            for method in method_specs(self.methods, {}):
                rows = []
                for size in subject.tracked((*sizes, len(z)), f"{method.name} {name}", "size"):
                    accuracies = []
                    for part in parts if size < len(z) else parts[:1]:  # the whole domain has one sample only
                        adapter = method.adapter(g)
                        if adapter is None:
                            raise ValueError(f"methods: {method.name} adapts nothing")
                        accuracies.append(accuracy(adapter.fit(z[part[:size]]).predict(z), y))
                    rows.append({"images": size, "accuracies": accuracies, **spread(accuracies)})
                methods[method.name] = rows
            domains[name] = {"images": len(z), "zero_shot": accuracy(g.predict(z), y), "methods": methods}
        return {"domains": domains}

    def draw(self, results: dict[str, Any], figure: Figure) -> None:
        """A panel for each domain, a line and a band of one standard deviation for each method."""
        panels = domain_panels(figure, results)
        for panel, domain in panels:
            for i, (method, rows) in enumerate(domain["methods"].items()):
                x, mean = [row["images"] for row in rows], [row["mean"] for row in rows]
                low, high = ([row["mean"] + sign * row["std"] for row in rows] for sign in (-1, 1))
                panel.fill_between(x, low, high, color=COLOURS[i % len(COLOURS)], alpha=0.18, linewidth=0)
                panel.plot(x, mean, label=f"{method} (mean ± std)", **series(i))
            level(panel, domain["zero_shot"], "zero-shot")
            sizes_axis(panel, x, "test embeddings seen")
            at_least(panel)
        panels[0][0].set_ylabel("accuracy on the domain (%)")
        legend_below(figure, panels[0][0])

    def describe(self, results: dict[str, Any]) -> list[str]:
        """Accuracy with few and with all embeddings, and from which size on it is above zero-shot."""
        lines = []
        for name, domain in results["domains"].items():
            for method, rows in domain["methods"].items():
                enough = [
                    row["images"]
                    for i, row in enumerate(rows)
                    if all(later["mean"] > domain["zero_shot"] for later in rows[i:])
                ]
                gain = f"above zero-shot from {enough[0]} on" if enough else "not above zero-shot with all"
                lines.append(
                    f"{name}, {method}: {rows[0]['mean']:.2f} ± {rows[0]['std']:.2f} % with {rows[0]['images']}, "
                    f"{rows[-1]['mean']:.2f} % with all {rows[-1]['images']}, zero-shot {domain['zero_shot']:.2f} %; "
                    f"{gain}."
                )
        return lines
