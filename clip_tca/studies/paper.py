"""The paper's figures and tables, on any data set. Labels are used for accuracy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor

from clip_tca.adapters.linear import LinearTCA, certain_rows, gradient, monge, uncertainty
from clip_tca.adapters.statistics import coral_distance, ledoit_wolf, moments, shrink, weighted_moments
from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import check_whole, choices, whole_numbers
from clip_tca.core.progress import tracked
from clip_tca.core.tensors import double
from clip_tca.data import corruptions
from clip_tca.data.registry import SEVERITIES
from clip_tca.evaluation.base_runs import BaseRuns
from clip_tca.evaluation.method_spec import MethodSpec, class_scores, predict
from clip_tca.methods.registry import ADAPTERS, METHODS
from clip_tca.studies.frame import Study, Subject, accuracy, shuffled

DISTANCE = r"$\|\Sigma-\Sigma_{source}\|_F^2\,/\,4d^2$"

ADAPTING = tuple(name for name in METHODS if name != "zero-shot" and not MethodSpec(name).uses_labels)
STORED = ("linear-tca", "conditional-tca", "t3a", "tda", "adanpc", "plc")  # fast, on stored embeddings


@dataclass(kw_only=True)
class Corruption(Study):
    """Does the distance to the source grow with the shift, and does accuracy fall with it?

    The pictures of each domain are corrupted at severities 1 to 5 in each of the ``kinds`` and embedded again; severity
    0 is the domain itself, which stands for the source. Where a model does not crop pictures itself, the crop that
    comes with a corruption is part of severity 1.
    """

    summary = "Does the correlation distance grow with the severity of a corruption, and accuracy fall?"
    paper = "Introduction, figure 1a"
    x = ("severity", "severity")
    y = (("distance", DISTANCE), ("accuracy", "zero-shot accuracy (%)"))
    panel = "kind"
    line = ("domain",)

    kinds: str | Sequence[str] = ("gaussian_noise", "defocus_blur")

    def __post_init__(self) -> None:
        self.kinds = choices("kinds", self.kinds, tuple(corruptions.CORRUPTION_KINDS))

    def measure(self, subject: Subject) -> list[dict[str, Any]]:
        pictures, embedder = subject.embedded.pictures, subject.embedded.embedder
        if pictures is None or embedder is None:
            raise ValueError(
                "dataset: study corruption corrupts pictures, and this has embeddings only; name one with them"
            )
        g, data, rows = subject.classifier, subject.embedded.data.domains, []
        for kind in tracked(self.kinds, len(self.kinds), "corrupting", "kind", subject.progress):
            steps = [{name: z for name, (z, _) in data.items()}]
            for severity in SEVERITIES:
                steps.append(embedder.pictures(pictures.corrupted(corruptions.Corruption(kind, severity))))
            for name, (_, y) in data.items():
                prepared = [g.prepared(step[name].to(g.device)) for step in steps]
                source = moments(prepared[0]).covariance
                for severity, z in enumerate(prepared):
                    distance = float(coral_distance(moments(z).covariance, source))
                    right = accuracy(g.predict(z), y.to(g.device))
                    row = {"domain": name, "kind": kind, "severity": severity}
                    rows.append({**row, "distance": distance, "accuracy": right})
        return rows


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
    x = ("group", "group, from most to least certain")
    y = (("distance", DISTANCE), ("uncertainty", r"mean $\|onehot(p)-p\|^2$"))
    panel = None
    line = ("domain", "sample")

    groups: int = 10

    def __post_init__(self) -> None:
        check_whole("groups", self.groups, 3)

    def measure_domain(self, subject: Subject, z: Tensor, y: Tensor) -> list[dict[str, Any]]:
        if len(z) < 2 * self.groups:
            raise ValueError(f"groups: {self.groups} need {2 * self.groups} images of each domain; one has {len(z)}")
        source = subject.source()[0]
        target = moments(source).covariance
        p = subject.classifier.log_probabilities(z).exp()
        score, predicted = uncertainty(p), p.argmax(dim=1)
        rows = [
            {
                "group": group,
                "images": len(part),
                "uncertainty": float(score[part].mean()),
                "distance": float(coral_distance(moments(z[part]).covariance, target)),
                "accuracy": accuracy(predicted[part], y[part]),
            }
            for group, part in enumerate(score.argsort(stable=True).tensor_split(self.groups), 1)
        ]
        ranks = pd.DataFrame(rows)[["uncertainty", "distance"]].corr("spearman").fillna(0)
        size = len(z) // self.groups
        samples = [source[shuffled(len(source), seed).to(source.device)[:size]] for seed in range(5)]
        level = fmean(float(coral_distance(moments(sample).covariance, target)) for sample in samples)
        return [
            *[{**row, "spearman": float(ranks.iloc[0, 1])} for row in rows],
            {"sample": "source sample of that size", "images": size, "distance": level},
        ]


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
    x = ("gone", "% of the distance to the pseudo-source gone")
    y = (("distance_to_source", DISTANCE), ("gain", "points of accuracy over zero-shot"))
    panel = None
    line = ("domain",)

    steps: int = 20

    def __post_init__(self) -> None:
        check_whole("steps", self.steps, 2)

    def measure_domain(self, subject: Subject, z: Tensor, y: Tensor) -> list[dict[str, Any]]:
        g, source = subject.classifier, moments(subject.source()[0]).covariance
        tca = LinearTCA(g, solver="gradient", steps=self.steps).fit(z)
        centred, sigma, pseudo = double(z) - tca.mean_, tca.covariance_, tca.pseudo_source_covariance_
        zero_shot, start = accuracy(g.predict(z), y), float(coral_distance(sigma, pseudo)) or 1.0
        rows: list[dict[str, Any]] = []
        for step in range(self.steps + 1):
            w = gradient(sigma, pseudo, step)
            moved = w.T @ sigma @ w
            left, right = float(coral_distance(moved, pseudo)), g.predict(centred @ w + tca.pseudo_source_mean_)
            rows.append(
                {
                    "step": step,
                    "distance_to_pseudo_source": left,
                    "gone": 100 * (1 - left / start),
                    "distance_to_source": float(coral_distance(moved, source)),
                    "accuracy": accuracy(right, y),
                    "gain": accuracy(right, y) - zero_shot,
                }
            )
        return [*rows, {"domain": "zero-shot", "gain": 0.0}]


@dataclass(kw_only=True)
class K(Study):
    """The ablation on k: accuracy of LinearTCA for each k of ``values``, which are the paper's, and ``k="auto"``."""

    summary = "How many pseudo-source embeddings?"
    paper = "Ablation study, figure 4c"
    x = ("k", "k")
    log = True

    values: list[int] | tuple[int, ...] = (5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 100, 200, 300)

    def __post_init__(self) -> None:
        self.values = whole_numbers("values", self.values)

    def measure_domain(self, subject: Subject, z: Tensor, y: Tensor) -> list[dict[str, Any]]:
        def row(method: str, k: int | Literal["auto"]) -> dict[str, Any]:
            tca = LinearTCA(subject.classifier, k=k).fit(z)
            right, size = accuracy(tca.predict(z), y), int(tca.pseudo_source_counts_.sum())
            return {"method": method, "k": None if k == "auto" else k, "pseudo_source": size, "accuracy": right}

        zero_shot = {"method": "zero-shot", "accuracy": accuracy(subject.classifier.predict(z), y)}
        curve = [row("linear-tca", k) for k in self.values]
        return [*curve, zero_shot, row("linear-tca, k = auto", "auto")]


