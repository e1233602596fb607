"""The fields of a diagnosis (:mod:`clip_tca.adapters.diagnosis`), ready for JSON. Importing them needs no torch."""

from __future__ import annotations

from typing import TypedDict

from typing_extensions import NotRequired


class Diagnosis(TypedDict):
    """Figures of a fitted adapter that need no labels; None where a figure is not available.

    Adapters with a pseudo-source have the first seven that are not required, ConditionalTCA has the last four.
    """

    kind: str  # class of the adapter
    embeddings: int  # number seen
    dim: int
    classes: int
    spread: float  # √tr Σ_t, the root mean square distance of the embeddings from their mean
    mean_shift: float | None  # distance of the means, in spreads
    movement: float | None  # root mean square move of an embedding, in spreads
    predicted: list[int] | None  # the classifier's predictions of each class
    changed: float | None  # share of predictions that change
    correlation_distance: NotRequired[float]  # of the two covariances
    covariance_shift: NotRequired[float | None]  # ‖Σ_t − Σ̂_s‖ / ‖Σ_t‖
    chosen: NotRequired[list[int]]  # embeddings of each class in the pseudo-source
    uncertainty_mean: NotRequired[float | None]  # of the chosen; 0 is certain, 1 a uniform guess
    uncertainty_max: NotRequired[float | None]
    shares: NotRequired[list[float]]  # of the classes in the pseudo-source
    agreement: NotRequired[dict[str, float]]  # of candidate shares' predictions with ConditionalTCA's, where estimated
    counts: NotRequired[list[float]]  # soft count of each class
    between: NotRequired[float | None]  # share of the variance between classes
    temperature: NotRequired[float]  # what the logits were divided by
    kept: NotRequired[bool]  # whether g is kept because it is sure of the predictions that would change
