"""Streams in batches of 1 to 1024: accuracy during the stream, and the estimation error of the pseudo-source.

Each batch is predicted after the statistics have been updated with it (setting ``online``). The map is solved again
as ``refresh="auto"`` has it (:mod:`clip_tca.adapters.base`), at every batch size, so that nothing but the size
differs. The paper does not define its *pseudo-source estimation error*; here it is the correlation distance
‖Σ̂_s − Σ_s‖²_F / 4d² of the pseudo-source at the end of the stream to the source (the reference domain). ``agreement``
is the share of predictions during the stream that equal those of one fit on the whole stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from clip_tca.adapters.linear import LinearTCA
from clip_tca.adapters.statistics import coral_distance, moments, weighted_moments
from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import check_whole, choices, whole_numbers
from clip_tca.evaluation.method_spec import method_specs
from clip_tca.evaluation.protocols import predict
from clip_tca.studies import figure_style as style
from clip_tca.studies.base import Figure, Study, Subject
from clip_tca.studies.measured_methods import ADAPTING_EMBEDDINGS
from clip_tca.studies.scores import accuracy, shuffled


@dataclass(kw_only=True, eq=False, repr=False)
class BatchSize(Study):
    """Accuracy, agreement with one fit, and estimation error by batch size.

    Streams are the first ``images`` in a seeded order (None: all of them), in batches of ``sizes``.
    """

    name = "batch-size"
    summary = "Does a stream in small batches adapt as well?"
    paper = "Performance under different batch sizes, table 8"

    sizes: list[int] | tuple[int, ...] = (1, 4, 16, 64, 256, 1024)
    images: int | None = 1024
    methods: str | list[str] | tuple[str, ...] = "linear-tca"

    def __post_init__(self) -> None:
        self.sizes = whole_numbers("sizes", self.sizes)
        check_whole("images", self.images, 2, also=None)
        self.methods = choices("methods", self.methods, ADAPTING_EMBEDDINGS)

    def measure(self, subject: Subject) -> dict[str, Any]:
        """One stream for each domain, method and size, and one fit to compare with."""
        g = subject.classifier
        target = None if subject.reference is None else moments(subject.source()[0]).covariance
        domains: dict[str, Any] = {}
        for name, embeddings, labels in subject.shifted_domains():
            stream = shuffled(len(labels), 0, embeddings.device)[: self.images]
            z, y = embeddings[stream], labels[stream]
            methods: dict[str, Any] = {}
            for method in method_specs(self.methods, {"refresh": "auto"}):
                once = predict(method, g, z, y, "transductive", len(z)).classes
                rows = []
                for size in subject.tracked(self.sizes, f"{method.name} {name}", "stream"):
                    streamed = predict(method, g, z, y, "online", size).classes
                    scores = {"accuracy": accuracy(streamed, y), "agreement": accuracy(streamed, once)}
                    rows.append({"batch": size, **scores})
                methods[method.name] = {"one_fit": accuracy(once, y), "sizes": rows}
            domains[name] = {
                "images": len(z),
                "zero_shot": accuracy(g.predict(z), y),
                "methods": methods,
                "estimation_error": None
                if target is None
                else [self._error(g, z, size, target) for size in self.sizes],
            }
        return {"reference": subject.reference, "sizes": self.sizes, "domains": domains}

    @staticmethod
    def _error(g: LinearClassifier, z: Tensor, size: int, target: Tensor) -> float:
        tca = LinearTCA(g, refresh=len(z))  # solved at the end: only the pseudo-source is looked at
        for batch in z.split(size):
            tca.partial_fit(batch)
        tca.solve()
        source = weighted_moments(tca.pseudo_source_, tca.pseudo_source_weights_)
        return float(coral_distance(source.covariance, target))

    def draw(self, results: dict[str, Any], figure: Figure) -> None:
        """Accuracy, a panel for each domain; then agreement with one fit and estimation error of all domains."""
        sizes, domains = results["sizes"], results["domains"]
        first, *others = next(iter(domains.values()))["methods"]
        titles = [f"Accuracy: {style.label(name)}" for name in domains]
        titles += ["Agreement with one fit" + (f": {first}" if others else "")]
        titles += ["Estimation error"] if results["reference"] else []
        axes = style.panels(figure, titles, 2.7)
        for panel, domain in zip(axes, domains.values(), strict=False):
            for i, (method, streams) in enumerate(domain["methods"].items()):
                accuracies, look = [row["accuracy"] for row in streams["sizes"]], style.series(i)
                panel.plot(sizes, accuracies, label=f"{method}, stream", **look)
                one_fit, name = streams["one_fit"], f"{method}, one fit"
                panel.axhline(one_fit, color=look["color"], linestyle=":", linewidth=1.5, label=name)
            style.level(panel, domain["zero_shot"], "zero-shot")
            panel.set_ylabel("accuracy (%)")
            style.at_least(panel)
        distances = [error for domain in domains.values() for error in domain["estimation_error"] or ()]
        unit, times = style.magnitude(distances)
        agreement, errors = axes[len(domains)], axes[len(domains) + 1 :]
        for j, (name, domain) in enumerate(domains.items()):
            look = {**style.series(j + 1 + len(others)), "label": style.label(name)}
            rows = domain["methods"][first]["sizes"]
            agreement.plot(sizes, [row["agreement"] for row in rows], **look)
            for panel in errors:
                panel.plot(sizes, [distance / unit for distance in domain["estimation_error"]], **look)
        agreement.set_ylabel("% of predictions")
        for panel in errors:
            panel.set_ylim(bottom=0)
            panel.set_ylabel("distance to source" + times)
        for panel in axes:
            style.sizes_axis(panel, sizes, "batch size (images)")
        style.legend_below(figure, [axes[0], agreement], 6)

    def describe(self, results: dict[str, Any]) -> list[str]:
        """The cost of small batches in accuracy, and their estimation error."""
        lines = []
        for name, domain in results["domains"].items():
            for method, streams in domain["methods"].items():
                first, last = streams["sizes"][0], streams["sizes"][-1]
                lines.append(
                    f"{name}, {method}, {domain['images']} images: batch {first['batch']} {first['accuracy']:.2f} %, "
                    f"batch {last['batch']} {last['accuracy']:.2f} %, one fit {streams['one_fit']:.2f} %, zero-shot "
                    f"{domain['zero_shot']:.2f} %; batch {first['batch']} agrees with one fit on "
                    f"{first['agreement']:.1f} % of images."
                )
            if domain["estimation_error"] is None:
                continue
            low, high = min(domain["estimation_error"]), max(domain["estimation_error"])
            over = f"{low:.3g} at every" if high - low <= 1e-6 * high else f"{low:.3g} to {high:.3g}, by"
            lines.append(
                f"{name}: correlation distance of linear-tca's pseudo-source to {results['reference']} at the end of "
                f"the stream (estimation error) {over} batch size."
            )
        return lines