@dataclass(kw_only=True)
class TestSize(Study):
    """The ablation on the test set's size: fit on some of the test embeddings, predict all of them.

    Draws ``seeds`` random parts of each of ``sizes``, for LinearTCA and ConditionalTCA; sizes beyond the domain's are
    left out. Every fit predicts the whole domain, so that accuracies of different sizes are on the same images.
    """

    __test__ = False  # not a test, despite its name

    summary = "How many test embeddings are enough?"
    paper = "Ablation study, figure 4d"
    x = ("images", "test embeddings seen")
    y = (("accuracy", "accuracy on the domain (%), mean ± std"),)
    log = True

    sizes: list[int] | tuple[int, ...] = (50, 100, 200, 400, 800, 1600, 3200)
    seeds: int = 5

    def __post_init__(self) -> None:
        self.sizes = whole_numbers("sizes", self.sizes)
        check_whole("seeds", self.seeds)
        if self.sizes[0] < 2:
            raise ValueError("sizes: 1; a fit needs at least 2 embeddings")

    def measure_domain(self, subject: Subject, z: Tensor, y: Tensor) -> list[dict[str, Any]]:
        g, rows = subject.classifier, []
        parts = [z[shuffled(len(z), seed)] for seed in range(self.seeds)]
        for method in ("linear-tca", "conditional-tca"):
            for size in (*[size for size in self.sizes if size < len(z)], len(z)):
                drawn = parts if size < len(z) else [z]  # the whole domain has one sample only
                fits = [ADAPTERS[method].build(g).fit(part[:size]) for part in drawn]
                scores = [accuracy(adapter.predict(z), y) for adapter in fits]
                rows.append({"method": method, "images": size, "accuracy": fmean(scores), "std": pstdev(scores)})
        return [*rows, {"method": "zero-shot", "accuracy": accuracy(g.predict(z), y)}]


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
    x = ("batch", "batch size (images)")
    y = (("percent", "% of images"),)
    line = ("measure",)
    log = True

    sizes: list[int] | tuple[int, ...] = (1, 4, 16, 64, 256, 1024)
    images: int | None = 1024

    def __post_init__(self) -> None:
        self.sizes = whole_numbers("sizes", self.sizes)
        check_whole("images", self.images, 2, also=None)

    def measure_domain(self, subject: Subject, z: Tensor, y: Tensor) -> list[dict[str, Any]]:
        g, method = subject.classifier, MethodSpec("linear-tca", {"refresh": "auto"})
        seen = shuffled(len(y)).to(y.device)[: self.images]
        z, y = z[seen], y[seen]
        fitted = LinearTCA(g).fit(z)
        once = fitted.predict(z)
        rows: list[dict[str, Any]] = []
        for size in self.sizes:
            streamed = predict(method, g, z, y, "online", size).classes
            rows.append({"measure": "accuracy of the stream", "batch": size, "percent": accuracy(streamed, y)})
            rows.append({"measure": "agreement with one fit", "batch": size, "percent": accuracy(streamed, once)})
        error = None
        if subject.reference is not None:
            selected = weighted_moments(fitted.pseudo_source_, fitted.pseudo_source_weights_)
            error = float(coral_distance(selected.covariance, moments(subject.source()[0]).covariance))
        return [
            *rows,
            {"measure": "accuracy of zero-shot", "percent": accuracy(g.predict(z), y)},
            {"measure": "accuracy of one fit", "percent": accuracy(once, y), "estimation_error": error},
        ]


