"""``toy``: the paper's two-dimensional shifts, and the result of each map on them.

The paper draws them (its figure 4 a, b and the figures "Adaptation process of LinearTCA to datasets with linear /
nonlinear shifts"; data in :mod:`clip_tca.studies.toy_shifts`) but does not specify the pseudo-source, the classifier or
the number of steps of W. This study uses:

* **Target: the source itself**, as its figures suggest: they show the map, not the selection. A test-time method has no
  source, so the same linear map to a pseudo-source, the 30 most certain test points of each predicted class, is
  measured too. (The target is not a selection of LinearTCA, so the maps come from :mod:`clip_tca.adapters.linear`.)
* **g**: the linear classifier of the source's clusters, Gaussians of one common variance: logits
  (x·m_c − ‖m_c‖²/2) / s², with the means m_c and the variance s² of the source points.
* **Process**: W by Adam from the identity with the paper's learning rate, 1e-3, until convergence; at step 0 only the
  means are aligned. ``LinearTCA`` is the package's closed form (Monge).
* **MLP-2, MLP-3**: the residual MLP of :mod:`clip_tca.adapters.mlp`, 16 wide, behind the linear map, trained
  until the distribution matches the source's.

Measured against the source: correlation distance ‖Σ − Σ_s‖²_F / 4d², distance of the means, mean distance of a class
centre from its own in the source, and accuracy of g. Only the last two use the classes of the test points; no map does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clip_tca.adapters.linear import certain_rows, gradient, monge, uncertainty
from clip_tca.adapters.mlp import fit_residual, initial_parameters, residual, seen_by
from clip_tca.adapters.statistics import Moments, coral_distance, moments
from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import check_whole
from clip_tca.studies.base import Study, Subject
from clip_tca.studies.projection import rounded
from clip_tca.studies.toy_shifts import SHIFTS, SOURCE_POINTS, TEST_POINTS, Points, Shift

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEPS = (0, 50, 100, 200, 400, 800, 1600)
"""Steps of W at which the process is measured."""

DRAWN_STEPS = (0, 100, 200, 400, 1600)
"""The steps that are drawn, after the unadapted points: six panels, as in the paper."""

LR = 1e-3
"""Learning rate of W."""

MLP_STEPS, MLP_WIDTH, MLP_LR = 300, 16, 1e-2

POINT_COLOURS = {"source": "#1f77b4", "test": "#f2a900", "transformed": "#d62728"}

FINAL = {
    "linear-tca": "LinearTCA",
    "mlp2-tca": "MLP-2",
    "mlp3-tca": "MLP-3",
    "linear-tca, pseudo-source": "LinearTCA, pseudo-source",
}
"""The maps, by the names in the record."""


@dataclass(kw_only=True, eq=False, repr=False)
class Toy(Study):
    """LinearTCA and MLP maps of the paper's two-dimensional shifts, with ``points`` test points of each cluster.

    The points and the MLPs' first layers are drawn with ``seed``.
    """

    name = "toy"
    summary = "Linear and non-linear shifts in two dimensions, and what linear and MLP maps make of them"
    paper = "Figure 4 (a, b) and the appendix's figures of the adaptation process"
    needs_data = False

    seed: int = 0
    points: int = TEST_POINTS

    def __post_init__(self) -> None:
        check_whole("seed", self.seed, 0, 2**63 - 1)
        check_whole("points", self.points, 2, 100_000)

    def measure(self, subject: Subject | None = None) -> dict[str, Any]:
        """Points, distances and accuracy of every map, by shift."""
        shifts = {name: _measure(shift, self.seed, self.points) for name, shift in SHIFTS.items()}
        return {"seed": self.seed, "points": self.points, "learning_rate": LR, "shifts": shifts}

    def draw(self, results: dict[str, Any], figure: Figure) -> None:
        """For each shift a row with the process of LinearTCA, and a row with every map and the curves."""
        shifts = results["shifts"]
        figure.set_layout_engine("constrained")
        figure.set_size_inches(12, 4.8 * len(shifts))
        grid = figure.add_gridspec(2 * len(shifts), 6)
        for i, (name, shift) in enumerate(shifts.items()):
            above, below = 2 * i, 2 * i + 1
            places = [grid[above, column] for column in range(6)] + [grid[below, column] for column in range(4)]
            panels = _scatters(figure, places, shift)
            panels[0].set_ylabel(f"{name} shift: process", fontsize=10)
            panels[6].set_ylabel(f"{name} shift: maps", fontsize=10)
            _curves(figure.add_subplot(grid[below, 4:]), shift)
        handles, labels = panels[-1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, markerscale=3, frameon=False)

    def describe(self, results: dict[str, Any]) -> list[str]:
        """A few lines for each shift."""
        lines = []
        for name, shift in results["shifts"].items():
            before, shifted, maps = shift["before"], shift["process"]["0"], shift["maps"]
            linear, selected = maps["linear-tca"], maps["linear-tca, pseudo-source"]
            distances = [f"{FINAL[key]} {maps[key]['correlation']:.2f}" for key in list(FINAL)[:3]]
            mlps = [f"{FINAL[key]} {maps[key]['accuracy']:.1f} %" for key in ("mlp2-tca", "mlp3-tca")]
            lines += [
                f"{name} shift: accuracy {before['accuracy']:.1f} % before, {linear['accuracy']:.1f} % after LinearTCA "
                f"({shifted['accuracy']:.1f} % by aligning the means alone); {', '.join(mlps)}.",
                f"{name} shift: correlation distance from the source {before['correlation']:.2f} before, "
                f"{', '.join(distances)}; the mean is {before['mean']:.2f} from the source's before, "
                f"{linear['mean']:.2f} after LinearTCA, class centres {before['centres']:.2f} and "
                f"{linear['centres']:.2f}.",
                f"{name} shift: aligned with the most certain test points instead of the source, accuracy is "
                f"{selected['accuracy']:.1f} % and the correlation distance from the source "
                f"{selected['correlation']:.2f}.",
            ]
        return lines


def _measure(shift: Shift, seed: int, points: int) -> dict[str, Any]:
    source, test = shift.draw(seed, points)
    score = partial(_scored, source=source, test=test)
    before, target = moments(test.x), moments(source.x)
    chosen = pseudo_source(source, test.x)
    selected = moments(test.x[chosen])
    process = {step: _linear(test.x, before, target, step) for step in STEPS}
    linear = _linear(test.x, before, target)
    mapped = {
        "linear-tca": linear,
        **{f"mlp{layers}-tca": _mlp(linear, source, layers, seed) for layers in (2, 3)},
        "linear-tca, pseudo-source": _linear(test.x, before, selected),
    }
    return {
        "source": rounded(source.x),
        "test": rounded(test.x),
        "pseudo_source": rounded(test.x[chosen]),
        "before": score(test.x),
        "process": {
            str(step): score(x) | ({"points": rounded(x)} if step in DRAWN_STEPS else {}) for step, x in process.items()
        },
        "maps": {name: {**score(x), "points": rounded(x)} for name, x in mapped.items()},
    }


def source_classifier(source: Points) -> LinearClassifier:
    """g: Gaussians of one variance around the source's class means."""
    centres = source.centres()
    variance = (source.x - centres[source.y]).square().sum() / (2 * (len(source.x) - len(centres)))
    return LinearClassifier(centres / variance, -centres.square().sum(dim=1) / 2 / variance)


