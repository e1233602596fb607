"""Studies of the size of the pseudo-source (``k``), of the test set and of a stream's batches."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from torch import Tensor

from clip_tca.adapters.linear import LinearTCA
from clip_tca.adapters.statistics import coral_distance, moments, weighted_moments
from clip_tca.core.checks import check_whole, whole_numbers
from clip_tca.evaluation.method_spec import MethodSpec, predict
from clip_tca.methods.registry import ADAPTERS
from clip_tca.studies.figure_style import Panel, lines
from clip_tca.studies.frame import Study, Subject, accuracy, shuffled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(kw_only=True)
class K(Study):
    """The ablation on k: accuracy of LinearTCA for each k of ``values``, which are the paper's, and ``k="auto"``."""

    summary = "How many pseudo-source embeddings?"
    paper = "Ablation study, figure 4c"

    values: list[int] | tuple[int, ...] = (5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 100, 200, 300)

    def __post_init__(self) -> None:
        self.values = whole_numbers("values", self.values)

    def measure_domain(self, subject: Subject, z: Tensor, y: Tensor) -> dict[str, Any]:
        """Accuracy and size of the pseudo-source for each k."""
        rows = []
        k: Any
        for k in ("auto", *self.values):
            tca = LinearTCA(subject.classifier, k=k).fit(z)
            size = int(tca.pseudo_source_counts_.sum())
            rows.append({"k": k, "pseudo_source": size, "accuracy": accuracy(tca.predict(z), y)})
        zero_shot = accuracy(subject.classifier.predict(z), y)
        return {"images": len(z), "zero_shot": zero_shot, "auto": rows[0], "values": rows[1:]}

    @staticmethod
    def draw(results: dict[str, Any], figure: Figure) -> None:
        """A panel for each domain."""
        shown = []
        for name, domain in results["domains"].items():
            curve = [row["k"] for row in domain["values"]], [row["accuracy"] for row in domain["values"]]
            levels = {"zero-shot": domain["zero_shot"], "linear-tca, k = auto": domain["auto"]["accuracy"]}
            shown.append(Panel(name, "accuracy (%)", {"linear-tca": curve}, levels))
        lines(figure, shown, "k", log=True)

    @staticmethod
    def describe(results: dict[str, Any]) -> list[str]:
        """Accuracy with k = auto, and with the best k."""
        said = []
        for name, domain in results["domains"].items():
            worst, *_, best = sorted([domain["auto"], *domain["values"]], key=lambda row: row["accuracy"])
            said.append(
                f"{name}: zero-shot {domain['zero_shot']:.2f} %, k = auto {domain['auto']['accuracy']:.2f} %; best "
                f"{best['accuracy']:.2f} % at k = {best['k']}, worst {worst['accuracy']:.2f} % at k = {worst['k']}."
            )
        return [*said, "The best k is known only with labels; auto is what a user gets."]


@dataclass(kw_only=True)
class TestSize(Study):
    """The ablation on the test set's size: fit on some of the test embeddings, predict all of them.

    Draws ``seeds`` random parts of each of ``sizes``, for LinearTCA and ConditionalTCA; sizes beyond the domain's are
    left out. Every fit predicts the whole domain, so that accuracies of different sizes are on the same images.
    """

    __test__ = False  # not a test, despite its name

    summary = "How many test embeddings are enough?"
    paper = "Ablation study, figure 4d"

    sizes: list[int] | tuple[int, ...] = (50, 100, 200, 400, 800, 1600, 3200)
    seeds: int = 5

    def __post_init__(self) -> None:
        self.sizes = whole_numbers("sizes", self.sizes)
        check_whole("seeds", self.seeds)
        if self.sizes[0] < 2:
            raise ValueError("sizes: 1; a fit needs at least 2 embeddings")

    def measure_domain(self, subject: Subject, z: Tensor, y: Tensor) -> dict[str, Any]:
        """Mean and deviation over seeds, for each method and size; and the fit on everything."""
        g = subject.classifier
        parts = [z[shuffled(len(z), seed)] for seed in range(self.seeds)]
        sizes = [size for size in self.sizes if size < len(z)]
        methods: dict[str, Any] = {name: [] for name in ("linear-tca", "conditional-tca")}
        for name, rows in methods.items():
            for size in (*sizes, len(z)):
                drawn = parts if size < len(z) else [z]  # the whole domain has one sample only
                fits = [ADAPTERS[name].build(g).fit(part[:size]) for part in drawn]
                found = [accuracy(fitted.predict(z), y) for fitted in fits]
                rows.append({"images": size, "accuracies": found, "mean": fmean(found), "std": pstdev(found)})
        return {"images": len(z), "zero_shot": accuracy(g.predict(z), y), "methods": methods}

    @staticmethod
    def draw(results: dict[str, Any], figure: Figure) -> None:
        """A panel for each domain, a line with standard deviations for each method."""
        shown = []
        for name, domain in results["domains"].items():
            curves = {
                f"{method} (mean ± std)": [[row[key] for row in rows] for key in ("images", "mean", "std")]
                for method, rows in domain["methods"].items()
            }
            shown.append(Panel(name, "accuracy on the domain (%)", curves, {"zero-shot": domain["zero_shot"]}))
        lines(figure, shown, "test embeddings seen", log=True)

    @staticmethod
    def describe(results: dict[str, Any]) -> list[str]:
        """Accuracy with few and with all embeddings."""
        said = []
        for name, domain in results["domains"].items():
            for method, rows in domain["methods"].items():
                few, every = rows[0], rows[-1]
                said.append(
                    f"{name}, {method}: {few['mean']:.2f} ± {few['std']:.2f} % with {few['images']}, "
                    f"{every['mean']:.2f} % with all {every['images']}, zero-shot {domain['zero_shot']:.2f} %."
                )
        return said