def predict_aligned(g: LinearClassifier, z: Tensor, source: Tensor) -> Tensor:
    """Classes of ``z`` ``(n, d)`` mapped to mean and covariance of ``source`` ``(m, d)`` as LinearTCA does it."""
    test, target = moments(z), moments(source)
    sigmas = [shrink(m.covariance, ledoit_wolf(m)) for m in (test, target)]
    return g.predict((double(z) - test.mean) @ monge(*sigmas) + target.mean)


def in_proportion(labels: Tensor, wanted: Tensor, classes: int) -> Tensor:
    """Indices of a part of ``labels`` with the class proportions of ``wanted``; none if a class is missing."""
    available, counts = (torch.bincount(y, minlength=classes) for y in (labels, wanted))
    present = counts > 0
    share = (available[present] / counts[present]).min()
    return certain_rows(torch.zeros_like(labels, dtype=torch.float64), labels, (share * counts).round().long())


class UpperBound(Study):
    """How much better would LinearTCA be if it knew the source, or the class proportions?

    All rows use the map (z − μ_t)W + μ with LinearTCA's Monge map and Ledoit–Wolf shrinkage. They differ in μ and Σ:
    those of the pseudo-source, of the reference domain (the paper's LinearTCA(b)), or of a part of either in the test
    set's true class proportions. The paper's TCA(a), fine-tuned on labels of the test set, is not measured.
    """

    summary = "How far is LinearTCA from knowing the source?"
    paper = "Upper performance bound for TCA, table 7"
    needs_reference = True
    line = ()

    def measure_domain(self, subject: Subject, z: Tensor, y: Tensor) -> list[dict[str, Any]]:
        g, (source, truth) = subject.classifier, subject.source()
        chosen = source[in_proportion(truth, y, g.n_classes)]
        predictions = {
            "zero-shot": g.predict(z),
            "linear-tca": LinearTCA(g).fit(z).predict(z),
            "oracle: true proportions": None
            if not bool((y == 0).any())  # the oracle counts every class relative to class 0
            else LinearTCA(g, shares="oracle").fit(z, labels=y).predict(z),
            "oracle: source statistics": predict_aligned(g, z, source),
            "oracle: source statistics, true proportions": None if len(chosen) < 2 else predict_aligned(g, z, chosen),
        }
        return [
            {"method": method, "accuracy": None if predicted is None else accuracy(predicted, y)}
            for method, predicted in predictions.items()
        ]


