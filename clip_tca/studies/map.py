"""``map``: scatter plots of the embeddings before and after adaptation, with the class texts and the pseudo-source.

A row for each domain, two panels with the same axes. By default these are the two principal components of all
embeddings before and after together; the texts are projected onto them, and need not be near the images of their
class. t-SNE and UMAP embed the drawn points and the texts together. For a classifier without texts, the directions of
the class weights take their place.

A colour is the class *predicted* in that panel; labels are used for the accuracy in its title only. Dots with a black
edge are landmarks of the adapter: the pseudo-source before adaptation, in both panels, to whose mean and covariance all
embeddings are mapped; or the class means of an adapter without a pseudo-source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clip_tca.adapters.linear import LinearTCA
from clip_tca.adapters.registry import ADAPTERS
from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import as_list, check_whole, one_of
from clip_tca.core.tensors import double
from clip_tca.methods.base import prototypes
from clip_tca.studies.base import Study, Subject
from clip_tca.studies.projection import PROJECTIONS, imported, label_places, neighbours, principal_axes, rounded
from clip_tca.studies.scores import accuracy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COLOURED = 10
"""Classes with a colour and a label; the others are grey."""

CLASS_COLOURS = (
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c564b", "#7b5fc7", "#b5bd00", "#444444"
)  # fmt: skip
OTHERS = "#c8c8c8"


@dataclass(kw_only=True, eq=False, repr=False)
class Map(Study):
    """Embeddings in the plane, before and after adaptation.

    Args:
        method: ``pca``, ``tsne`` (needs scikit-learn) or ``umap`` (needs umap-learn).
        adapter: An adapter that uses no labels, such as ``linear-tca`` or ``conditional-tca``.
        limit: Embeddings of each domain that are drawn, evenly spread; all are adapted and counted.
        domain: Domain or domains to draw; None is every domain but the reference.
        seed: Of t-SNE and UMAP.
    """

    name = "map"
    summary = "Embeddings before and after adaptation, in two dimensions"
    paper = "no figure of the paper: a view of your own data"

    method: str = "pca"
    adapter: str = "linear-tca"
    limit: int = 1500
    domain: str | Sequence[str] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("method", self.method, PROJECTIONS)
        one_of("adapter", self.adapter, tuple(name for name, registered in ADAPTERS.items() if not registered.oracle))
        check_whole("limit", self.limit, 10)
        check_whole("seed", self.seed, 0, 2**32 - 1)
        # a folder may be called 2019, which --set takes for a number
        self.domain = None if self.domain is None else tuple(map(str, as_list("domain", self.domain)))

    def measure(self, subject: Subject) -> dict[str, Any]:
        """Coordinates, predictions and accuracy, by domain."""
        if self.method != "pca":
            imported(self.method)  # a missing package is reported before the measurement
        domains = subject.embedded.data.domains
        for name in self.domain or ():
            one_of("domain", name, tuple(domains))
        chosen = subject.shifted if self.domain is None else {name: domains[name] for name in self.domain}
        names = subject.embedded.about["data"]["classes"]
        shown = subject.tracked(list(chosen.items()), "adapting", "domain")
        adapted = {name: adapt(subject, z, y, self.adapter) for name, (z, y) in shown}
        predicted = torch.cat([labels for domain in adapted.values() for labels in domain.predicted.values()])
        counts = torch.bincount(predicted, minlength=len(names))
        most = counts.argsort(descending=True, stable=True)[:MOST_COLOURED].sort().values
        return {
            "method": self.method,
            "adapter": self.adapter,
            "classes": {str(label): names[label] for label in most.tolist()},
            "all_classes": len(names),
            "domains": {
                name: self._placed(domain, subject.classifier, most)
                for name, domain in subject.tracked(list(adapted.items()), "placing", "domain")
            },
        }

    def _placed(self, domain: Adapted, classifier: LinearClassifier, most: Tensor) -> dict[str, Any]:
        """Coordinates and scores of a domain, for the record."""
        n, device = len(domain.before), domain.before.device
        drawn = torch.arange(min(n, self.limit), device=device) * n // min(n, self.limit)  # evenly spread
        coloured = torch.isin(domain.mark_classes, most)
        parts = [domain.before[drawn], domain.after[drawn], domain.marks[coloured], prototypes(classifier)[most]]
        explained = None
        if self.method == "pca":
            centre, axes, explained = principal_axes(torch.cat([domain.before, domain.after]))
            places = [(double(part) - centre) @ axes for part in parts]
        else:
            placed = neighbours(torch.cat([double(part) for part in parts]), self.method, self.seed)
            places = list(placed.split([len(part) for part in parts]))
        before, after, marks, texts = (rounded(place) for place in places)
        return {
            "images": n,
            "accuracy": domain.accuracy,
            "changed": int((domain.predicted["before"] != domain.predicted["after"]).sum()),
            "explained": explained,
            "points": {"before": before, "after": after},
            "predicted": {when: labels[drawn].tolist() for when, labels in domain.predicted.items()},
            "marks": marks,
            "mark_classes": domain.mark_classes[coloured].tolist(),
            "all_marks": len(domain.marks),
            "texts": texts,
        }

    def draw(self, results: dict[str, Any], figure: Figure) -> None:
        """A row of two panels for each domain."""
        domains = results["domains"]
        figure.set_layout_engine("constrained")
        figure.set_size_inches(10, 0.9 + 4.3 * len(domains))
        panels = figure.subplots(len(domains), 2, sharex="row", sharey="row", squeeze=False)
        colours = dict(zip(map(int, results["classes"]), CLASS_COLOURS, strict=False))
        for row, (name, domain) in zip(panels, domains.items(), strict=True):
            for axes, when in zip(row, ("before", "after"), strict=True):
                _panel(axes, domain, when, colours)
                what = "zero-shot" if when == "before" else results["adapter"]
                axes.set_title(f"{name}, {when}: {what} {domain['accuracy'][when]:.1f} %", fontsize=10, loc="left")
            for axes in row:  # once both are drawn: they share their limits
                _label_texts(axes, domain, list(results["classes"].values()))
        _legend(figure, results, colours)

    def describe(self, results: dict[str, Any]) -> list[str]:
        """A line for each domain."""
        adapter, mark = results["adapter"], mark_name(results["adapter"])
        return [
            f"{name}: zero-shot {domain['accuracy']['before']:.2f} %, {adapter} {domain['accuracy']['after']:.2f} %; "
            f"{domain['changed']} of {domain['images']} predictions change; marked: "
            f"{mark} ({domain['all_marks']})"
            + (f"; the plane holds {100 * domain['explained']:.0f} % of the variance." if domain["explained"] else ".")
            for name, domain in results["domains"].items()
        ]


@dataclass(frozen=True)
class Adapted:
    """Unit embeddings ``(n, d)`` of a domain before and after adaptation.

    Predictions and accuracy (percent) are those of zero-shot (``"before"``) and of the adapter (``"after"``). Marks are
    the pseudo-source or the class means ``(m, d)``, with their classes as zero-shot predicts them.
    """

    before: Tensor
    after: Tensor
    predicted: dict[str, Tensor]
    accuracy: dict[str, float]
    marks: Tensor
    mark_classes: Tensor


def adapt(subject: Subject, z: Tensor, labels: Tensor, adapter: str) -> Adapted:
    """Adapt to a whole domain; ``labels`` are for scoring."""
    classifier, z, labels = subject.classifier, subject.prepared(z), subject.on_device(labels)
    fitted: Any = ADAPTERS[adapter].build(classifier).fit(z)
    predicted = {"before": classifier.predict(z), "after": fitted.predict(z)}
    if has_pseudo_source(adapter):
        marks, classes = fitted.pseudo_source_, classifier.predict(fitted.pseudo_source_)
    else:
        marks, classes = fitted.means_, torch.arange(classifier.n_classes, device=z.device)
    scores = {when: accuracy(prediction, labels) for when, prediction in predicted.items()}
    return Adapted(z, fitted.transform(z), predicted, scores, marks, classes)


def has_pseudo_source(adapter: str) -> bool:
    """Whether an adapter selects a pseudo-source; the others have class means."""
    return issubclass(ADAPTERS[adapter].kind, LinearTCA)


def mark_name(adapter: str) -> str:
    """What is marked besides the texts."""
    return "pseudo-source" if has_pseudo_source(adapter) else "class means"


def _panel(axes: Axes, domain: dict[str, Any], when: str, colours: dict[int, str]) -> None:
    """Points by predicted class, those without a colour first, and the marks."""
    points, predicted = domain["points"][when], domain["predicted"][when]
    order = sorted(range(len(points)), key=lambda i: predicted[i] in colours)
    x, y = zip(*(points[i] for i in order), strict=True)
    shades = [colours.get(predicted[i], OTHERS) for i in order]
    axes.scatter(x, y, s=7, c=shades, alpha=0.55, linewidths=0, rasterized=True)  # as vectors they would be large
    if domain["marks"]:
        x, y = zip(*domain["marks"], strict=True)
        edges = [colours[label] for label in domain["mark_classes"]]
        axes.scatter(x, y, s=26, c=edges, edgecolors="black", linewidths=0.9)
    x, y = zip(*domain["texts"], strict=True)
    axes.scatter(x, y, s=190, c=list(colours.values()), marker="*", edgecolors="black", linewidths=0.9, zorder=4)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.margins(0.06)


def _label_texts(axes: Axes, domain: dict[str, Any], names: list[str]) -> None:
    """Write the class names near the texts, with a line to each; they cover no name, no text and no class mean."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    few = domain["marks"] if len(domain["marks"]) <= MOST_COLOURED else []
    points, others = (
        [((x - left) / (right - left), (y - low) / (high - low)) for x, y in part] for part in (domain["texts"], few)
    )
    places = label_places(points, [0.02 + 0.018 * len(name) for name in names], 0.055, others)
    box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
    line = {"arrowstyle": "-", "linewidth": 0.7, "color": "black", "shrinkA": 0, "shrinkB": 0}
    where: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "axes fraction", "ha": "center", "va": "center"}
    for name, point, place in zip(names, points, places, strict=True):
        axes.annotate(name, point, place, fontsize=8, bbox=box, arrowprops=line, zorder=5, **where)


def _legend(figure: Figure, results: dict[str, Any], colours: dict[int, str]) -> None:
    """Colours and marks, below the panels."""
    from matplotlib.lines import Line2D

    def mark(marker: str, label: str, size: float = 7, **style: Any) -> Line2D:
        return Line2D([], [], linestyle="none", marker=marker, markersize=size, label=label, **style)

    handles = [mark("o", results["classes"][str(label)], color=colour) for label, colour in colours.items()]
    if (rest := results["all_classes"] - len(colours)) > 0:
        handles.append(mark("o", f"{rest} other classes", color=OTHERS))
    dark: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": "black"}
    handles += [mark("o", mark_name(results["adapter"]), **dark), mark("*", "class text", 11, **dark)]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=8, frameon=False)
