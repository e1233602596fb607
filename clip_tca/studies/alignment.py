"""Theorem 2: as W aligns the test embeddings with the pseudo-source, do they come closer to the source?

W starts at the identity and follows the gradient steps of LinearTCA (Adam on ‖WᵀΣ_tW − Σ̂_s‖²_F). After each step:
correlation distance of WᵀΣ_tW to the pseudo-source and to the source (the reference domain), and accuracy of
(z − μ_t)W + μ̂_s. Labels are used for accuracy only. The means are aligned from the start, so step 0 is not zero-shot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clip_tca.adapters.linear import LinearTCA, gradient
from clip_tca.adapters.statistics import coral_distance, moments
from clip_tca.core.checks import check_positive, check_whole
from clip_tca.core.tensors import double
from clip_tca.studies.base import Figure, Study, Subject
from clip_tca.studies.figure_style import GREY, label, legend_below, magnitude, panels, series
from clip_tca.studies.scores import accuracy, r_squared, signed, spearman


@dataclass(kw_only=True, eq=False, repr=False)
class Alignment(Study):
    """Distances and accuracy along the steps of W, after ``every`` step of ``steps``, at learning rate ``lr``."""

    name = "alignment"
    summary = "Does aligning with the pseudo-source bring the source closer, and accuracy up?"
    paper = "Theorem 2 and corollary 3, figure 3b"
    needs_reference = True

    steps: int = 20
    every: int = 1
    lr: float = 1e-3

    def __post_init__(self) -> None:
        check_whole("steps", self.steps, 2)
        check_whole("every", self.every, 1, self.steps // 2)
        check_positive("lr", self.lr)

    def measure(self, subject: Subject) -> dict[str, Any]:
        """Both distances and accuracy at each step, and their correlations."""
        g, target = subject.classifier, moments(subject.source()[0]).covariance
        domains: dict[str, Any] = {}
        for name, z, y in subject.shifted_domains():
            tca = LinearTCA(g, solver="gradient", steps=self.steps, lr=self.lr).fit(z)
            centred, sigma, wanted = double(z) - tca.mean_, tca.covariance_, tca.pseudo_source_covariance_
            points = []
            for step in subject.tracked(range(0, self.steps + 1, self.every), name, "point"):
                w = gradient(sigma, wanted, step, self.lr)
                moved = w.T @ sigma @ w
                points.append(
                    {
                        "step": step,
                        "to_pseudo_source": float(coral_distance(moved, wanted)),
                        "to_source": float(coral_distance(moved, target)),
                        "accuracy": accuracy(g.predict(centred @ w + tca.pseudo_source_mean_), y),
                    }
                )
            to_pseudo, to_source, right = (
                [point[key] for point in points] for key in ("to_pseudo_source", "to_source", "accuracy")
            )
            domains[name] = {
                "points": points,
                "zero_shot": accuracy(g.predict(z), y),
                "pseudo_source_to_source": float(coral_distance(wanted, target)),
                "source": {"spearman": spearman(to_pseudo, to_source), "r_squared": r_squared(to_pseudo, to_source)},
                "accuracy": {"spearman": spearman(to_pseudo, right), "r_squared": r_squared(to_pseudo, right)},
            }
        return {"reference": subject.reference, "domains": domains}

    def draw(self, results: dict[str, Any], figure: Figure) -> None:
        """The path of each domain, from the open marker to the large one."""
        unit, times = magnitude([point["to_source"] for d in results["domains"].values() for point in d["points"]])
        titles = ["Correlation distance to the source", "Accuracy against zero-shot"]
        left, right = panels(figure, titles, 3.5, 2)
        for i, (name, domain) in enumerate(results["domains"].items()):
            start = domain["points"][0]["to_pseudo_source"] or 1.0
            x = [100 * point["to_pseudo_source"] / start for point in domain["points"]]
            gain = [point["accuracy"] - domain["zero_shot"] for point in domain["points"]]
            look = {**series(i), "markersize": 4}
            rhos = ", ".join(signed(domain[key]["spearman"]) for key in ("source", "accuracy"))
            for panel, y in ((left, [point["to_source"] / unit for point in domain["points"]]), (right, gain)):
                panel.plot(x, y, label=f"{label(name)} ({rhos})", linewidth=1.2, **look)
                panel.plot(x[:1], y[:1], color=look["color"], marker=look["marker"], markersize=9, fillstyle="none")
                panel.plot(x[-1:], y[-1:], color=look["color"], marker=look["marker"], markersize=9)
        left.set_ylabel(r"$\|W^T\Sigma_tW-\Sigma_{source}\|_F^2\,/\,4d^2$" + times)
        right.set_ylabel("points of accuracy")
        right.axhline(0, color=GREY, linestyle=(0, (4, 3)), linewidth=1.4, label="zero-shot")
        for panel in (left, right):
            panel.invert_xaxis()
            panel.set_xlabel("distance to the pseudo-source, % of that at step 0")
        left.set_ylim(bottom=0)
        steps = results["domains"][next(iter(results["domains"]))]["points"][-1]["step"]
        right.plot([], [], "o", color=GREY, markersize=9, fillstyle="none", label="W is the identity")
        right.plot([], [], "o", color=GREY, markersize=9, label=f"after {steps} steps")
        legend_below(figure, right, 3, "In brackets: Spearman of x and y, left and right")

    def describe(self, results: dict[str, Any]) -> list[str]:
        """The correlation of distances and accuracy, domain by domain."""
        lines, both = [], 0
        for name, domain in results["domains"].items():
            first, last = domain["points"][0], domain["points"][-1]
            lines.append(
                f"{name}: distance to the pseudo-source {_change(first, last, 'to_pseudo_source')}, to "
                f"{results['reference']} {_change(first, last, 'to_source')} (Spearman {_pair(domain['source'])}); "
                f"accuracy {first['accuracy']:.2f} to {last['accuracy']:.2f} %, zero-shot {domain['zero_shot']:.2f} % "
                f"(Spearman {_pair(domain['accuracy'])})."
            )
            both += last["to_source"] < first["to_source"] and last["accuracy"] > domain["zero_shot"]
        count = f"{both} of {len(results['domains'])} domains"
        lines.append(f"Closer to the source and better than zero-shot at the last step: {count}.")
        return lines


def _change(first: dict[str, float], last: dict[str, float], key: str) -> str:
    return f"{100 * (last[key] / first[key] - 1):+.0f} %" if first[key] else "0"


def _pair(correlation: dict[str, float | None]) -> str:
    share = correlation["r_squared"]
    return signed(correlation["spearman"]) + ("" if share is None else f", R² {share:.2f}")