@dataclass(kw_only=True)
class Forgetting(Study):
    """Accuracy on the reference domain with the state that each of the ``methods`` has after adapting to another.

    Nothing adapts to the reference. Base methods that could forget run in their continual form, which keeps its state.
    """

    summary = "What is forgotten of the source after adapting elsewhere?"
    paper = "Forgetting resistance, table 4"
    needs_reference = True
    y = (("accuracy", "accuracy on the source-like domain (%)"),)
    panel = None
    line = ("domain",)

    methods: str | list[str] | tuple[str, ...] = STORED

    def __post_init__(self) -> None:
        self.methods = choices("methods", self.methods, ADAPTING)

    def measure(self, subject: Subject) -> list[dict[str, Any]]:
        g, (source, truth), reference = subject.classifier, subject.source(), str(subject.reference)
        bases = BaseRuns(subject.embedded, g.device, 128, None, subject.progress)
        order = shuffled(len(truth))  # BatchNorm sees batches: not class by class
        source, truth = source[order], truth[order]
        zero_shot = accuracy(g.predict(source), truth)
        rows: list[dict[str, Any]] = []
        for domain in tracked(subject.shifted, len(subject.shifted), "forgetting", "domain", subject.progress):
            z, y = subject.domain(domain)
            for method in map(MethodSpec, self.methods):
                outputs: list[tuple[Tensor, Tensor | None]] = [(z, None), (source, None)]
                if method.base is not None:
                    outputs = [*bases.carry(method.base, {}, (domain, shuffled(len(y))), (reference, order))]
                (seen, logits), then = outputs
                adapter = method.adapter(g)
                if adapter is not None:
                    adapter.fit(seen, logits=logits)
                after = accuracy(class_scores(g, *then, adapter).argmax(dim=1), truth)
                rows.append({"method": method.name, "domain": domain, "accuracy": after, "change": after - zero_shot})
        return [*rows, {"domain": "without the state: zero-shot", "accuracy": zero_shot}]
