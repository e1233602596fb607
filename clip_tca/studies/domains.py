"""The shifted domains of a subject, ready to measure, and accuracy on them."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, pstdev

import torch
from torch import Tensor
from tqdm import tqdm

from clip_tca.core.tensors import unit
from clip_tca.evaluation.protocols import order
from clip_tca.studies.base import Subject


def present(subject: Subject | None) -> Subject:
    """The subject of a study that can't do without."""
    if subject is None:
        raise ValueError("subject: None, and this study measures on a data set")
    return subject


def shifted(subject: Subject) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Name, unit embeddings and labels (for scoring) of each domain but the reference, with a bar."""
    silent = None if subject.progress else True
    for name, (z, y) in tqdm(subject.shifted.items(), desc="measuring", unit="domain", disable=silent, leave=False):
        yield name, on(subject, unit(z)), on(subject, y)


def source(subject: Subject) -> tuple[Tensor, Tensor]:
    """Unit embeddings and labels of the reference domain, which stands for the source."""
    if subject.reference is None:
        raise ValueError("reference: none was named, and this study measures against a source-like domain")
    z, y = subject.embedded.data.domains[subject.reference]
    return on(subject, unit(z)), on(subject, y)


def on(subject: Subject, tensor: Tensor) -> Tensor:
    """``tensor`` on the device of the classifier."""
    return tensor.to(subject.classifier.device)


def shuffled(images: int, seed: int, device: torch.device) -> Tensor:
    """All images in a seeded order."""
    return order(images, "full", 1, seed).to(device)


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    """Percent of the predictions that are right."""
    return 100 * int((predicted == labels).sum()) / len(labels)


def spread(values: list[float]) -> dict[str, float]:
    """Mean and population standard deviation."""
    return {"mean": fmean(values), "std": pstdev(values)}
