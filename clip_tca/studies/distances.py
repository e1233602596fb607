"""The paper's claims about the correlation distance to the source, ‖Σ − Σ_source‖²_F / 4d².

It grows with a shift (``corruption``), it is smaller for certain embeddings (``certainty``), and it shrinks as W aligns
the test embeddings with the pseudo-source (``alignment``). Labels are used for accuracy only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import Tensor

from clip_tca.adapters.linear import LinearTCA, gradient, uncertainty
from clip_tca.adapters.statistics import coral_distance, moments
from clip_tca.core.checks import check_whole, choices
from clip_tca.core.progress import tracked
from clip_tca.core.tensors import double
from clip_tca.datasets import corruptions
from clip_tca.datasets.registry import SEVERITIES
from clip_tca.studies.figure_style import Panel, lines
from clip_tca.studies.frame import Study, Subject, accuracy, shuffled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DISTANCE = r"$\|\Sigma-\Sigma_{source}\|_F^2\,/\,4d^2$"


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rank correlation, with mean ranks for ties; 0 if one of them is constant."""
    coefficient = float(pd.Series(x).rank().corr(pd.Series(y).rank()))
    return 0.0 if math.isnan(coefficient) else coefficient


@dataclass(kw_only=True)
class Corruption(Study):
    """Does the distance to the source grow with the shift, and does accuracy fall with it?

    The pictures of each domain are corrupted at severities 1 to 5 in each of the ``kinds`` and embedded again; severity
    0 is the domain itself, which stands for the source. Where a model does not crop pictures itself, the crop that
    comes with a corruption is part of severity 1.
    """

    summary = "Does the correlation distance grow with the severity of a corruption, and accuracy fall?"
    paper = "Introduction, figure 1a"

    kinds: str | Sequence[str] = ("gaussian_noise", "defocus_blur")

    def __post_init__(self) -> None:
        self.kinds = choices("kinds", self.kinds, tuple(corruptions.CORRUPTION_KINDS))

    def measure(self, subject: Subject) -> dict[str, Any]:
        """Distance and zero-shot accuracy at each severity, for each domain and corruption."""
        pictures, embedder = subject.embedded.pictures, subject.embedded.embedder
        if pictures is None or embedder is None:
            raise ValueError(
                "dataset: study corruption corrupts pictures, and this has embeddings only; name one with them"
            )
        g, data = subject.classifier, subject.embedded.data.domains
        domains: dict[str, Any] = {name: {} for name in data}
        for kind in tracked(self.kinds, len(self.kinds), "corrupting", "kind", subject.progress):
            steps = [{name: z for name, (z, _) in data.items()}]
            for severity in SEVERITIES:
                steps.append(embedder.pictures(pictures.corrupted(corruptions.Corruption(kind, severity))))
            for name, (_, y) in data.items():
                prepared = [g.prepared(step[name].to(g.device)) for step in steps]
                sigmas = [moments(z).covariance for z in prepared]
                distance = [float(coral_distance(sigma, sigmas[0])) for sigma in sigmas]
                right = [accuracy(g.predict(z), y.to(g.device)) for z in prepared]
                domains[name][kind] = {"distance": distance, "accuracy": right}
        return {"kinds": self.kinds, "domains": domains}

    @staticmethod
    def draw(results: dict[str, Any], figure: Figure) -> None:
        """Distance, accuracy; two panels for each corruption, a line for each domain."""
        shown = []
        for kind in results["kinds"]:
            for key, unit in {"distance": DISTANCE, "accuracy": "zero-shot accuracy (%)"}.items():
                severities = range(1 + len(SEVERITIES))
                curves = {name: (severities, domain[kind][key]) for name, domain in results["domains"].items()}
                shown.append(Panel(kind, unit, curves))
        lines(figure, shown, "severity", columns=2)

    @staticmethod
    def describe(results: dict[str, Any]) -> list[str]:
        """Both ends of each curve, and in how many the distance grew and accuracy fell."""
        said, grown, fallen = [], 0, 0
        for name, domain in results["domains"].items():
            for kind, curve in domain.items():
                far, right = curve["distance"], curve["accuracy"]
                grown += far[-1] > far[1]
                fallen += right[-1] < right[0]
                said.append(
                    f"{name}, {kind}: distance {far[1]:.2e} at severity 1, {far[-1]:.2e} at 5; accuracy "
                    f"{right[0]:.2f} %, then {right[1]:.2f} to {right[-1]:.2f} %."
                )
        return [*said, f"The distance grew from severity 1 to 5 in {grown} of {len(said)}; accuracy fell in {fallen}."]