def pseudo_source(source: Points, x: Tensor) -> Tensor:
    """Indices of the most certain points of ``x``, as many of each predicted class as the source has."""
    p = source_classifier(source).predict_proba(x)
    return certain_rows(uncertainty(p), p.argmax(dim=1), torch.full((p.shape[1],), SOURCE_POINTS))


def _linear(x: Tensor, test: Moments, target: Moments, steps: int | None = None) -> Tensor:
    """(x − μ_t)W + μ_s with W after ``steps`` gradient steps; None is the closed form."""
    sigmas = test.covariance, target.covariance
    w = monge(*sigmas) if steps is None else gradient(*sigmas, steps, LR)
    return (x - test.mean) @ w + target.mean


def _mlp(x: Tensor, source: Points, layers: int, seed: int) -> Tensor:
    """The points ``x``, already mapped linearly, after the MLP behind the linear map."""
    start = initial_parameters(x.shape[1], layers, MLP_WIDTH, seed, x)
    target = source.x, torch.full_like(source.x[:, 0], 1 / len(source.x))
    view = seen_by(source_classifier(source).weight)
    fitted = fit_residual(x, target, view, start, MLP_STEPS, MLP_LR)
    return residual(x, fitted["centre"], fitted["scale"], [fitted[f"mlp_{i}"] for i in range(len(start))])


