"""Rows of the record: what one method did on one domain with one seed."""

from __future__ import annotations

import torch
from torch import Tensor

from clip_tca.evaluation.measures import Scores, auroc, calibration_bins, measure
from clip_tca.evaluation.method_spec import MethodSpec
from clip_tca.results.schema import ResultRow


def result_row(
    spec: MethodSpec, domain: str, seed: int, scores: Scores, labels: Tensor, classes: list[str], divided_by: int
) -> ResultRow:
    """Counts and measures, from scores and labels ``(n,)`` of the images seen; labels past the classes are unknown."""
    known = labels < len(classes)
    seen, true = scores[known], labels[known]
    confusion = confusion_matrix(seen.predicted, true, len(classes))
    correct, images = confusion.diagonal().tolist(), confusion.sum(dim=1).tolist()
    metrics = measure(confusion, seen, true)
    if not bool(known.all()):
        metrics["unknown_auroc"] = auroc(seen.confidence, scores[~known].confidence)
    return {
        "method": spec.name,
        "domain": domain,
        "seed": seed,
        "uses_labels": spec.uses_labels,
        "correct": sum(correct),
        "images": len(true),
        "divisor": divided_by,
        "accuracy": 100 * sum(correct) / divided_by,
        "per_class": {
            name: {"correct": c, "images": n, "accuracy": 100 * c / n if n else None}
            for name, c, n in zip(classes, correct, images, strict=True)
        },
        "confusion": confusion.tolist(),
        "metrics": metrics,
        "calibration": calibration_bins(seen, true),
    }


def confusion_matrix(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Counts ``(classes, classes)``: rows are true classes, columns predicted ones."""
    return torch.bincount(labels * classes + predicted, minlength=classes**2).view(classes, classes)
