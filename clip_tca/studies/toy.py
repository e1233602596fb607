"""``toy``: the paper's two-dimensional shifts, and the result of each map on them.

The paper's appendix ("Analysis Details") has the points as code, without classes. Here a test cluster gets the class of
the source cluster in the pairing with the least total movement. No affine map moves the four centres of the second
shift onto those of the source: it is non-linear. The paper names no target, classifier or number of steps of W. Here:

* Every map aims at the source itself. ``pseudo-source`` is LinearTCA with a pseudo-source instead: the 30 most certain
  test points of each predicted class.
* g is linear: logits (x·m_c − ‖m_c‖²/2) / s², with the class means m_c and the common variance s² of the source.
* The process is W by Adam from the identity, with the paper's learning rate 1e-3; at step 0 only the means are aligned.
  ``LinearTCA`` is the closed form. ``MLP-2`` and ``MLP-3`` add the residual MLP of :mod:`clip_tca.adapters.mlp`.

Columns: correlation distance ‖Σ − Σ_s‖²_F / 4d² to the source, distance of the means, mean distance of a class centre
from its own in the source, accuracy of g. Only the last two use the classes of the test points; no map does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clip_tca.adapters.linear import certain_rows, gradient, monge, uncertainty
from clip_tca.adapters.mlp import fit_residual, initial_parameters, residual, seen_by
from clip_tca.adapters.statistics import Moments, coral_distance, moments
from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import check_whole
from clip_tca.studies.figure_style import legend_below, panels
from clip_tca.studies.frame import Study, Subject, accuracy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = {"linear": [(0, 0), (15, 15), (0, 10)], "nonlinear": [(0, 0), (10, 10), (0, 10), (-5, -10)]}
"""The centre of each class."""

TEST = {
    "linear": [((7, 7), 2.0, 0), ((0, 20), 2.5, 2), ((21, 21), 3.0, 1)],
    "nonlinear": [((5, 5), 3.0, 0), ((10, 10), 1.0, 1), ((0, 20), 2.0, 2), ((-9, 1), 2.5, 3)],
}
"""Centre, spread and class of each test cluster, in the order of the paper's code."""

SOURCE_POINTS = 30
STEPS = (0, 100, 200, 400, 1600)  # of W, at which the process is measured
MLP_STEPS, MLP_WIDTH, MLP_LR = 300, 16, 1e-2
COLOURS = {"test": "#f2a900", "transformed": "#d62728", "source": "#1f77b4", "pseudo-source": "black"}


@dataclass(kw_only=True)
class Toy(Study):
    """LinearTCA and MLP maps of the paper's shifts, with ``points`` of each test cluster, drawn with ``seed``."""

    summary = "Linear and non-linear shifts in two dimensions, and what linear and MLP maps make of them"
    paper = "Figure 4 (a, b) and the appendix's figures of the adaptation process"
    needs_data = False

    seed: int = 0
    points: int = 250

    def __post_init__(self) -> None:
        check_whole("seed", self.seed, 0, 2**63 - 1)
        check_whole("points", self.points, 2, 100_000)

    def measure(self, subject: Subject | None = None) -> list[dict[str, Any]]:
        return [{"shift": name, **row} for name in SOURCE for row in measure_shift(name, self.seed, self.points)]

    @classmethod
    def draw(cls, rows: list[dict[str, Any]], figure: Figure) -> None:
        """For each shift the points before, at each step and after each map; all with the same axes."""
        fixed = {(row["shift"], row["map"]): row["points"] for row in rows if "accuracy" not in row}
        shown = [row for row in rows if "accuracy" in row]
        names = [f"step {row['step']}" if "step" in row else row["map"] for row in shown]
        for i, row in enumerate(shown):
            names[i] = names[i].replace("before", f"{row['shift']} shift: before")
            names[i] += f"\naccuracy {row['accuracy']:.1f} %"
        axes = panels(figure, names, 2.4, 5, sharex=True, sharey=True)
        for panel, row in zip(axes, shown, strict=True):
            points = {name: row["points"] if name == "transformed" else fixed[row["shift"], name] for name in COLOURS}
            if row["map"] != "pseudo-source":
                del points["pseudo-source"]
            for name, positions in points.items():
                x, y = zip(*positions, strict=True) if positions else ([], [])
                panel.scatter(x, y, s=4, c=COLOURS[name], alpha=0.6, linewidths=0, label=name, rasterized=True)
        legend_below(figure, axes)