def _scored(x: Tensor, source: Points, test: Points) -> dict[str, float]:
    """Distances of the mapped test points ``x`` from the source, and accuracy."""
    mapped, target = moments(x), moments(source.x)
    offsets = Points(x, test.y).centres() - source.centres()
    return {
        "correlation": float(coral_distance(mapped.covariance, target.covariance)),
        "mean": float(torch.linalg.vector_norm(mapped.mean - target.mean)),
        "centres": float(torch.linalg.vector_norm(offsets, dim=1).mean()),
        "accuracy": 100 * float((source_classifier(source).predict(x) == test.y).double().mean()),
    }


def _scatters(figure: Figure, places: list[Any], shift: dict[str, Any]) -> list[Axes]:
    """The points before, at the drawn steps, and after each map; all with the same limits."""
    titled = {"before": shift["before"]}
    titled |= {f"step {step}" if step else "step 0: means only": shift["process"][str(step)] for step in DRAWN_STEPS}
    titled |= {title: shift["maps"][key] for key, title in FINAL.items()}
    panels: list[Axes] = []
    for place, (title, scores) in zip(places, titled.items(), strict=True):
        shared = {"sharex": panels[0], "sharey": panels[0]} if panels else {}
        panels.append(figure.add_subplot(place, **shared))
        _scatter(panels[-1], shift, scores)
        panels[-1].set_title(f"{title}\naccuracy {scores['accuracy']:.1f} %", fontsize=9)
    x, y = zip(*shift["pseudo_source"], strict=True)
    panels[-1].scatter(x, y, s=12, c="none", edgecolors="black", linewidths=0.5, label="pseudo-source")
    return panels


def _scatter(axes: Axes, shift: dict[str, Any], scores: dict[str, Any]) -> None:
    """Test, source and, if there are any, transformed points."""
    groups = {"test": shift["test"], "transformed": scores.get("points", []), "source": shift["source"]}
    for name, points in groups.items():
        if points:
            x, y = zip(*points, strict=True)
            faint = 0.35 if name == "test" and "points" in scores else 0.8
            axes.scatter(x, y, s=4, c=POINT_COLOURS[name], alpha=faint, linewidths=0, label=name, rasterized=True)
    axes.tick_params(labelsize=7)


def _curves(axes: Axes, shift: dict[str, Any]) -> None:
    """Distances along the steps, relative to those before adaptation, and accuracy."""
    steps = [int(step) for step in shift["process"]]
    titles = {"correlation": "correlation distance", "centres": "distance of class centres"}
    for (key, title), style in zip(titles.items(), ("-o", "--s"), strict=True):
        values = [shift["process"][str(step)][key] / shift["before"][key] for step in steps]
        axes.plot(steps, values, style, ms=4, label=f"{title} (before: 1)")
    axes.plot(steps, [scores["accuracy"] / 100 for scores in shift["process"].values()], ":^", ms=4, label="accuracy")
    axes.set_xscale("symlog", linthresh=50)
    axes.set_xticks(steps, [str(step) for step in steps], fontsize=7)
    axes.set_ylim(-0.03, 1.08)
    axes.set_xlabel("Adam steps of W", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