@dataclass(kw_only=True)
class BatchSize(Study):
    """LinearTCA on streams: the first ``images`` in a seeded order (None: all of them), in batches of ``sizes``.

    Each batch is predicted after the statistics have been updated with it (setting ``online``). The map is solved again
    as ``refresh="auto"`` has it, at every batch size, so that nothing but the size differs. ``agreement`` is the share
    of predictions during the stream that equal those of one fit on the whole stream. The paper does not define its
    *pseudo-source estimation error*; here it is the correlation distance ‖Σ̂_s − Σ_s‖²_F / 4d² of the pseudo-source at
    the end of the stream to the source (the reference domain). It is the same at every batch size.
    """

    summary = "Does a stream in small batches adapt as well?"
    paper = "Performance under different batch sizes, table 8"

    sizes: list[int] | tuple[int, ...] = (1, 4, 16, 64, 256, 1024)
    images: int | None = 1024

    def __post_init__(self) -> None:
        self.sizes = whole_numbers("sizes", self.sizes)
        check_whole("images", self.images, 2, also=None)

    def measure_domain(self, subject: Subject, z: Tensor, y: Tensor) -> dict[str, Any]:
        """One stream for each size, and one fit to compare with."""
        g, method = subject.classifier, MethodSpec("linear-tca", {"refresh": "auto"})
        seen = shuffled(len(y)).to(y.device)[: self.images]
        z, y = z[seen], y[seen]
        fitted = LinearTCA(g).fit(z)
        once = fitted.predict(z)
        rows = []
        for size in self.sizes:
            streamed = predict(method, g, z, y, "online", size).classes
            rows.append({"batch": size, "accuracy": accuracy(streamed, y), "agreement": accuracy(streamed, once)})
        error = None
        if subject.reference is not None:
            selected = weighted_moments(fitted.pseudo_source_, fitted.pseudo_source_weights_)
            error = float(coral_distance(selected.covariance, moments(subject.source()[0]).covariance))
        scores = {"zero_shot": accuracy(g.predict(z), y), "one_fit": accuracy(once, y)}
        return {"images": len(z), **scores, "sizes": rows, "estimation_error": error}

    @staticmethod
    def draw(results: dict[str, Any], figure: Figure) -> None:
        """A panel for each domain: accuracy, and agreement with one fit."""
        shown = []
        for name, domain in results["domains"].items():
            sizes, right, agreement = ([r[key] for r in domain["sizes"]] for key in ("batch", "accuracy", "agreement"))
            curves = {"accuracy of the stream": (sizes, right), "agreement with one fit": (sizes, agreement)}
            levels = {"accuracy of zero-shot": domain["zero_shot"], "accuracy of one fit": domain["one_fit"]}
            shown.append(Panel(name, "% of images", curves, levels))
        lines(figure, shown, "batch size (images)", log=True)

    @staticmethod
    def describe(results: dict[str, Any]) -> list[str]:
        """The cost of small batches in accuracy, and the estimation error."""
        said = []
        for name, domain in results["domains"].items():
            first, last = domain["sizes"][0], domain["sizes"][-1]
            said.append(
                f"{name}, linear-tca, {domain['images']} images: batch {first['batch']} {first['accuracy']:.2f} %, "
                f"batch {last['batch']} {last['accuracy']:.2f} %, one fit {domain['one_fit']:.2f} %, zero-shot "
                f"{domain['zero_shot']:.2f} %; batch {first['batch']} agrees with one fit on "
                f"{first['agreement']:.1f} % of images."
            )
            if domain["estimation_error"] is not None:
                said.append(
                    f"{name}: correlation distance of the pseudo-source to {results['reference']} at the end of the "
                    f"stream (estimation error) {domain['estimation_error']:.3g} at every batch size."
                )
        return said
