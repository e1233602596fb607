"""Streams in batches of 1 to 1024: accuracy on the way, and the error of the pseudo-source that is estimated.

Each batch is predicted when the statistics have seen it and those before it (setting ``online``); the map is solved
again when a tenth of all images is new, at every batch size, so that sizes differ in nothing else. The paper's
*pseudo-source estimation error* is not defined there; here it is the correlation distance ‖Σ̂_s − Σ_s‖²_F / 4d² of the
pseudo-source at the end of the stream to the source (the reference domain). ``agreement`` is the share of predictions
made on the way that equal those of one fit on the whole stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from clip_tca.adapters.linear import LinearTCA
from clip_tca.adapters.statistics import coral_distance, covariance
from clip_tca.classifier import ZeroShotClassifier
from clip_tca.core.checks import check_whole, names, numbers
from clip_tca.evaluation.method_spec import method_specs
from clip_tca.evaluation.protocols import predict
from clip_tca.studies.base import Study, Subject
from clip_tca.studies.domains import accuracy, present, shifted, shuffled, source
from clip_tca.studies.measurable import ADAPTING_EMBEDDINGS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class BatchSize(Study):
    """Accuracy, agreement with one fit, and estimation error by batch size."""

    name = "batch-size"
    summary = "Does a stream in small batches adapt as well?"
    paper = "Performance under different batch sizes, table 8"

    def __init__(
        self,
        *,
        sizes: list[int] | tuple[int, ...] = (1, 4, 16, 64, 256, 1024),
        images: int | None = 1024,
        methods: str | list[str] | tuple[str, ...] = "linear-tca",
    ) -> None:
        """Streams of the first ``images`` in a seeded order (None: all of them), in batches of ``sizes``."""
        self.sizes = numbers("sizes", sizes)
        check_whole("images", images, 2, also=None)
        self.images = images
        self.methods = names("methods", methods, ADAPTING_EMBEDDINGS)

    def measure(self, subject: Subject | None) -> dict[str, Any]:
        """One stream for each domain, method and size, and one fit to compare with."""
        subject = present(subject)
        g = subject.classifier
        target = None if subject.reference is None else covariance(source(subject)[0])
        domains: dict[str, Any] = {}
        for name, everything, labels in shifted(subject):
            stream = shuffled(len(labels), 0, everything.device)[: self.images]
            z, y = everything[stream], labels[stream]
            methods: dict[str, Any] = {}
            for method in method_specs(self.methods, {"refresh": "auto"}):
                once = predict(method, g, z, y, "transductive", len(z)).classes
                rows = []
                for size in self.sizes:
                    found = predict(method, g, z, y, "online", size).classes
                    rows.append({"batch": size, "accuracy": accuracy(found, y), "agreement": accuracy(found, once)})
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
    def _error(g: ZeroShotClassifier, z: Tensor, size: int, target: Tensor) -> float:
        tca = LinearTCA(g, solver="mean")  # selects the same pseudo-source, solves for nothing
        for batch in z.split(size):
            tca.partial_fit(batch)
        return float(coral_distance(tca.pseudo_source_covariance_, target))

    def draw(self, results: dict[str, Any], figure: Figure) -> None:
        """Accuracy, a panel for each domain; then agreement with one fit and estimation error of all domains."""
        from clip_tca.studies.drawing import (
            COLOURS,
            at_least,
            label,
            legend_below,
            level,
            magnitude,
            panels,
            series,
            sizes_axis,
        )

        sizes, domains = results["sizes"], results["domains"]
        first, *others = next(iter(domains.values()))["methods"]
        one_fit = "Agreement with one fit" + (f": {first}" if others else "")
        last = [one_fit, "Estimation error"] if results["reference"] else [one_fit]
        axes = panels(figure, [*[f"Accuracy: {label(name)}" for name in domains], *last], 2.7)
        for panel, found in zip(axes, domains.values(), strict=False):
            for i, (method, of) in enumerate(found["methods"].items()):
                panel.plot(sizes, [row["accuracy"] for row in of["sizes"]], label=f"{method}, stream", **series(i))
                colour = COLOURS[i % len(COLOURS)]
                panel.axhline(of["one_fit"], color=colour, linestyle=":", linewidth=1.5, label=f"{method}, one fit")
            level(panel, found["zero_shot"], "zero-shot")
            panel.set_ylabel("accuracy (%)")
            at_least(panel)
        unit, times = magnitude([one for found in domains.values() for one in found["estimation_error"] or ()])
        agreement, error = axes[len(domains)], axes[len(domains) + 1 :]
        for j, (name, found) in enumerate(domains.items()):
            look = {**series(j + 1 + len(others)), "label": label(name)}
            rows = found["methods"][first]["sizes"]
            agreement.plot(sizes, [row["agreement"] for row in rows], **look)
            for panel in error:
                panel.plot(sizes, [distance / unit for distance in found["estimation_error"]], **look)
        agreement.set_ylabel("% of predictions")
        for panel in error:
            panel.set_ylim(bottom=0)
            panel.set_ylabel("distance to source" + times)
        for panel in axes:
            sizes_axis(panel, sizes, "batch size (images)")
        legend_below(figure, [axes[0], agreement], 6)

    def describe(self, results: dict[str, Any]) -> list[str]:
        """What small batches cost, and whether the estimate suffers."""
        lines = []
        for name, found in results["domains"].items():
            for method, of in found["methods"].items():
                first, last = of["sizes"][0], of["sizes"][-1]
                lines.append(
                    f"{name}, {method}, {found['images']} images: batch {first['batch']} {first['accuracy']:.2f} %, "
                    f"batch {last['batch']} {last['accuracy']:.2f} %, one fit {of['one_fit']:.2f} %, zero-shot "
                    f"{found['zero_shot']:.2f} %; batch {first['batch']} agrees with one fit on "
                    f"{first['agreement']:.1f} % of images."
                )
            if found["estimation_error"] is None:
                continue
            low, high = min(found["estimation_error"]), max(found["estimation_error"])
            over = f"{low:.3g} at every" if high - low <= 1e-6 * high else f"{low:.3g} to {high:.3g}, by"
            lines.append(
                f"{name}: correlation distance of linear-tca's pseudo-source to {results['reference']} at the end of "
                f"the stream (estimation error) {over} batch size."
            )
        return lines
