"""Accuracy and other metrics, from logits and true labels of the images seen: a row of the record.

The confidence of a prediction is its probability, the largest of p = softmax(logits). Shares are in percent, as
accuracy is; the negative log-likelihood is in nats.

``macro_accuracy``: mean of the accuracies of the classes that have images; ``worst_class``: the lowest of them.
``macro_f1``: mean of F1 = 2tp / (2tp + fp + fn) over the classes that are true or predicted at least once.
``nll``: mean of −log p(true class); None if a method gives a true class no probability at all.
``ece``: expected calibration error Σ n_b/n · |accuracy_b − confidence_b| over 15 bins of equal width, bin b for
confidences in ((b−1)/15, b/15] (Guo et al., ICML 2017).
``adaptive_ece``: the same over 15 bins of an equal number of images, by confidence (Nguyen & O'Connor, EMNLP 2015).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from clip_tca.core.tensors import CHUNK, double
from clip_tca.evaluation.method_spec import MethodSpec
from clip_tca.results.schema import CalibrationBins, ResultRow

BINS = 15


@dataclass(frozen=True)
class Scores:
    """The predicted class, confidence and log p of the true class of each image."""

    predicted: Tensor
    confidence: Tensor
    log_likelihood: Tensor

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> Scores:
        """From logits ``(n, classes)`` and labels ``(n,)``, in pieces; the result is on the CPU."""
        confidences, likelihoods = [], []
        for part, true in zip(logits.split(CHUNK), labels.to(logits.device).split(CHUNK), strict=True):
            log_p = double(part).log_softmax(dim=1)
            confidences.append(log_p.max(dim=1).values.exp().nan_to_num(0.0))
            likelihoods.append(log_p.gather(1, true[:, None])[:, 0])
        return cls(logits.argmax(dim=1).cpu(), torch.cat(confidences).cpu(), torch.cat(likelihoods).cpu())

    def __getitem__(self, images: Tensor) -> Scores:
        return Scores(self.predicted[images], self.confidence[images], self.log_likelihood[images])


def result_row(
    spec: MethodSpec, domain: str, seed: int, scores: Scores, labels: Tensor, classes: list[str], divided_by: int
) -> ResultRow:
    """The result of one method on one domain with one seed, from scores and labels ``(n,)`` of the images seen."""
    c = len(classes)
    confusion = torch.bincount(labels * c + scores.predicted, minlength=c**2).view(c, c)  # true by predicted class
    correct, images = confusion.diagonal().tolist(), confusion.sum(dim=1).tolist()
    return {
        "method": spec.name,
        "domain": domain,
        "seed": seed,
        "uses_labels": spec.uses_labels,
        "correct": sum(correct),
        "images": len(labels),
        "divisor": divided_by,
        "accuracy": 100 * sum(correct) / divided_by,
        "per_class": {
            name: {"correct": c, "images": n, "accuracy": 100 * c / n if n else None}
            for name, c, n in zip(classes, correct, images, strict=True)
        },
        "confusion": confusion.tolist(),
        "metrics": measure(confusion, scores, labels),
        "calibration": calibration_bins(scores, labels),
    }


def measure(confusion: Tensor, scores: Scores, labels: Tensor) -> dict[str, float | None]:
    """The measures, from the confusion matrix ``(c, c)``, the scores and the labels of the images."""
    right, true, called = confusion.diagonal().double(), confusion.sum(dim=1), confusion.sum(dim=0)
    accuracies = (right / true)[true > 0]
    f1 = (2 * right / (true + called))[true + called > 0]
    correct = (scores.predicted == labels).double()
    nll = -float(scores.log_likelihood.mean())
    return {
        "macro_accuracy": 100 * float(accuracies.mean()),
        "macro_f1": 100 * float(f1.mean()),
        "worst_class": 100 * float(accuracies.min()),
        "nll": nll if math.isfinite(nll) else None,
        "ece": calibration_error(scores.confidence, correct, equal_width(scores.confidence)),
        "adaptive_ece": calibration_error(scores.confidence, correct, equal_count(scores.confidence)),
    }


def equal_width(confidence: Tensor) -> Tensor:
    """The bin ``(n,)`` of each confidence: bin b holds those in (b/15, (b+1)/15]."""
    return ((confidence * BINS).ceil() - 1).clamp(0, BINS - 1).long()


def equal_count(confidence: Tensor) -> Tensor:
    """The bin ``(n,)`` of each confidence, by rank: bins differ by at most one image."""
    bins = torch.empty(len(confidence), dtype=torch.long)
    bins[confidence.argsort(stable=True)] = torch.arange(len(confidence)) * BINS // len(confidence)
    return bins


def calibration_error(confidence: Tensor, correct: Tensor, bins: Tensor) -> float:
    """Σ n_b/n · |accuracy_b − confidence_b|, in percent."""
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, correct.double() - confidence.double())
    return 100 * float(gaps.abs().sum()) / len(confidence)


def calibration_bins(scores: Scores, labels: Tensor) -> CalibrationBins:
    """Data of a reliability diagram: images, mean confidence (%) and accuracy (%) of each bin of equal width."""
    bins = equal_width(scores.confidence)
    count = torch.bincount(bins, minlength=BINS)
    sums = [
        torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, values.double())
        for values in (scores.confidence, scores.predicted == labels)
    ]
    confidence, accuracy = (
        [100 * total / n if n else None for total, n in zip(part.tolist(), count.tolist(), strict=True)]
        for part in sums
    )
    return {"count": count.tolist(), "confidence": confidence, "accuracy": accuracy}