def clusters(name: str, seed: int, points: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Source points and classes, test points and classes of a shift; ``points`` for each test cluster, in float64.

    The numbers are those of the paper's code after ``torch.manual_seed(seed)``.
    """
    generator = torch.Generator().manual_seed(seed)

    def cluster(n: int, centre: tuple[int, int], spread: float) -> Tensor:
        return torch.randn(n, 2, generator=generator) * spread + torch.tensor(centre)

    source = torch.cat([cluster(SOURCE_POINTS, centre, 1.0) for centre in SOURCE[name]]).double()
    test = torch.cat([cluster(points, centre, spread) for centre, spread, _ in TEST[name]]).double()
    labels = torch.tensor([label for *_, label in TEST[name]]).repeat_interleave(points)
    return source, torch.arange(len(SOURCE[name])).repeat_interleave(SOURCE_POINTS), test, labels


def class_means(x: Tensor, y: Tensor) -> Tensor:
    """Mean of each class ``(classes, 2)``."""
    return torch.stack([x[y == label].mean(dim=0) for label in range(int(y.max()) + 1)])


def measure_shift(name: str, seed: int, points: int) -> list[dict[str, Any]]:
    """The points of a shift, and those of every map with their scores."""
    source, classes, test, labels = clusters(name, seed, points)
    before, target, centres = moments(test), moments(source), class_means(source, classes)
    variance = (source - centres[classes]).square().sum() / (2 * (len(source) - len(centres)))
    g = LinearClassifier(centres / variance, -centres.square().sum(dim=1) / 2 / variance)
    p = g.predict_proba(test)
    selected = test[certain_rows(uncertainty(p), p.argmax(dim=1), torch.full((len(centres),), SOURCE_POINTS))]

    def scored(x: Tensor) -> dict[str, Any]:
        mapped, offsets = moments(x), class_means(x, labels) - centres
        return {
            "correlation": float(coral_distance(mapped.covariance, target.covariance)),
            "mean": float(torch.linalg.vector_norm(mapped.mean - target.mean)),
            "centres": float(torch.linalg.vector_norm(offsets, dim=1).mean()),
            "accuracy": accuracy(g.predict(x), labels),
            "points": rounded(x),
        }

    def linear(to: Moments, steps: int | None = None) -> Tensor:
        """(x − μ_t)W + μ with W after ``steps`` gradient steps; None is the closed form."""
        sigmas = before.covariance, to.covariance
        return (test - before.mean) @ (monge(*sigmas) if steps is None else gradient(*sigmas, steps)) + to.mean

    def mlp(layers: int) -> Tensor:
        start = initial_parameters(2, layers, MLP_WIDTH, seed, test)
        wanted = source, torch.full_like(source[:, 0], 1 / len(source))
        fitted = fit_residual(linear(target), wanted, seen_by(g.weight), start, MLP_STEPS, MLP_LR)
        parameters = [fitted[f"mlp_{i}_"] for i in range(len(start))]
        return residual(linear(target), fitted["centre_"], fitted["scale_"], parameters)

    maps = {"LinearTCA": linear(target), "MLP-2": mlp(2), "MLP-3": mlp(3), "pseudo-source": linear(moments(selected))}
    return [
        {"map": "source", "points": rounded(source)},
        {"map": "test", "points": rounded(test)},
        {"map": "pseudo-source", "points": rounded(selected)},
        {"map": "before", **scored(test), "points": []},
        *[{"map": "gradient steps", "step": step, **scored(linear(target, step))} for step in STEPS],
        *[{"map": name, **scored(x)} for name, x in maps.items()],
    ]


def rounded(x: Tensor) -> list[list[float]]:
    """Coordinates for a record: with four decimals, which are enough for a figure."""
    return [[round(value, 4) for value in row] for row in x.tolist()]
