"""The fields of a diagnosis (:mod:`clip_tca.adapters.diagnosis`), ready for JSON. Importing them needs no torch."""

from __future__ import annotations

from typing import TypedDict

from typing_extensions import NotRequired


class Diagnosis(TypedDict):
    """Figures of a fitted adapter that need no labels; None where a figure can't be computed.

    Attributes:
        kind: Class of the adapter.
        embeddings: Embeddings seen.
        dim: Dimensions.
        classes: Number of classes.
        spread: Root mean square distance of the embeddings from their mean.
        mean_shift: Distance between pseudo-source and test mean, in spreads.
        movement: Root mean square movement of the embeddings, in spreads.
        predicted: Zero-shot predictions of each class.
        changed: Share of the predictions that change.

    LinearTCA and MLPTCA add the distances of covariances, how many were ``chosen`` of each class, and their uncertainty
    as a share of that of a uniform guess; ConditionalTCA adds the soft class ``counts``, the share of the variance
    ``between`` classes, and the ``temperature`` of the scores.
    """

    kind: str
    embeddings: int
    dim: int
    classes: int
    spread: float
    mean_shift: float | None
    movement: float | None
    predicted: list[int] | None
    changed: float | None
    correlation_distance: NotRequired[float]
    covariance_shift: NotRequired[float | None]
    chosen: NotRequired[list[int]]
    uncertainty_mean: NotRequired[float | None]
    uncertainty_max: NotRequired[float | None]
    counts: NotRequired[list[float]]
    between: NotRequired[float | None]
    temperature: NotRequired[float]
