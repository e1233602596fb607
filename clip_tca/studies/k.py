"""The ablation on k: accuracy over the size of the pseudo-source, with the zero-shot line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from clip_tca.adapters.linear import SHARES, LinearTCA
from clip_tca.core.checks import one_of, whole_numbers
from clip_tca.studies.base import Figure, Study, Subject
from clip_tca.studies.figure_style import COLOURS, at_least, domain_panels, legend_below, level, series, sizes_axis
from clip_tca.studies.scores import accuracy

VALUES_OF_THE_PAPER = (5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 100, 200, 300)
"""The values of k that the paper tries."""


@dataclass(kw_only=True, eq=False, repr=False)
class K(Study):
    """Accuracy of LinearTCA for each k of ``values``, and with ``k="auto"``.

    ``shares`` are those of the classes (see :mod:`clip_tca.adapters.linear`).
    """

    name = "k"
    summary = "How many pseudo-source embeddings?"
    paper = "Ablation study, figure 4c"

    values: list[int] | tuple[int, ...] = VALUES_OF_THE_PAPER
    shares: Literal["estimated", "uniform", "predicted", "global"] = "estimated"

    def __post_init__(self) -> None:
        self.values = whole_numbers("values", self.values)
        one_of("shares", self.shares, tuple(name for name in SHARES if name != "oracle"))

    def measure(self, subject: Subject) -> dict[str, Any]:
        """Accuracy and size of the pseudo-source for each k."""
        domains: dict[str, Any] = {}
        for name, z, y in subject.shifted_domains():
            rows = []
            k: Any
            for k in subject.tracked(("auto", *self.values), name, "fit"):
                tca = LinearTCA(subject.classifier, k=k, shares=self.shares).fit(z)
                size = int(tca.pseudo_source_counts_.sum())
                rows.append({"k": k, "pseudo_source": size, "accuracy": accuracy(tca.predict(z), y)})
            zero_shot = accuracy(subject.classifier.predict(z), y)
            domains[name] = {"images": len(z), "zero_shot": zero_shot, "auto": rows[0], "values": rows[1:]}
        return {"method": "linear-tca", "shares": self.shares, "domains": domains}

    def draw(self, results: dict[str, Any], figure: Figure) -> None:
        """A panel for each domain."""
        panels = domain_panels(figure, results, sharex=True)
        for panel, domain in panels:
            values = [row["k"] for row in domain["values"]]
            panel.plot(values, [row["accuracy"] for row in domain["values"]], label="linear-tca", **series(0))
            panel.axhline(domain["auto"]["accuracy"], color=COLOURS[1], linewidth=1.4, label="linear-tca, k = auto")
            level(panel, domain["zero_shot"], "zero-shot")
            sizes_axis(panel, values, "k")
            at_least(panel)
        panels[0][0].set_ylabel("accuracy (%)")
        legend_below(figure, panels[0][0])

    def describe(self, results: dict[str, Any]) -> list[str]:
        """The range of k that helps."""
        lines = []
        for name, domain in results["domains"].items():
            best = max(domain["values"], key=lambda row: row["accuracy"])
            worst = min(domain["values"], key=lambda row: row["accuracy"])
            above = sum(row["accuracy"] > domain["zero_shot"] for row in domain["values"])
            lines.append(
                f"{name}: zero-shot {domain['zero_shot']:.2f} %, k = auto {domain['auto']['accuracy']:.2f} %; best "
                f"{best['accuracy']:.2f} % at k = {best['k']}, worst {worst['accuracy']:.2f} % at k = {worst['k']}; "
                f"above zero-shot for {above} of {len(domain['values'])} values."
            )
        lines.append("The best k is known only with labels; auto is what a user gets.")
        return lines
