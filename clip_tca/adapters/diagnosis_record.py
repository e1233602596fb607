"""The fields of a diagnosis (:mod:`clip_tca.adapters.diagnosis`), ready for JSON. Importing them needs no torch."""

from __future__ import annotations

from typing import TypedDict


class _PseudoSource(TypedDict, total=False):
    """Of LinearTCA and MLPTCA only; the uncertainties are shares of that of a uniform guess."""

    correlation_distance: float
    covariance_shift: float | None
    chosen: list[int]
    uncertainty_mean: float | None
    uncertainty_max: float | None


class _ClassConditional(TypedDict, total=False):
    """Of ConditionalTCA only: soft class counts, share of the variance between classes, temperature of the scores."""

    counts: list[float]
    between: float | None
    temperature: float


class Diagnosis(_PseudoSource, _ClassConditional):
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