@dataclass(kw_only=True)
class Certainty(Study):
    """Theorem 1: is the correlation of more certain embeddings closer to the source?

    The embeddings of a domain are sorted by uncertainty ω = ‖onehot(argmax p) − p‖² and cut into ``groups`` of equal
    size. The covariance of a few hundred rows is noisy, so the distance of a random sample of the source of the same
    size is measured too: no group of that size can be expected to be closer.
    """

    summary = "Are certain embeddings closer to the source?"
    paper = "Theorem 1, figure 3a"
    needs_reference = True

    groups: int = 10

    def __post_init__(self) -> None:
        check_whole("groups", self.groups, 3)

    def measure_domain(self, subject: Subject, z: Tensor, y: Tensor) -> dict[str, Any]:
        """Uncertainty, distance and accuracy of each group, and Spearman's coefficient over groups."""
        if len(z) < 2 * self.groups:
            raise ValueError(f"groups: {self.groups} need {2 * self.groups} images of each domain; one has {len(z)}")
        source = subject.source()[0]
        target = moments(source).covariance
        p = subject.classifier.log_probabilities(z).exp()
        score, predicted = uncertainty(p), p.argmax(dim=1)
        rows = [
            {
                "images": len(part),
                "uncertainty": float(score[part].mean()),
                "distance": float(coral_distance(moments(z[part]).covariance, target)),
                "accuracy": accuracy(predicted[part], y[part]),
            }
            for part in score.argsort(stable=True).tensor_split(self.groups)
        ]
        samples = [source[shuffled(len(source), seed).to(source.device)[: len(z) // self.groups]] for seed in range(5)]
        return {
            "groups": rows,
            "spearman": spearman([row["uncertainty"] for row in rows], [row["distance"] for row in rows]),
            "source_sample_distance": fmean(float(coral_distance(moments(s).covariance, target)) for s in samples),
        }

    @staticmethod
    def draw(results: dict[str, Any], figure: Figure) -> None:
        """Distance by group, uncertainty by group."""
        distances, uncertainties, floors = {}, {}, {}
        for name, domain in results["domains"].items():
            groups = range(1, len(domain["groups"]) + 1)
            distances[name] = groups, [row["distance"] for row in domain["groups"]]
            uncertainties[name] = groups, [row["uncertainty"] for row in domain["groups"]]
            floors[f"{name}: source sample of that size"] = domain["source_sample_distance"]
        shown = [
            Panel("Correlation distance to the source", DISTANCE, distances, floors),
            Panel("Mean uncertainty", r"$\|onehot(p)-p\|^2$", uncertainties),
        ]
        lines(figure, shown, "group, from most to least certain", columns=2)

    @staticmethod
    def describe(results: dict[str, Any]) -> list[str]:
        """Whether the theorem holds, domain by domain."""
        said = []
        for name, domain in results["domains"].items():
            first, last = domain["groups"][0], domain["groups"][-1]
            said.append(
                f"{name}: most certain group {first['distance']:.3g} from {results['reference']}, least certain "
                f"{last['distance']:.3g}; Spearman of uncertainty and distance {domain['spearman']:+.2f}."
            )
        holds = sum(domain["spearman"] > 0.6 for domain in results["domains"].values())
        said.append(f"More certain is closer to the source (Spearman above 0.6) in {holds} of {len(said)} domains.")
        return said


@dataclass(kw_only=True)
class Alignment(Study):
    """Theorem 2: as W aligns the test embeddings with the pseudo-source, do they come closer to the source?

    W starts at the identity and follows the gradient steps of LinearTCA (Adam on ‖WᵀΣ_tW − Σ̂_s‖²_F). After each of the
    ``steps``: distance of WᵀΣ_tW to the pseudo-source and to the source, and accuracy of (z − μ_t)W + μ̂_s. The means
    are aligned from the start, so step 0 is not zero-shot.
    """

    summary = "Does aligning with the pseudo-source bring the source closer, and accuracy up?"
    paper = "Theorem 2 and corollary 3, figure 3b"
    needs_reference = True

    steps: int = 20

    def __post_init__(self) -> None:
        check_whole("steps", self.steps, 2)

    def measure_domain(self, subject: Subject, z: Tensor, y: Tensor) -> dict[str, Any]:
        """Both distances and accuracy at each step."""
        g, target = subject.classifier, moments(subject.source()[0]).covariance
        tca = LinearTCA(g, solver="gradient", steps=self.steps).fit(z)
        centred, sigma, wanted = double(z) - tca.mean_, tca.covariance_, tca.pseudo_source_covariance_
        points = []
        for step in range(self.steps + 1):
            w = gradient(sigma, wanted, step)
            moved = w.T @ sigma @ w
            points.append(
                {
                    "step": step,
                    "to_pseudo_source": float(coral_distance(moved, wanted)),
                    "to_source": float(coral_distance(moved, target)),
                    "accuracy": accuracy(g.predict(centred @ w + tca.pseudo_source_mean_), y),
                }
            )
        return {"points": points, "zero_shot": accuracy(g.predict(z), y)}

    @staticmethod
    def draw(results: dict[str, Any], figure: Figure) -> None:
        """The path of each domain, from left to right."""
        distances, accuracies = {}, {}
        for name, domain in results["domains"].items():
            points = domain["points"]
            start = points[0]["to_pseudo_source"] or 1.0
            way = [100 * (1 - point["to_pseudo_source"] / start) for point in points]
            distances[name] = way, [point["to_source"] for point in points]
            accuracies[name] = way, [point["accuracy"] - domain["zero_shot"] for point in points]
        shown = [
            Panel("Correlation distance to the source", DISTANCE, distances),
            Panel("Accuracy against zero-shot", "points of accuracy", accuracies, {"zero-shot": 0.0}),
        ]
        lines(figure, shown, "% of the distance to the pseudo-source gone", columns=2)

    @staticmethod
    def describe(results: dict[str, Any]) -> list[str]:
        """How far both distances and accuracy went, domain by domain."""
        said, both = [], 0
        for name, domain in results["domains"].items():
            first, last = domain["points"][0], domain["points"][-1]
            said.append(
                f"{name}: distance to the pseudo-source {first['to_pseudo_source']:.2e} to "
                f"{last['to_pseudo_source']:.2e}, to {results['reference']} {first['to_source']:.2e} to "
                f"{last['to_source']:.2e}; accuracy {first['accuracy']:.2f} to {last['accuracy']:.2f} %, zero-shot "
                f"{domain['zero_shot']:.2f} %."
            )
            both += last["to_source"] < first["to_source"] and last["accuracy"] > domain["zero_shot"]
        said.append(f"Closer to the source and better than zero-shot at the last step: {both} of {len(said)} domains.")
        return said
